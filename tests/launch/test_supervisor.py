"""The whole life of a run, with real processes: started, watched, ended, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pdctl.fleet import listeners
from pdctl.launch import procfs, run_health
from pdctl.launch.deployment import OnDeath
from pdctl.launch.run_record import EventKind, Run, StartStage, State
from tests.launch.conftest import Supervised, deploy, eventually

Launch = Callable[..., Supervised]
AT_ONCE = 40.0  # seconds: less than GRACE, which an orderly end may take
GRACE = 90.0


def alive(run: Run) -> list[int]:
    """Every process of every session the run has started."""
    return [pid for process in run.processes if process.pid for pid in procfs.session(process.pid)]


def test_serves_after_every_stage_and_stops_without_a_trace(launch: Launch) -> None:
    supervised = launch(deploy(prefills=2, ranks=2))
    run = supervised.serving()
    stages = [(event.subject, event.stage) for event in run.events if event.kind is EventKind.STAGE]
    for name in ("prefill-0", "prefill-1"):
        assert {stage for subject, stage in stages if subject == name} == {
            StartStage.STARTED,
            StartStage.BOUND,
            StartStage.WEIGHTS,
            StartStage.REGISTERED,
            StartStage.READY,
        }
    first_router = stages.index(("router", StartStage.STARTED))
    assert all(stages.index((name, StartStage.READY)) < first_router for name in ("prefill-0", "prefill-1", "decode-0"))
    pairs = [event for event in run.events if event.kind is EventKind.PAIR]
    assert {pair.subject for pair in pairs} == {"prefill-0 → decode-0", "prefill-1 → decode-0"}
    assert {pair.detail for pair in pairs} == {"answered"}

    supervised.process.terminate()
    ended = supervised.ended()
    assert supervised.process.returncode == 128 + signal.SIGTERM
    assert ended.state is State.STOPPED
    assert ended.events[-1].detail == "nothing left: 4 processes gone, 6 ports free"
    stopped = [event.subject for event in ended.events if event.kind is EventKind.STOPPED]
    assert stopped[0] == "router"
    assert sorted(stopped[1:]) == ["decode-0", "prefill-0", "prefill-1"]
    assert alive(ended) == []


def test_a_process_that_dies_at_start_is_named_with_its_last_words(launch: Launch) -> None:
    supervised = launch(deploy(faults={"decode-0": ("--exit", "3")}))
    run = supervised.ended()
    assert run.state is State.FAILED
    assert run.outcome is not None
    assert run.outcome.message.startswith("decode-0 left with exit code 3 before it was ready.")
    assert "decode-0 | [" in run.outcome.message
    assert "RuntimeError: no memory for the KV pool" in run.outcome.message
    assert supervised.process.returncode == 1
    assert alive(run) == []


def test_a_pair_that_does_not_answer_is_a_failed_launch(launch: Launch) -> None:
    run = launch(deploy(faults={"decode-0": ("--wrong-answer",)})).ended()
    assert run.state is State.FAILED
    assert run.outcome is not None
    assert run.outcome.message.splitlines() == [
        "1 of 1 prefill and decode pairs do not answer a request",
        "  prefill-0 → decode-0: decode-0 answered 500: "
        "KVTransferError(bootstrap_room=1): Failed to get kvcache from prefill instance",
    ]


def test_the_second_signal_ends_everything_at_once(launch: Launch) -> None:
    slow = ("--slow-stop", "60")
    faults = {"router": (*slow, "--load", "2"), "prefill-0": slow, "decode-0": slow}
    supervised = launch(deploy(faults=faults), drain=60.0, grace=60.0)
    supervised.serving()
    supervised.process.send_signal(signal.SIGINT)
    eventually(lambda: supervised.run.state is State.STOPPING, "the run is stopping")
    assert supervised.run.events[-1].detail == "2 requests in flight"
    began = time.monotonic()
    supervised.process.send_signal(signal.SIGINT)
    run = supervised.ended()
    assert time.monotonic() - began < 30.0, "half of what a drain or an end may take"
    killed = {event.subject: event.detail for event in run.events if event.kind is EventKind.KILLED}
    assert killed == dict.fromkeys(("router", "prefill-0", "decode-0"), "was killed by SIGKILL (pdctl ended it)")
    for name in killed:
        last = supervised.directory.log(name).read_text().splitlines()[-1]
        assert last.endswith(f"pdctl: {name} generation 1 was killed by SIGKILL (pdctl ended it)")
    assert alive(run) == []


def test_sigint_ends_a_run_that_a_shell_started_in_the_background(launch: Launch) -> None:
    """A shell without job control ignores SIGINT for what it starts with `&`, and a child inherits that."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        supervised = launch(deploy())
    finally:
        signal.signal(signal.SIGINT, before)
    supervised.serving()
    supervised.process.send_signal(signal.SIGINT)
    assert supervised.ended().state is State.STOPPED
    assert supervised.process.returncode == 128 + signal.SIGINT


@pytest.mark.skipif(not procfs.LINUX, reason="finding every process needs /proc")
def test_sigkill_of_the_supervisor_leaves_nothing(launch: Launch, tmp_path: Path) -> None:
    brood = tmp_path / "grandchild"
    supervised = launch(deploy(faults={"prefill-0": ("--brood", str(brood), "--deaf")}), grace=GRACE)
    run = supervised.serving()
    grandchild = int(brood.read_text())
    before = alive(run)
    assert grandchild not in before  # it has moved to a session of its own
    assert len(before) == 6  # three commands, each with its keeper
    supervised.process.kill()
    eventually(lambda: not alive(run) and procfs.stat(grandchild) is None, "every process of the run is gone", AT_ONCE)
    supervised.process.wait()
    assert supervised.run.condition is State.STALE


def test_a_death_stops_the_run_and_is_named_first(launch: Launch) -> None:
    supervised = launch(deploy(prefills=2))
    run = supervised.serving()
    pid = run.process("prefill-1").pid
    assert pid is not None
    os.killpg(pid, signal.SIGKILL)
    ended = supervised.ended()
    assert ended.outcome is not None
    assert ended.outcome.message.startswith("prefill-1 was killed by SIGKILL (from outside, or OOM-killed: see dmesg")
    assert [subject for kind, subject in supervised.kinds() if kind == "died"] == ["prefill-1"]
    assert alive(ended) == []


@pytest.mark.skipif(not procfs.LINUX, reason="/proc tells what is stopped")
@pytest.mark.parametrize("name", ["decode-0", "router"])
def test_a_stopped_process_is_named_by_status_with_what_continues_it(
    launch: Launch, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_health, "PROBE", 0.5)
    supervised = launch(deploy())
    pid = supervised.serving().process(name).pid
    assert pid is not None
    pids = procfs.session(pid)  # with the keeper that a foreign command has
    for each in pids:
        os.kill(each, signal.SIGSTOP)
    try:
        eventually(lambda: set(procfs.stopped(pid)) == set(pids), "the process is stopped")
        found = run_health.probe(supervised.run, supervised.directory)
    finally:
        for each in pids:
            os.kill(each, signal.SIGCONT)
    said = {one.name: one for one in found.instances}
    assert not found.ready
    assert said[name].health == "silent"
    assert said[name].missing.startswith("does not answer (for 0.5 s): its process")
    assert said[name].missing.endswith(f"stopped. Continue: kill -CONT {' '.join(map(str, procfs.session(pid)))}")
    if name == "router":
        assert said["decode-0"].missing == "", "nothing is known of what a silent router routes to"
        assert said["decode-0"].in_router is None


def test_status_says_when_a_dead_instance_is_started_again(launch: Launch) -> None:
    supervised = launch(deploy(), on_death=OnDeath.INSTANCE, backoff=600.0, backoff_max=600.0)
    pid = supervised.serving().process("decode-0").pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: ("restarting", "decode-0") in supervised.kinds(), "its restart is planned")
    health = run_health.probe(supervised.directory.look(), supervised.directory)
    missing = {instance.name: instance.missing for instance in health.instances}
    assert re.search(r"^was killed by SIGKILL .*; restarts in \d+m\d\ds$", missing["decode-0"]), missing
    assert "restarts" not in missing["prefill-0"]


@pytest.mark.skipif(not procfs.LINUX, reason="only there a supervisor adopts what its children leave")
def test_a_dead_instance_leaves_no_zombies(launch: Launch) -> None:
    supervised = launch(deploy(faults={"decode-0": ("--child",)}), on_death=OnDeath.INSTANCE, max_restarts=1)
    pid = supervised.serving().process("decode-0").pid
    assert pid is not None
    assert len(procfs.session(pid)) >= 3  # the keeper, the stand-in, its child
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: supervised.kinds().count(("died", "decode-0")) == 1, "the death was noticed")
    assert procfs.session(pid) == procfs.zombies(pid) == ()


def test_restart_all_starts_every_process_again(launch: Launch) -> None:
    supervised = launch(deploy(), on_death=OnDeath.ALL)
    run = supervised.serving()
    pid = run.process("router").pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: supervised.kinds().count(("serving", "")) == 2, "the run serves again")
    assert {process.generation for process in supervised.run.processes} == {2}
    log = supervised.directory.log("router").read_text()
    assert "pdctl: router generation 1 was killed by SIGKILL" in log
    assert "pdctl: router generation 2: " in log


def test_a_run_that_was_killed_frees_its_ports(launch: Launch) -> None:
    deployment = deploy()
    supervised = launch(deployment, grace=GRACE)
    supervised.serving()
    supervised.process.kill()
    taken = [port.port for spec in deployment.specs for port in spec.ports]
    eventually(lambda: all(listeners.is_free(port, "127.0.0.1") for port in taken), "all ports are free", AT_ONCE)


def test_a_supervisor_that_goes_on_by_itself_is_no_leak() -> None:
    """`python -X dev` prints a ResourceWarning for a Popen that is collected while its process lives."""
    code = (
        "import subprocess, sys; from pdctl.launch import remote; "
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE); "
        "pipe = child.stdin; remote.release(child); del child; pipe.close()"
    )
    argv = [sys.executable, "-X", "dev", "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert "ResourceWarning" not in done.stderr


# Put before the supervisor by hand: what nobody foresaw, once, in the thread that watches one process.
RAISING = """
import pathlib, sys
def raising(owner, name, wanted):
    before = getattr(owner, name)
    def call(*words):
        if pathlib.Path({mark!r}).exists() and wanted(*words):
            pathlib.Path({mark!r}).unlink()
            raise KeyError("nobody foresaw")
        return before(*words)
    setattr(owner, name, call)
if "pdctl.launch" in sys.orig_argv:
    from pdctl.launch import process, readiness
    if {what!r} == "watch":
        raising(readiness.ReadinessWatch, "_probe", lambda watch: watch._spec.name == "decode-0")
    else:
        raising(process, "clear_sockets", lambda pid: True)
"""


@pytest.mark.parametrize("what", ["watch", "wait"])
def test_a_thread_of_the_supervisor_that_ends_on_an_error_ends_the_run_and_is_named(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It would wait for ever: for a stage that nobody looks for, for a death that nobody tells."""
    mark, here = tmp_path / "raise", tmp_path / "site"
    here.mkdir()
    (here / "sitecustomize.py").write_text(RAISING.format(mark=str(mark), what=what))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(here), os.environ.get("PYTHONPATH", "")))))
    if what == "watch":
        mark.touch()
    supervised = launch(deploy(), grace=2.0)
    if what == "wait":
        run = supervised.serving()
        mark.touch()
        os.kill(run.process("decode-0").pid, signal.SIGKILL)
    run = supervised.ended()
    assert supervised.process.returncode == 3
    assert run.state is State.FAILED
    assert run.outcome is not None
    assert f"the supervisor's thread {what} decode-0 ended on KeyError: 'nobody foresaw'" in run.outcome.message
    assert "Traceback" in supervised.directory.log("supervisor").read_text()
    assert alive(run) == []
