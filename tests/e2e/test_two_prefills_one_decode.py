"""2P1D through our router: the answers are those of one rank, whichever way the KV cache travelled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests import plain_http
from tests.cases import for_each
from tests.e2e.conftest import TINY, Deployment, wait_for
from tests.e2e.greedy import alone, answers, prompts

PROMPTS = 300
Reference = Callable[[int], list[tuple[list[int], list[int]]]]


@pytest.fixture(scope="module")
def reference() -> Reference:
    """The first so many prompts, each with what one rank answers."""
    inputs = prompts(PROMPTS, int(json.loads((TINY / "config.json").read_text())["vocab_size"]))
    known: list[tuple[list[int], list[int]]] = []

    def first(count: int) -> list[tuple[list[int], list[int]]]:
        more = inputs[len(known) : count]
        if more:
            known.extend(zip(more, alone(TINY, more), strict=True))
        return known[:count]

    return first


@pytest.mark.parametrize(
    ("count", "concurrency"), [(60, 32), (20, 1), pytest.param(PROMPTS, 32, marks=pytest.mark.heavy)]
)
def test_every_greedy_answer_equals_one_ranks(
    two_prefills: Deployment, reference: Reference, count: int, concurrency: int
) -> None:
    """One at a time every length at an edge is among the prompts, too."""
    asked = reference(count)
    got, used = asyncio.run(answers(two_prefills.router, [ids for ids, _ in asked], concurrency))
    different = [(len(ids), a, b) for (ids, a), b in zip(asked, got, strict=True) if a != b]
    assert not different, f"{len(different)} of {count} answers differ: {different[:3]}"
    assert set(used) == set(two_prefills.prefills), used
    wait_for("return of every page", two_prefills.all_pages_free)


def test_a_dp_rank_that_is_nobodys_is_the_requests_mistake_alone(two_prefills: Deployment) -> None:
    """Three of them once closed every pair for ten seconds: the prefill answered 500, and was left alone for it."""
    body = {"text": "hi", "sampling_params": {"max_new_tokens": 2}}
    for _ in range(6):
        answer = plain_http.post(
            f"{two_prefills.router}/generate", json={**body, "disagg_prefill_dp_rank": 99}, timeout=60
        )
        assert answer.status_code == 400, answer.text
        assert "disagg_prefill_dp_rank" in answer.json()["error"]["message"]
    pairs = plain_http.get(f"{two_prefills.router}/workers", timeout=60).json()["pairs"]
    assert [pair["failures_in_a_row"] for pair in pairs] == [0, 0]
    assert plain_http.post(f"{two_prefills.router}/generate", json=body, timeout=60).status_code == 200


def test_openai_client_streams_a_chat(two_prefills: Deployment) -> None:
    import openai  # here: every test process reads this file, one runs it

    with openai.OpenAI(base_url=f"{two_prefills.router}/v1", api_key="none") as client:
        stream = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Repeat: the red fox"}],
            stream=True,
            temperature=0,
            max_tokens=16,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text.strip()
    usage = next(chunk.usage for chunk in reversed(chunks) if chunk.usage)
    assert usage.completion_tokens >= 1


def test_stream_and_plain_answer_agree(two_prefills: Deployment) -> None:
    body: dict[str, Any] = {
        "text": "Repeat: seven small boats",
        "sampling_params": {"temperature": 0, "max_new_tokens": 16},
    }
    plain = plain_http.post(f"{two_prefills.router}/generate", json=body, timeout=60)
    with plain_http.stream(
        "POST", f"{two_prefills.router}/generate", json={**body, "stream": True}, timeout=60
    ) as answer:
        events = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["text"] == plain.json()["text"]
    assert {"x-pd-prefill", "x-pd-decode", "x-pd-room"} <= set(plain.headers)


@for_each(
    ("path", "body", "answers"),
    [
        ("/generate", {"text": "one", "sampling_params": {"n": 3, "max_new_tokens": 4, "ignore_eos": True}}, 3),
        ("/generate", {"text": ["a", "b"], "sampling_params": {"n": 2, "max_new_tokens": 4, "ignore_eos": True}}, 4),
        ("/v1/completions", {"prompt": ["a", "b"], "n": 2, "max_tokens": 4, "ignore_eos": True}, 4),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "n": 3, "max_tokens": 4}, 3),
    ],
)
def test_every_sample_of_every_prompt_has_a_room_of_its_own(
    two_prefills: Deployment, path: str, body: dict[str, Any], answers: int
) -> None:
    """Where all samples share the room of their prompt, one is answered and the others hang (SGLang 0.5.23)."""
    answer = plain_http.post(f"{two_prefills.router}{path}", json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    got = answer.json()
    assert len(got if isinstance(got, list) else got["choices"]) == answers
    wait_for("return of every page", two_prefills.all_pages_free)


def test_a_request_without_a_bootstrap_port_is_refused_at_once(two_prefills: Deployment) -> None:
    body = {"text": "hi", "bootstrap_host": "127.0.0.1", "bootstrap_room": 5, "sampling_params": {"max_new_tokens": 2}}
    for url in (*two_prefills.prefills, *two_prefills.decodes):
        answer = plain_http.post(f"{url}/generate", json=body, timeout=5)
        assert answer.status_code == 400
        assert "bootstrap_port" in answer.text
