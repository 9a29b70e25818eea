"""POST /pd_role_switch: sglang 0.5.23's body, answers and refusals; ranks that echo stand behind it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import plain_http
from tests.engine.frontend.conftest import READY, Engine, running, until
from tests.ports import free_port

NOT_IDLE = "instance is not idle; drain all requests before switching"


def switch(engine: Engine, role: str, **more: object) -> tuple[int, dict]:
    answer = engine.client.post("/pd_role_switch", json={"new_role": role, **more})
    return answer.status_code, answer.json()


def flags(mode: str, *more: str) -> tuple[str, ...]:
    port = str(free_port())
    return ("--disaggregation-mode", mode, "--disaggregation-bootstrap-port", port, *more)


@pytest.fixture(scope="module")
def able(model: Path) -> Iterator[Engine]:
    with running(model, *flags("prefill", "--enable-pd-role-switch")) as engine:
        engine.wait_for(READY)
        yield engine


def roles(engine: Engine) -> tuple[str, str, str, str]:
    """As /model_info, /server_info, /v1/loads and the metrics have it."""
    info = engine.client.get("/server_info").json()
    loads = engine.client.get("/v1/loads").json()["loads"]
    (label,) = {line.split('engine_type="')[1].split('"')[0] for line in metrics(engine) if 'engine_type="' in line}
    mode = engine.client.get("/model_info").json()["disaggregation_mode"]
    return mode, info["disaggregation_mode"], loads[0]["disaggregation"]["mode"], label


def metrics(engine: Engine) -> list[str]:
    return engine.client.get("/metrics").text.splitlines()


def test_there_and_back(able: Engine) -> None:
    before = len(able.lines)
    assert switch(able, "decode") == (
        200,
        {"success": True, "message": "ok", "old_role": "prefill", "new_role": "decode", "safe_to_restore": False},
    )
    # The document's own key stays what the server was started with, as in sglang.
    assert roles(able) == ("decode", "prefill", "decode", "dynamic")
    assert able.client.get("/health").status_code == 200
    assert switch(able, "prefill")[0] == 200
    assert roles(able) == ("prefill", "prefill", "prefill", "dynamic")
    assert not [line for line in able.lines[before:] if "rejected" in line]


def test_the_role_it_has_is_no_switch(able: Engine) -> None:
    assert switch(able, "prefill") == (
        200,
        {"success": True, "message": "ok", "old_role": "prefill", "new_role": "prefill", "safe_to_restore": False},
    )


def test_a_look_beforehand_changes_nothing(able: Engine) -> None:
    status, said = switch(able, "decode", prepare_only=True)
    assert (status, said["message"], said["safe_to_restore"]) == (200, "ready", True)
    assert able.client.get("/model_info").json()["disaggregation_mode"] == "prefill"


def test_what_it_says_of_graphs_is_taken_and_means_nothing(able: Engine) -> None:
    status, _ = switch(able, "decode", prepare_only=True, decode_cuda_graph_bs=[1, 2], decode_cuda_graph_memory_gb=0.5)
    assert status == 200


@pytest.mark.parametrize("role", ["", "both", "null"])
def test_no_such_role(able: Engine, role: str) -> None:
    before = len(able.lines)
    status, said = switch(able, role)
    assert (status, said["message"], said["safe_to_restore"]) == (400, f"invalid new_role={role!r}", True)
    assert able.wait_for(f"PD role switch rejected (prefill -> {role}): invalid new_role={role!r}", before)


def test_a_busy_instance_stays_what_it_is(able: Engine) -> None:
    body = {
        "text": "!mute", "sampling_params": {"max_new_tokens": 2}, "rid": "busy",
        "bootstrap_host": "127.0.0.1", "bootstrap_port": 9, "bootstrap_room": 7,
    }  # fmt: skip

    def ask() -> None:
        plain_http.post(f"{able.url}/generate", json=body, timeout=60)

    client = threading.Thread(target=ask)
    client.start()
    until(lambda: any("Receive: obj=GenerateReqInput(rid='busy'" in line for line in able.lines), "the request")
    assert switch(able, "decode") == (
        400,
        {"success": False, "message": NOT_IDLE, "old_role": "prefill", "new_role": "decode", "safe_to_restore": True},
    )
    assert able.client.post("/abort_request", json={"rid": "busy"}).status_code == 200
    client.join(30)
    assert switch(able, "decode", prepare_only=True)[0] == 200


def test_without_the_flag(prefill: Engine) -> None:
    status, said = switch(prefill, "decode")
    assert (status, said["safe_to_restore"]) == (400, True)
    assert said["message"] == "--enable-pd-role-switch is not set on this server"


def test_an_instance_that_serves_alone_has_no_role(model: Path) -> None:
    with running(model, "--enable-pd-role-switch") as engine:
        engine.wait_for(READY)
        status, said = switch(engine, "decode")
    assert (status, said["message"]) == (400, "instance is not running in PD disaggregation mode")


@pytest.mark.parametrize("body", ["[]", "{", '{"new_role": 7}'])
def test_a_body_that_is_none(able: Engine, body: str) -> None:
    assert able.client.post("/pd_role_switch", content=body).status_code == 400


def test_all_groups_switch_or_none(model: Path) -> None:
    """Two replicas; the second says no when it is asked, so that the first is never told."""
    more = ("--enable-pd-role-switch", "--dp-size", "2")
    with running(model, *flags("decode", *more), env={"ECHO_SWITCH": "fail-prepare:1"}) as engine:
        engine.wait_for(READY)
        assert switch(engine, "prefill") == (
            400,
            {"success": False, "message": "rank 1 says no", "old_role": "decode", "new_role": "prefill",
             "safe_to_restore": True},
        )  # fmt: skip
        assert engine.client.get("/model_info").json()["disaggregation_mode"] == "decode"
        assert engine.client.get("/health").status_code == 200


def test_half_a_switch_ends_the_service(model: Path) -> None:
    more = ("--enable-pd-role-switch", "--dp-size", "2")
    with running(model, *flags("decode", *more), env={"ECHO_SWITCH": "fail-commit:1"}) as engine:
        engine.wait_for(READY)
        status, said = switch(engine, "prefill")
        assert (status, said["message"], said["safe_to_restore"]) == (400, "rank 1 says no", False)
        assert engine.client.get("/health").status_code == 503
        status, said = switch(engine, "prefill")
        assert (status, said["safe_to_restore"]) == (400, False)
        assert said["message"] == "instance is unhealthy after a failed role switch; restart required"
        asked = engine.client.post("/generate", json={"text": "x", "bootstrap_host": "2.2.2.2", "bootstrap_room": 1})
        assert asked.status_code == 503
        assert "start it again" in json.dumps(asked.json())


def test_it_has_a_bootstrap_server_from_its_start(model: Path) -> None:
    words = flags("decode", "--enable-pd-role-switch")
    with running(model, *words) as engine:
        engine.wait_for(READY)
        assert engine.wait_for("Role switch starts a bootstrap server on this instance at 127.0.0.1:")
        route = f"http://127.0.0.1:{words[3]}/route"
        query = dict.fromkeys(("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank"), -1)
        assert plain_http.get(route, params=query).status_code == 503  # it knows nobody: this is a decode


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--pp-size", "2"), "sglang 0.5.23 switches no instance with --pp-size 2"),
        (("--rehearse", "crash-on-page-size-mismatch"), "belongs to one role"),
        (("--chunked-prefill-size", "500"), "must be a multiple of --page-size 16"),
    ],
)
def test_what_cannot_switch_does_not_start(model: Path, more: tuple[str, ...], said: str) -> None:
    with running(model, *flags("decode", "--enable-pd-role-switch", *more)) as engine:
        assert engine.exit_code() == 2
        assert any(said in line for line in engine.lines), engine.lines
