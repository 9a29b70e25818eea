"""PDCTL_FAULTS at the steps of a request, in real engines: each fires where it is named, and a kill ends the rank."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from pdctl.engine.config.instance_args import FAKE_BOOTSTRAP_HOST
from pdctl.engine.drill.fault_points import ENV
from tests import plain_http
from tests.engine.frontend.conftest import PATIENCE, READY, Engine, running
from tests.ports import free_port

TINY = Path(__file__).resolve().parents[3] / "pdctl" / "checkpoints" / "tiny"
CHUNK = 16
STALLED, PREFILL_DIES, DECODE_DIES = 101, 102, 103  # rooms
ON_PREFILL = ("prefill.after_chunk", "prefill.before_metadata")
ON_DECODE = ("decode.after_announce", "decode.after_arrival")


def faults(steps: tuple[str, ...], deadly: str, room: int) -> dict[str, str]:
    """Every step stalls for a moment in room STALLED; at `deadly` the rank ends in `room`."""
    stalls = [f"stall:{step}=1ms@room%1000=={STALLED}" for step in steps]
    return {ENV: "; ".join([*stalls, f"kill:{deadly}@room%1000=={room}"])}


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Engine, Engine, int]]:
    """A prefill, a decode, and the bootstrap port between them."""
    port = free_port()
    both = ("--disaggregation-transfer-backend", "shm", "--chunked-prefill-size", str(CHUNK))
    prefill = (*both, "--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", str(port))
    decode = (*both, "--disaggregation-mode", "decode")
    with ExitStack() as stack:
        first = running(TINY, *prefill, env=faults(ON_PREFILL, ON_PREFILL[1], PREFILL_DIES), module="pdctl.engine")
        second = running(TINY, *decode, env=faults(ON_DECODE, ON_DECODE[1], DECODE_DIES), module="pdctl.engine")
        engines = stack.enter_context(first), stack.enter_context(second)
        for engine in engines:
            engine.wait_for(READY)
        yield *engines, port


def ask(engine: Engine, port: int, room: int, host: str = "127.0.0.1") -> httpx.Response:
    body = {
        "input_ids": [5 + place % 40 for place in range(2 * CHUNK + 3)],
        "sampling_params": {"temperature": 0, "max_new_tokens": 2, "ignore_eos": True},
        "bootstrap_host": host,
        "bootstrap_port": port,
        "bootstrap_room": room,
    }
    return plain_http.post(f"{engine.url}/generate", json=body, timeout=PATIENCE)


def fired(engine: Engine, step: str, room: int) -> str:
    return engine.wait_for(f"fires at {step} room={room}")


def test_every_step_of_a_request_is_reached_and_then_a_kill_ends_the_rank(pair: tuple[Engine, Engine, int]) -> None:
    prefill, decode, port = pair
    with ThreadPoolExecutor(1) as beside:
        other = beside.submit(ask, prefill, port, STALLED)
        assert len(ask(decode, port, STALLED).json()["output_ids"]) == 2
        assert other.result().status_code == 200
        chunks = [line for line in prefill.lines if f"fires at prefill.after_chunk room={STALLED}" in line]
        assert len(chunks) == 2  # the last one has the metadata with it
        for engine, steps in ((prefill, ON_PREFILL), (decode, ON_DECODE)):
            for step in steps:
                assert f"REHEARSAL: fault stall:{step}=1ms@room%1000=={STALLED} " in fired(engine, step, STALLED)

        other = beside.submit(ask, prefill, port, PREFILL_DIES)
        assert ask(decode, port, PREFILL_DIES).status_code >= 500
        assert "was killed by SIGKILL" in other.result().text
    fired(prefill, "prefill.before_metadata", PREFILL_DIES)
    ended(prefill)

    answer = ask(decode, port, DECODE_DIES, FAKE_BOOTSTRAP_HOST)
    assert answer.status_code == 503
    assert "was killed by SIGKILL" in answer.text
    fired(decode, "decode.after_arrival", DECODE_DIES)
    ended(decode)


def ended(engine: Engine) -> None:
    engine.wait_for("was killed by SIGKILL")
    assert engine.exit_code() == 1
