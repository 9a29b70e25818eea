"""`pdctl role-switch` on a fleet it did not launch: our real router, engines that answer what sglang 0.5.23 answers."""

from __future__ import annotations

import json
import signal

import pytest

from pdctl.fleet.observations import Endpoint
from pdctl.switch.switch_order import SwitchOrder, other
from pdctl.switch.switch_refusals import probe_fleet, refusals
from tests import plain_http
from tests.cases import for_each
from tests.e2e.conftest import wait_for
from tests.switch.conftest import Fleet
from tests.switch.engines import NOT_IDLE, TOKENS, hangs_up, refuses, says


def test_a_prefill_becomes_a_decode_and_comes_back(fleet: Fleet) -> None:
    turning = fleet.prefills[1]
    code, out, err = fleet.switch(turning, "decode")
    assert code == 0, err
    assert out.startswith(f"{turning.url} is a decode now, after ")
    steps = [line.split()[0] for line in err.splitlines()[1:]]
    assert steps == ["remove", "drain", "switch", "verify", "canary", "add"]
    assert turning.of("/pd_role_switch") == [{"new_role": "decode", "decode_cuda_graph_memory_gb": 0.0}]
    assert fleet.workers() == {**fleet.expected(), turning.url: ("decode", None)}
    (canary,) = turning.of("/generate")
    assert canary["bootstrap_port"] == fleet.prefills[0].bootstrap_port

    code, out, err = fleet.switch(turning, "prefill", "-o", "json")
    assert code == 0, err
    told = json.loads(out)
    assert (told["schema"], told["standing"], told["bootstrap_port"]) == (
        "pdctl.role-switch/1", "switched", turning.bootstrap_port,
    )  # fmt: skip
    assert list(told["seconds"]) == steps
    assert turning.of("/pd_role_switch")[1] == {"new_role": "prefill"}
    assert [one["bootstrap_port"] for one in turning.of("/generate")[1:]] == [turning.bootstrap_port] * 2
    assert fleet.workers() == fleet.expected()
    lines = [json.loads(line) for line in (fleet.home / "switches.jsonl").read_text().splitlines()]
    assert [(line["from"], line["to"], line["standing"]) for line in lines] == [
        ("prefill", "decode", "switched"), ("decode", "prefill", "switched"),
    ]  # fmt: skip


def test_a_dry_run_says_what_it_would_do(fleet: Fleet) -> None:
    turning = fleet.decodes[0]
    code, out, _ = fleet.switch(turning, "prefill", "--dry-run")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == [
        "remove",
        "drain",
        "switch",
        "verify",
        "canary",
        "add",
    ]
    assert f"with bootstrap port {turning.bootstrap_port}" in out
    assert not turning.of("/pd_role_switch")
    assert fleet.workers() == fleet.expected()


def test_it_waits_until_nothing_is_held(fleet: Fleet) -> None:
    """The router lets it go first; the order is given when two looks in a row find it idle."""
    turning = fleet.decodes[1]
    turning.busy = 3
    process = fleet.start(turning.url, "--to", "prefill", "--router", fleet.router)
    wait_for("the router to let it go", lambda: turning.url not in fleet.workers())
    asked = len(turning.of("/v1/loads"))
    # The second question is asked only when the first has been answered with 3.
    wait_for("role-switch to ask it twice", lambda: len(turning.of("/v1/loads")) >= asked + 2)
    assert not turning.of("/pd_role_switch")
    turning.busy = 0
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "num_running_reqs 3" in err


def test_a_drain_has_an_end(fleet: Fleet) -> None:
    turning = fleet.decodes[1]
    turning.busy = 2
    code, _, err = fleet.switch(turning, "prefill", "--drain-timeout", "200ms")
    assert code == 1
    assert (
        f"{turning.url} is not idle after 0.2 s: num_running_reqs 2; {turning.url} serves as a decode as before" in err
    )
    assert "--drain-timeout, or end them" in err
    assert not turning.of("/pd_role_switch")
    assert fleet.workers() == fleet.expected()


def test_not_idle_is_asked_again(fleet: Fleet) -> None:
    turning = fleet.prefills[1]
    turning.script = [refuses(NOT_IDLE, safe=True)]
    code, _, err = fleet.switch(turning, "decode")
    assert code == 0
    assert NOT_IDLE in err
    assert len(turning.of("/pd_role_switch")) == 2


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (refuses("insufficient decode CUDA graph headroom: required=9.000 GB", safe=True), "insufficient decode CUDA"),
        (says(401, {"error": {"message": "who are you"}}), "401 who are you"),
        (says(404, {"detail": "Not Found"}), "404 Not Found"),
    ],
)
def test_a_safe_refusal_puts_it_back(fleet: Fleet, answer: object, said: str) -> None:
    turning = fleet.prefills[1]
    turning.script = [answer]  # type: ignore[list-item]
    code, _, err = fleet.switch(turning, "decode")
    assert code == 1
    assert f"does not switch: {said}" in err
    assert "serves as a prefill as before" in err
    assert fleet.workers() == fleet.expected()


@pytest.mark.parametrize(
    ("answer", "said", "fix"),
    [
        (refuses("role switch failed; instance unhealthy, restart required: x", safe=False), "restart required",
         "start http"),
        (refuses("another role switch is already in progress", safe=False), "already in progress", "start http"),
        (hangs_up, "did not answer whether it switched", "/model_info"),
        (says(502, "bad gateway"), "did not answer whether it switched: 502", "/model_info"),
    ],
)  # fmt: skip
def test_what_may_be_broken_stays_out(fleet: Fleet, answer: object, said: str, fix: str) -> None:
    turning = fleet.prefills[1]
    turning.script = [answer]  # type: ignore[list-item]
    code, _, err = fleet.switch(turning, "decode")
    assert code == 1
    assert said in err
    assert fix in err.splitlines()[-1]
    assert turning.url not in fleet.workers()


def test_a_role_that_serves_nobody_is_not_routed_to(fleet: Fleet) -> None:
    """It says that it switched, and answers no canary; once it does, the same command takes up where it ended."""
    peer, turning = fleet.prefills
    turning.generation = 500, {"error": {"message": "waiting_timeout"}}
    code, _, err = fleet.switch(turning, "decode", "--canary-timeout", "200ms")
    assert code == 1
    assert f"canary after 0.2 s: {peer.url} -> {turning.url}: {turning.url} answered 500: waiting_timeout" in err
    assert f"{turning.url} is a decode now, and not (everywhere) routed to" in err
    assert turning.url not in fleet.workers()
    turning.generation = TOKENS
    code, _, err = fleet.switch(turning, "decode")
    assert code == 0, err
    assert [line.split()[0] for line in err.splitlines()[1:]] == ["remove", "verify", "canary", "add"]
    assert len(turning.of("/pd_role_switch")) == 1
    assert fleet.workers()[turning.url] == ("decode", None)


def test_ctrl_c_puts_it_back(fleet: Fleet) -> None:
    turning = fleet.decodes[0]
    turning.busy = 1
    process = fleet.start(turning.url, "--to", "prefill", "--router", fleet.router)
    wait_for("the router to let it go", lambda: turning.url not in fleet.workers())
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
    assert f"interrupted; {turning.url} serves as a decode as before" in err
    assert fleet.workers() == fleet.expected()


def test_a_second_ctrl_c_leaves_at_once_and_says_what_nobody_has_seen(fleet: Fleet) -> None:
    turning = fleet.decodes[0]
    turning.busy = 1
    process = fleet.start(turning.url, "--to", "prefill", "--router", fleet.router)
    wait_for("the router to let it go", lambda: turning.url not in fleet.workers())
    turning.healthy = False  # the router lists it again, and does not route to it
    process.send_signal(signal.SIGINT)
    wait_for("the router to list it again", lambda: turning.url in plain_http.get(f"{fleet.router}/workers").text)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
    assert "interrupted twice. It was being put back into its router; whether it got there nobody has seen" in err
    assert f"curl -s {fleet.router}/workers; if it is not there, add it as a decode" in err


def test_two_do_not_run_at_once(fleet: Fleet) -> None:
    turning = fleet.decodes[0]
    turning.busy = 1
    first = fleet.start(turning.url, "--to", "prefill", "--router", fleet.router)
    wait_for("the router to let it go", lambda: turning.url not in fleet.workers())
    code, _, err = fleet.switch(fleet.prefills[0], "decode")
    assert code == 1
    assert f"another role switch at {fleet.router} is under way (pid {first.pid})" in err
    turning.busy = 0
    first.communicate(timeout=60)
    assert first.returncode == 0


CASES = {
    "flag": (lambda one: one.info.update(enable_pd_role_switch=False), "runs without --enable-pd-role-switch"),
    "version": (lambda one: one.info.pop("enable_pd_role_switch"), "sglang 0.5.23 cannot switch its role"),
    "backend": (
        lambda one: one.info.update(disaggregation_transfer_backend="nixl"),
        "transfer backend 'nixl' does not support runtime role switch",
    ),
    "shape": (lambda one: one.info.update(tp_size=2), "is no decode like the others: tensor parallel size 2"),
    "page": (lambda one: one.info.update(page_size=64), "is no decode like the others: page size 64"),
    "cache": (lambda one: one.info.update(disable_radix_cache=False), "keeps a prefix cache"),
    "health": (lambda one: setattr(one, "healthy", False), "is not healthy: /health answered 503"),
    "alone": (lambda one: setattr(one, "role", "null"), "serves alone (disaggregation_mode null)"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_is_not_tried(fleet: Fleet, name: str) -> None:
    spoil, said = CASES[name]
    turning = fleet.prefills[1]
    spoil(turning)
    code, _, err = fleet.switch(turning, "decode")
    assert code == 1
    assert "nothing was changed" in err
    assert said in err
    assert not turning.of("/pd_role_switch")


def test_one_that_cannot_switch_and_has_the_role_already_is_told_so(fleet: Fleet) -> None:
    turning = fleet.prefills[1]
    turning.info.update(enable_pd_role_switch=False)
    code, _, err = fleet.switch(turning, "prefill")
    assert code == 1
    assert f"{turning.url} is a prefill already, and runs without --enable-pd-role-switch" in err
    assert "leave it as it is; to make it a decode, start it with --enable-pd-role-switch" in err
    assert fleet.workers() == fleet.expected()


@for_each("role", ["prefill", "decode"])
def test_an_instance_of_a_run_gets_the_flag_in_its_topology(fleet: Fleet, role: str) -> None:
    turning = (fleet.prefills if role == "prefill" else fleet.decodes)[1]
    turning.info.update(enable_pd_role_switch=False)
    order = SwitchOrder(
        name=f"{role}-1", url=turning.url, to=other(role), routers=(fleet.router,),
        known=tuple(
            Endpoint(f"{name}-{at}", name, one.url)
            for name, ones in (("prefill", fleet.prefills), ("decode", fleet.decodes))
            for at, one in enumerate(ones)
        ),
    )  # fmt: skip
    (refusal,) = (one for one in refusals(order, probe_fleet(order)) if "runs without" in one.reason)
    assert refusal.reason == f"{role}-1 runs without --enable-pd-role-switch"
    assert refusal.fix == f"pdctl launch … --set roles.{role}.args.enable-pd-role-switch=true"


def test_the_last_of_a_role_stays(fleet: Fleet) -> None:
    fleet.prefills[0].healthy = False
    code, _, err = fleet.switch(fleet.prefills[1], "decode")
    assert code == 1
    assert "without it 0 would be ready (none), and --min-ready is 1" in err
    code, _, err = fleet.switch(fleet.decodes[1], "prefill", "--min-ready", "2")
    assert code == 1
    assert f"without it 1 would be ready ({fleet.decodes[0].url}), and --min-ready is 2" in err


def test_a_prefill_needs_a_bootstrap_port_of_its_own(fleet: Fleet) -> None:
    turning = fleet.decodes[1]
    taken = fleet.prefills[0].bootstrap_port
    turning.info["disaggregation_bootstrap_port"] = taken
    _, _, err = fleet.switch(turning, "prefill")
    assert f"bootstrap address 127.0.0.1:{taken} is already that of {fleet.prefills[0].url}" in err
    del turning.info["disaggregation_bootstrap_port"]
    _, _, err = fleet.switch(turning, "prefill")
    assert "its bootstrap port is not known" in err
    _, _, err = fleet.switch(turning, "prefill", "--bootstrap-port", "9")
    assert "nobody answers at the bootstrap address 127.0.0.1:9" in err
    assert fleet.workers() == fleet.expected()


def test_graphs_are_given_the_memory_that_decodes_use(fleet: Fleet) -> None:
    for number, decode in enumerate(fleet.decodes):
        decode.info["graphs"] = {"decode_cuda_graph_bs": [1, 2], "decode_cuda_graph_memory_gb": 1.5 + number}
    turning = fleet.prefills[1]
    code, _, err = fleet.switch(turning, "decode")
    assert code == 0, err
    assert turning.of("/pd_role_switch")[0]["decode_cuda_graph_memory_gb"] == 2.5


def test_graphs_of_a_size_nobody_knows(fleet: Fleet) -> None:
    for decode in fleet.decodes:
        decode.info["graphs"] = {"decode_cuda_graph_bs": [1, 2]}
    turning = fleet.prefills[1]
    code, _, err = fleet.switch(turning, "decode")
    assert code == 1
    assert "no decode says how much memory they need" in err
    code, _, err = fleet.switch(turning, "decode", "--graph-memory", "3")
    assert code == 0, err


def test_who_is_no_router(fleet: Fleet) -> None:
    turning = fleet.decodes[1]
    process = fleet.start(turning.url, "--to", "prefill", "--router", fleet.prefills[0].url)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "this is an engine" in err


def test_nobody_there(fleet: Fleet) -> None:
    process = fleet.start("http://127.0.0.1:9", "--to", "prefill", "--router", fleet.router)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4
    assert "connection refused" in err


def test_a_url_without_a_router_is_a_question(fleet: Fleet) -> None:
    process = fleet.start(fleet.decodes[0].url, "--to", "prefill")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "who routes to it?" in err
