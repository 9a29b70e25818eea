"""What follows when a process dies or does not end, by the supervisor's own clock: back-offs, deadlines, graces."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pdctl.launch.deployment import Deployment, LaunchOptions, OnDeath, ServerRole
from pdctl.launch.run_opening import open_run
from pdctl.launch.run_record import EventKind, Run, RunEvent, RunOutcome, State
from pdctl.launch.supervisor import STEADY, Supervisor
from pdctl.launch.turned_instances import TurnedInstance, note_role
from tests.launch.conftest import deploy, standin
from tests.launch.virtual import EPOCH, VirtualMailbox, VirtualRuntime, VirtualWatch, started_generations, stop
from tests.ports import free_ports

OPTIONS = LaunchOptions(timeout=60.0, verify=False, backoff=5.0, backoff_max=60.0, drain=10.0, grace=15.0)
HOUR = 3600.0


class Case:
    """One run from its start to its end. `deeds`: what happens, at virtual seconds from the start."""

    def __init__(
        self, folder: Path, deployment: Deployment, deeds: dict[float, Callable[[Case], None]],
        *, deaf: tuple[str, ...] = (), stuck: dict[str, str] | None = None, **changes: object,
    ) -> None:  # fmt: skip
        options = dataclasses.replace(OPTIONS, **changes)  # type: ignore[arg-type]
        opened = open_run(folder, "virtual", deployment, options, check=lambda _: (), argv=("pdctl", "launch"))
        self.box = VirtualMailbox()
        self.runtime = VirtualRuntime(self.box, deaf)
        self.directory = opened.directory
        self.events: list[RunEvent] = []
        for seconds, deed in deeds.items():
            self.box.after(seconds, functools.partial(deed, self))
        watch = functools.partial(VirtualWatch, self.box, stuck if stuck is not None else {})
        supervisor = Supervisor(
            opened.directory, opened.run, self.runtime, self.events.append, mailbox=self.box,
            watch=watch,  # type: ignore[arg-type]
        )  # fmt: skip
        self.outcome: RunOutcome = supervisor.run()
        os.close(opened.lock)

    @property
    def run(self) -> Run:
        return self.directory.load()

    def details(self, kind: EventKind) -> list[tuple[str, str]]:
        return [(event.subject, event.detail) for event in self.events if event.kind is kind]


def kill(name: str) -> Callable[[Case], None]:
    return lambda case: case.runtime.kill_from_outside(name)


def end(case: Case) -> None:
    stop(case.box)


def test_the_deadline_names_what_is_missing(tmp_path: Path) -> None:
    stuck = {"prefill-0": "bootstrap registered 1/2", "decode-0": "/health answers 503"}
    case = Case(tmp_path, deploy(ranks=2), {}, stuck=stuck, timeout=1800.0)
    assert case.outcome.code == 8
    assert case.outcome.message.splitlines() == [
        "not ready after 30m00s",
        "  prefill-0: bootstrap registered 1/2",
        "  decode-0: /health answers 503",
        "  router: not started, it waits for the others",
    ]
    assert 1800.0 <= case.box.now() < 1801.0


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace_and_no_earlier(tmp_path: Path) -> None:
    case = Case(tmp_path, deploy(), {100.0: end}, deaf=("decode-0",))
    assert [subject for subject, _ in case.details(EventKind.KILLED)] == ["decode-0"]
    assert [subject for subject, _ in case.details(EventKind.STOPPED)] == ["router", "prefill-0"]
    assert 100.0 + OPTIONS.grace <= case.box.now() < 101.0 + OPTIONS.grace
    assert case.run.state is State.STOPPED


def test_a_router_that_drains_for_ever_has_its_own_limit(tmp_path: Path) -> None:
    case = Case(tmp_path, deploy(), {100.0: end}, deaf=("router",))
    assert [subject for subject, _ in case.details(EventKind.KILLED)] == ["router"]
    assert 100.0 + OPTIONS.drain <= case.box.now() < 101.0 + OPTIONS.drain


def test_a_dead_instance_is_restarted_in_place_until_the_limit_with_growing_pauses(tmp_path: Path) -> None:
    deeds = {seconds: kill("decode-0") for seconds in (50.0, 100.0, 150.0)}
    case = Case(tmp_path, deploy(), deeds, on_death=OnDeath.INSTANCE, max_restarts=2)
    assert case.details(EventKind.RESTARTING) == [
        ("decode-0", "restarts in 5.0 s (1 of 2)"),
        ("decode-0", "restarts in 10.0 s (2 of 2)"),
    ]
    assert "It had been restarted 2 times before." in case.outcome.message
    starts = [event.at - EPOCH for event in case.events if event.subject == "decode-0" and event.detail == "virtual"]
    assert starts == [pytest.approx(0.0), pytest.approx(55.0), pytest.approx(110.0)]
    assert started_generations(case.run) == {"prefill-0": 1, "decode-0": 3, "router": 1}


def test_earlier_restarts_are_forgiven_after_ten_minutes_of_readiness(tmp_path: Path) -> None:
    deeds = {50.0: kill("decode-0"), 60.0 + STEADY: kill("decode-0"), 100.0 + STEADY: end}
    case = Case(tmp_path, deploy(), deeds, on_death=OnDeath.INSTANCE, max_restarts=1)
    assert [detail for _, detail in case.details(EventKind.RESTARTING)] == ["restarts in 5.0 s (1 of 1)"] * 2
    assert case.outcome.signal


def test_a_restarted_instance_that_never_becomes_ready_has_failed_as_well(tmp_path: Path) -> None:
    def die_for_good(case: Case) -> None:
        case.runtime.kill_from_outside("decode-0")
        stuck["decode-0"] = "weights not loaded"

    stuck: dict[str, str] = {}
    case = Case(tmp_path, deploy(), {50.0: die_for_good}, stuck=stuck, on_death=OnDeath.INSTANCE, max_restarts=1)
    assert "decode-0 was killed by SIGKILL (pdctl ended it) before it was ready." in case.outcome.message
    assert 50.0 + OPTIONS.backoff + OPTIONS.timeout <= case.box.now() < 150.0


def test_the_rest_keeps_serving_while_one_of_several_comes_back_and_after_it_is_given_up(tmp_path: Path) -> None:
    """Of two prefills one dies, comes back, dies again at its limit: the other one serves all the time."""
    deeds = {50.0: kill("prefill-1"), 100.0: kill("prefill-1"), HOUR: end}
    case = Case(tmp_path, deploy(prefills=2), deeds, on_death=OnDeath.KEEP_SERVING, max_restarts=1)
    assert case.details(EventKind.DIED)[-1] == ("prefill-1", "stays down: it was restarted once; prefill-0 goes on")
    assert started_generations(case.run) == {"prefill-0": 1, "prefill-1": 2, "decode-0": 1, "router": 1}
    assert case.outcome.signal, "it served until it was stopped"


def test_when_the_last_of_a_role_dies_after_the_other_was_given_up_the_run_says_so(tmp_path: Path) -> None:
    deeds = {50.0: kill("prefill-1"), 100.0: kill("prefill-1"), 200.0: kill("prefill-0")}
    case = Case(tmp_path, deploy(prefills=2), deeds, on_death=OnDeath.KEEP_SERVING, max_restarts=1)
    assert case.outcome.message.startswith("prefill-0 was killed by SIGKILL")
    assert " The run could not go on: no other prefill is left. " in case.outcome.message


def switch(name: str, role: ServerRole) -> Callable[[Case], None]:
    return lambda case: note_role(case.directory.path, name, TurnedInstance(role, 0))


def test_an_instance_that_switched_counts_in_the_role_it_has_now(tmp_path: Path) -> None:
    """Of two prefills one becomes a decode: another decode may die, and the prefill that is left may not."""
    turned = switch("prefill-1", ServerRole.DECODE)
    deeds = {40.0: turned, 50.0: kill("decode-0"), HOUR: end}
    case = Case(tmp_path / "decode", deploy(prefills=2), deeds, on_death=OnDeath.KEEP_SERVING)
    assert started_generations(case.run) == {"prefill-0": 1, "prefill-1": 1, "decode-0": 2, "router": 1}
    assert case.outcome.signal, "it served until it was stopped"

    deeds = {40.0: turned, 50.0: kill("prefill-0"), HOUR: end}
    case = Case(tmp_path / "prefill", deploy(prefills=2), deeds, on_death=OnDeath.KEEP_SERVING)
    assert " The run could not go on: it was the only prefill, " in case.outcome.message


@pytest.mark.parametrize("name", ["decode-0", "router"])
def test_the_only_one_of_its_role_ends_a_run_that_keeps_serving(tmp_path: Path, name: str) -> None:
    case = Case(tmp_path, deploy(prefills=2), {50.0: kill(name)}, on_death=OnDeath.KEEP_SERVING)
    assert case.outcome.message.startswith(f"{name} was killed by SIGKILL")
    role = name.removesuffix("-0")
    why = f"The run could not go on: it was the only {role}, and keep-serving restarts none that is"
    assert f" after it became ready. {why}; --on-death instance does. " in case.outcome.message


def test_the_nodes_of_an_instance_die_and_come_back_together(tmp_path: Path) -> None:
    deployment = deploy()
    (port,) = free_ports(1)
    second = dataclasses.replace(standin(ServerRole.DECODE, 0, port), name="decode-0-node1", node=1)
    deployment = dataclasses.replace(deployment, roles=(*deployment.roles, second))
    deeds = {50.0: kill("decode-0-node1"), 100.0: end}
    case = Case(tmp_path, deployment, deeds, on_death=OnDeath.INSTANCE, max_restarts=1, deaf=("decode-0",))
    assert started_generations(case.run) == {"prefill-0": 1, "decode-0": 2, "decode-0-node1": 2, "router": 1}
    assert [subject for subject, _ in case.details(EventKind.DIED)] == ["decode-0-node1"]
    assert case.details(EventKind.STOPPED)[0] == ("decode-0", "was killed by SIGKILL (pdctl ended it)")


def test_restart_all_starts_every_process_again(tmp_path: Path) -> None:
    case = Case(tmp_path, deploy(), {50.0: kill("router"), 100.0: end}, on_death=OnDeath.ALL)
    assert set(started_generations(case.run).values()) == {2}
    assert len(case.details(EventKind.SERVING)) == 2


def test_a_death_before_the_run_has_served_ends_it_under_every_policy(tmp_path: Path) -> None:
    for policy in OnDeath:
        case = Case(tmp_path / policy.value, deploy(), {0.5: kill("decode-0")}, on_death=policy)
        assert case.outcome.message.startswith("decode-0 was killed by SIGKILL")
        assert " before it was ready." in case.outcome.message
