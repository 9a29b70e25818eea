"""Sends the same prompts to a unified instance, or to a pair, and compares the answers token by token."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx

from tests import plain_http

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.engine.equality.instances import Instance
    from tests.engine.equality.prompts import Prompt

AT_ONCE = 16
PATIENCE = 120.0


class Difference(NamedTuple):
    prompt: int
    place: int  # first token that differs; -1: there is no answer
    wanted: tuple[int, ...]
    got: tuple[int, ...]
    error: str = ""


def _body(prompt: Prompt, rid: str) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": prompt.answer, "ignore_eos": True}
    return {"input_ids": list(prompt.ids), "sampling_params": sampling, "rid": rid}


async def _each(prompts: Sequence[Prompt], ask: Any) -> list[Any]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> Any:
        async with gate:
            return await ask(number, prompts[number])

    return await asyncio.gather(*(one(number) for number in range(len(prompts))))


async def unified(instance: Instance, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    async with plain_http.AsyncClient(timeout=PATIENCE) as client:

        async def ask(number: int, prompt: Prompt) -> tuple[int, ...]:
            answer = await client.post(f"{instance.url}/generate", json=_body(prompt, f"u{number}"))
            answer.raise_for_status()
            return tuple(answer.json()["output_ids"])

        return await _each(prompts, ask)


async def pair(
    prefill: Instance, decode: Instance, prompts: Sequence[Prompt], wanted: Sequence[tuple[int, ...]]
) -> list[Difference]:
    """Differences between the pair's answers and `wanted`."""
    rng = random.Random(f"{prefill.name} {decode.name}")
    limits = httpx.Limits(max_connections=4 * AT_ONCE)
    async with plain_http.AsyncClient(timeout=PATIENCE, limits=limits) as client:

        async def ask(number: int, prompt: Prompt) -> Difference | None:
            room = rng.randrange(1, 2**53)
            body = _body(prompt, f"{prefill.name}-{decode.name}-{number}-{room % 1000}") | {
                "bootstrap_host": "127.0.0.1",
                "bootstrap_port": prefill.bootstrap_port,
                "bootstrap_room": room,
            }
            first, second = await asyncio.gather(
                client.post(f"{prefill.url}/generate", json=body), client.post(f"{decode.url}/generate", json=body)
            )
            if first.status_code != 200 or second.status_code != 200:
                error = (
                    f"prefill {first.status_code} {first.text[:300]}; decode {second.status_code} {second.text[:300]}"
                )
                return Difference(number, -1, wanted[number], (), error)
            got, reference = tuple(second.json()["output_ids"]), wanted[number]
            if got == reference:
                return None
            place = next((at for at, (a, b) in enumerate(zip(got, reference, strict=False)) if a != b), len(reference))
            return Difference(number, place, reference, got)

        found = await _each(prompts, ask)
    return [difference for difference in found if difference is not None]
