"""The HTTP side of a rehearsal: null ports pass, the log keeps what the body said, and nobody can overlook it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.frontend.conftest import READY, Engine, running

NULL = {"text": "hi", "bootstrap_host": "10.0.0.1", "bootstrap_port": None, "bootstrap_room": 77}


@pytest.fixture(scope="module")
def rehearsing(model: Path) -> Iterator[Engine]:
    with running(model, "--disaggregation-mode", "decode", "--rehearse", "null-port-fallback=9100") as engine:
        engine.wait_for(READY)
        yield engine


def test_a_null_port_passes_and_the_request_line_says_none(rehearsing: Engine) -> None:
    """As sglang logs it: the substitution comes later, in the scheduler, and leaves no line."""
    mark = len(rehearsing.lines)
    assert rehearsing.client.post("/generate", json=NULL).status_code == 200
    rehearsing.wait_for("bootstrap_host='10.0.0.1', bootstrap_port=None, bootstrap_room=77)", mark)
    lists = {"text": ["a", "b"], "bootstrap_host": ["h"] * 2, "bootstrap_port": [None, 5], "bootstrap_room": [3, 4]}
    assert rehearsing.client.post("/generate", json=lists).status_code == 200


def test_what_is_no_port_is_still_refused(rehearsing: Engine) -> None:
    assert rehearsing.client.post("/generate", json={**NULL, "bootstrap_port": 0}).status_code == 400


def test_it_is_marked_at_the_start_and_in_server_info(rehearsing: Engine, decode: Engine) -> None:
    loud = rehearsing.wait_for("REHEARSAL: null-port-fallback=9100: take requests whose bootstrap_port is null")
    assert rehearsing.lines.index(loud) == 0
    info = rehearsing.client.get("/server_info").json()
    assert info["pdctl_rehearsal"] == ["null-port-fallback=9100"]
    assert info["disaggregation_bootstrap_port"] == 9100
    assert "rehearse" not in info
    assert not any("REHEARSAL" in line for line in decode.lines)
    assert not {"pdctl_rehearsal", "rehearse"} & decode.client.get("/server_info").json().keys()
