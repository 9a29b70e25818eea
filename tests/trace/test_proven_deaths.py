"""Who died, when and why: crashes, kills, exit codes, ports that are taken; whoever was told to end did not die."""

from __future__ import annotations

import datetime as dt
import io
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pdctl.cli.diagnose import exit_code
from pdctl.errors import ExitCode
from pdctl.launch.ending_reasons import in_words
from pdctl.launch.run_record import Exit
from pdctl.logs.library import Library
from pdctl.logs.source import open_logs
from pdctl.render.diagnosis_view import show
from pdctl.render.term import Term
from pdctl.trace import proven_deaths
from pdctl.trace.diagnose import diagnose
from pdctl.trace.observed_deployment import ObservedDeployment
from tests.cases import for_each
from tests.trace import pasted
from tests.trace.engines import ACCESS, at, engine, finished, received, rid, sending
from tests.trace.recordings import diagnosis, library, logs, tracer, truth

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.trace.deployment_report import Diagnosis


def test_a_traceback_is_read_to_the_exception_it_ends_with() -> None:
    (death,) = diagnosis("1p1d-dp-attention-crash-debug-sgl058").deaths
    assert "cannot reshape tensor of 0 elements" in death.why


def test_of_an_exception_raised_from_another_the_later_one_stands() -> None:
    """sglang 0.5.22: a decode that sees no memory cgroup; the second message says what to do."""
    (death,) = diagnosis("2p1d-hicache-crash-info-sgl0522").deaths
    assert death.why.startswith("its scheduler crashed: RuntimeError: Cannot automatically size HiCache host memory;")


FORGED = "[2026-11-21 02:10:00] Scheduler hit an exception: Traceback (most recent call last):"


@pytest.mark.parametrize(
    "line",
    [
        "Receive: obj=GenerateReqInput(rid='a {}', bootstrap_room=None)",
        'Receive: obj=GenerateReqInput(rid="it\'s {}", bootstrap_room=None)',
        "Receive: obj=GenerateReqInput(rid='a', text='\\'{}', bootstrap_room=None), headers={{'x': '{}'}}",
        "Answered POST /generate with 400: rid must be 1 to 256 printable characters, got 'x\\x1b[2J\\n{}'",
        "Room step: room=7 rid='a {}' phase=prealloc bootstrap_addr=127.0.0.1:8998",
        "Req a {} optimistic prefill retry 1/3",
        "ReqTimeStats(rid=a {}, bootstrap_room=7, input_len=8, type=decode): transfer_duration=8.30ms",
    ],
)
def test_what_a_client_wrote_into_a_line_kills_nobody(line: str, tmp_path: Path) -> None:
    path = tmp_path / "decode-0.log"
    path.write_text("\n".join(engine("decode", 30000, 8998, f"{at(600)} {line.format(FORGED, FORGED)}")) + "\n")
    found = diagnose(library([str(path)]))
    assert found.deaths == ()
    assert not found.wrong


BEGUN = "[2026-11-22 19:47:40] server_args={'port': 30000, 'disaggregation_mode': 'prefill'}"
CRASHED = "Subprocess scheduler_0 (pid=1839) crashed with exit code -15. Triggering SIGQUIT for cleanup..."


@pytest.mark.parametrize(
    ("order", "ended", "dead"),
    [
        ("15 SIGTERM received. signum=None frame=None. Draining requests and shutting down...", "16 " + CRASHED, False),
        (
            "15 SIGTERM received. signum=None frame=None. Draining requests and shutting down...",
            "16 " + CRASHED.replace("-15", "-11"),
            True,
        ),
        ("15 Something else.", "16 " + CRASHED, True),
        ("01 SIGTERM received. signum=None frame=None. Draining requests and shutting down...", "59 " + CRASHED, True),
    ],
)
@pytest.mark.parametrize("again", [False, True], ids=["last start", "an earlier start"])
def test_children_that_end_of_the_same_order_are_no_crash(
    tmp_path: Path, order: str, ended: str, dead: bool, again: bool
) -> None:
    lines = [BEGUN, *(f"[2026-11-22 19:51:{said[:2]}]{said[2:]}" for said in (order, ended))]
    lines += [
        f"[2026-11-22 19:51:{ended[:2]}] SIGQUIT received. signum=None, frame=None. It usually means one child failed."
    ]
    lines += [BEGUN.replace("19:47:40", "19:53:00")] if again else []
    found = diagnose(library(write(tmp_path, prefill=lines)))
    assert bool(found.deaths) is dead


def write(folder: Path, **files: Sequence[str]) -> list[str]:
    paths = []
    for name, lines in files.items():
        path = folder / f"{name}.log"
        path.write_text("".join(f"{line}\n" for line in lines))
        paths.append(str(path))
    return paths


CRASH = (
    "Scheduler hit an exception: Traceback (most recent call last):",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
)


def test_a_crash_of_an_earlier_start_is_a_death_too(tmp_path: Path) -> None:
    first = engine("decode", 30002, 8999, f"{at(60)} {CRASH[0]}", '  File "x.py", line 1, in run', CRASH[1], until=61)
    again = [line.replace(at(0), at(90)).replace(at(1), at(91)) for line in engine("decode", 30002, 8999, until=900)]
    paths = write(tmp_path, decode=[*first, *again], prefill=engine("prefill", 30000, 8998, until=900))
    found = diagnose(library(paths))
    assert [(one.instance, one.code) for one in found.deaths] == [("decode", "PD709")]
    assert "out of memory" in found.deaths[0].why


def test_an_engine_that_ends_itself_says_of_what(tmp_path: Path) -> None:
    why = "rank TP0 cannot go on: its thread kv-transfer-0 ended on KeyError: 7"
    end = f"{at(60)} Instance ends: {why}. A rank cannot be replaced alone; start the instance again."
    paths = write(
        tmp_path,
        decode=engine("decode", 30002, 8999, end, until=60),
        prefill=engine("prefill", 30000, 8998, until=900),
    )
    found = diagnose(library(paths))
    assert [(one.instance, one.code) for one in found.deaths] == [("decode", "PD709")]
    assert found.deaths[0].why == f"it ended itself: {why}"


def test_a_log_that_merely_stops_is_no_death(tmp_path: Path) -> None:
    paths = write(
        tmp_path, decode=engine("decode", 30002, 8999, until=60), prefill=engine("prefill", 30000, 8998, until=900)
    )  # fmt: skip
    found = diagnose(library(paths))
    assert not found.deaths
    assert not found.wrong


def test_a_death_without_a_room_speaks_of_none() -> None:
    told = library(logs("1p1d-decode-killed-info-sgl0523"))
    (gone,) = proven_deaths.proven_deaths(told, ObservedDeployment.of(told), list(told.said(proven_deaths.shows_death)))
    assert (
        proven_deaths.reported_death(gone, (), None).headline == "decode0 died; no room is known to have broken of it"
    )


def test_a_death_is_told_in_the_words_of_its_rooms() -> None:
    """Whether it died before it got them or while it had them: `trace-room` must not say another thing."""
    told = library(logs("pdctl-killed-decode"))
    room = tracer("pdctl-killed-decode").trace(5356430874981527)
    assert room.cause is not None
    assert room.cause.headline == "decode-0 died before it got the room"
    (gone,) = proven_deaths.proven_deaths(told, ObservedDeployment.of(told), list(told.said(proven_deaths.shows_death)))
    assert proven_deaths.reported_death(gone, (room,), None).headline == room.cause.headline
    had = room._replace(cause=room.cause._replace(headline="decode-0 died while it had the room"))
    assert proven_deaths.reported_death(gone, (had,), None).headline == had.cause.headline
    assert proven_deaths.reported_death(gone, (room, had), None).headline == (
        "decode-0 died while it had rooms, and before it got others"
    )
    late = room._replace(cause=room.cause._replace(headline="decode-0 died before the room was over"))
    assert proven_deaths.reported_death(gone, (late, had), None).headline == "decode-0 died before its rooms were over"


@for_each("scenario", ["2p1d-decode-killed-info-sgl0521", "2p1d-decode-killed-info-sgl0522"])
def test_a_decode_is_not_said_to_have_had_a_room_that_came_after_its_death(scenario: str) -> None:
    late = [room for room, happened in truth(scenario).items() if happened["cause"] and happened["decode"] is None]
    assert late
    for room in late:
        cause = tracer(scenario).trace(int(room)).cause
        assert cause is not None
        assert cause.headline == "decode0 died before the room was over", room


@pytest.mark.parametrize(
    ("reason", "dead"),
    [("no connection within 3 s", False), ("connection refused", True), ("connection reset by peer", True)],
    ids=["silent", "refused", "reset"],
)
def test_a_process_whose_launcher_wrote_no_end_is_dead_only_where_nobody_takes_connections(
    reason: str, dead: bool, tmp_path: Path
) -> None:
    """One that was stopped (SIGSTOP) writes nothing and answers nobody, and takes connections all the same."""
    begin = f"{at(0)} pdctl: prefill-0 generation 1: python3 -m pdctl.engine --host 127.0.0.1 --port 30000 "
    silent = [
        begin + "--disaggregation-mode prefill --disaggregation-bootstrap-port 8998",
        *engine("prefill", 30000, 8998, until=20),
    ]
    checks = [
        f"{at(second)} Health check {number} failed: prefill http://127.0.0.1:30000 {reason}"
        for number, second in enumerate((30, 40, 50), 1)
    ]
    router = [
        f"{at(1)} Router listening on http://127.0.0.1:8000 policy=round_robin "
        "prefill=[('http://127.0.0.1:30000', 8998)] decode=['http://127.0.0.1:30002']",
        *checks,
        f"{at(51)} WARNING Worker prefill http://127.0.0.1:30000 not routed to bootstrap_port=8998 source=flag: "
        f"3 health checks failed in a row: {reason}",
    ]
    found = diagnose(pasted.library(tmp_path, p0=silent, d0=engine("decode", 30002, 8998), router=router))
    assert [death.instance for death in found.deaths] == (["p0"] if dead else [])


ROUTER_BEGAN = (
    "2026-11-24 01:46:02  INFO smg::server: server.rs:794: Starting router on {}:18342 | mode: PrefillDecode {{ "
    'prefill_urls: [("http://127.0.0.1:30000", Some(8998))], decode_urls: ["http://127.0.0.1:30002"], prefill_policy: '
    "None, decode_policy: None }} | policy: CacheAware {{ cache_threshold: 0.3 }} | max_payload: 512MB"
)
NO_LISTENER = [
    (f"{at(1)} ERROR cannot listen on 10.9.9.9:18342: Cannot assign requested address; no interface has it", "PD225"),
    (f"{at(1)} ERROR cannot listen on 10.9.9.9:18342: Permission denied; free the port", "PD225"),
    (f"{at(1)} ERROR cannot listen on 10.9.9.9:18342: Address already in use; free the port", "PD218"),
    ("Error starting router: Cannot assign requested address (os error 99)", "PD225"),
    ("Error starting router: Address already in use (os error 98)", "PD218"),
    ("Error starting router: Invalid address: invalid socket address syntax", "PD220"),
    (
        "Error starting router: Failed to bind the HTTP listener on 10.9.9.9:18342: Cannot assign requested address "
        "(os error 99)", "PD225",
    ),
    (
        "Error starting router: Failed to bind the HTTP listener on 10.9.9.9:18342: Address already in use (os error "
        "98)", "PD218",
    ),
    (
        "Error starting router: Configuration error: Invalid value for field 'host': 10.9.9.9 - invalid bind host "
        "'10.9.9.9': expected an IP address such as 0.0.0.0, ::, [::] or [fd00::1]", "PD220",
    ),
]  # fmt: skip


@for_each(("line", "code"), NO_LISTENER)
@pytest.mark.parametrize("launched", [False, True])
def test_a_router_that_cannot_listen_is_named_with_the_fix(
    tmp_path: Path, line: str, code: str, launched: bool
) -> None:
    """pdctl's own, sglang-router 0.3.2 and smg 1.13.0, by itself and under `pdctl launch`, which adds an exit code."""
    own = "cannot listen" in line
    lines = [ROUTER_BEGAN.format("10.9.9.9"), line] if not own else [line]
    if launched:
        ran = "pdctl.router --host 10.9.9.9 --port 18342" if own else "sglang_router.launch_router --host 10.9.9.9"
        lines = [f"{at(0) if own else '[2026-11-24 01:46:01]'} pdctl: router generation 1: python3 -m {ran}", *lines]
        end = at(2) if own else "[2026-11-24 01:46:03]"
        lines.append(f"{end} pdctl: router generation 1 left with exit code 1")
    found = diagnose(library(write(tmp_path, router=lines)))
    told = found.deaths if launched else found.findings
    assert [(one.instance, one.code) for one in told] == [("router", code)]
    assert not (found.findings if launched else found.deaths), "it is told once"
    where = {"PD218": "port 18342 ", "PD220": "`10.9.9.9`", "PD225": "10.9.9.9:18342"}[code]
    assert where in told[0].headline
    assert line.partition("ERROR ")[2] in told[0].why or line in told[0].why
    assert told[0].fix
    key = "router.port" if code == "PD218" or "denied" in line else "router.host"
    assert (f"--set {key}=" in told[0].fix) is launched
    assert not (launched and "--host" in told[0].fix)
    assert exit_code(found) is ExitCode.FINDINGS


@pytest.mark.parametrize(
    "line",
    [
        "cannot listen on 10.0.0.1:30000: Cannot assign requested address. no interface of this machine has 10.0.0.1",
        "cannot listen on the bootstrap port 10.0.0.1:8998: Address already in use. give another one",
        "bootstrap server cannot listen on 10.0.0.1:8998: Address already in use. another process holds port 8998",
        "cannot listen on the port of --dist-init-addr 0.0.0.0:29500: Address already in use. give another",
        "cannot listen on the group node port of --dist-init-addr 10.0.0.1:29501: Address already in use. give another",
        "cannot listen on 10.0.0.1:29501 for the other nodes: Address already in use. give another --dist-init-addr",
        "cannot listen on tcp://10.0.0.1:29502 for the ranks: Address already in use. give another --dist-init-addr",
        "rank 0 of 2 cannot listen at tcp://10.0.0.1:29500, where the ranks meet: the port of --dist-init-addr is "
        "taken. give another --dist-init-addr, the same to every node",
    ],
)
def test_an_engine_that_cannot_listen_is_named(tmp_path: Path, line: str) -> None:
    begun = f"{at(0)} pdctl: prefill-0 generation 1: {BY_PDCTL.replace('decode', 'prefill')}"
    end = f"{at(2)} pdctl: prefill-0 generation 1 left with exit code 1"
    (death,) = diagnose(library(write(tmp_path, prefill=[begun, f"{at(1)} {line}", end]))).deaths
    assert death.code == ("PD225" if "Cannot assign" in line else "PD218")
    port = line.partition(",")[0].split(":")[-1] if "rank 0" in line else ""
    assert port in death.headline
    assert death.why == f"it left with exit code 1: {line}"


@for_each("times", [(0, 90), (0, 2)])
def test_an_uncaught_exception_tells_why_however_long_the_imports_took(tmp_path: Path, times: tuple[int, int]) -> None:
    """Python prints it last, without a time, and a start on a busy machine prints nothing for minutes before."""
    begun = f"{at(times[0])} pdctl: prefill-0 generation 1: python3 -m sglang.launch_server --port 30000"
    raised = (
        "Traceback (most recent call last):",
        '  File "/srv/run.py", line 1, in <module>',
        "ImportError: no libcudart",
    )
    end = f"{at(times[1])} pdctl: prefill-0 generation 1 left with exit code 1"
    (death,) = diagnose(library(write(tmp_path, prefill=[begun, *raised, end]))).deaths
    assert death.why == "it left with exit code 1: ImportError: no libcudart"


BY_PDCTL = "python3 -m pdctl.engine --host 127.0.0.1 --port 30002 --disaggregation-mode decode"
# Each way in which launch ends a process, and what that may do then: it follows, is killed, fails or crashes.
ENDS_BY_ORDER = (
    Exit(0, 9, 0.0, ours=True), Exit(0, 9, 0.0, ours=True, asked=True), Exit(0, 9, 0.0, asked=True),
    Exit(0, 0, 0.0, asked=True), Exit(0, 15, 0.0, asked=True), Exit(1, 0, 0.0, asked=True),
    Exit(143, 0, 0.0, asked=True), Exit(127, 0, 0.0, asked=True), Exit(0, 6, 0.0, asked=True),
    Exit(0, 11, 0.0, asked=True), Exit(0, 35, 0.0, asked=True),
)  # fmt: skip


def launched(tmp_path: Path, *ends: str, last: str = "") -> Diagnosis:
    """A decode that pdctl launched, and started again after each of its ends. last: its own last line, at 140."""
    lines = []
    for number, end in enumerate(ends, 1):
        first = 100 * number
        lines += [
            f"{at(first)} pdctl: decode-0 generation {number}: {BY_PDCTL}",
            *(line.replace(at(1), at(first + 1)) for line in engine("decode", 30002, 8999)[1:]),
            *([last.replace(at(140), at(first + 40))] if last else []),
            f"{at(first + 50)} pdctl: decode-0 generation {number} {end}",
        ]
    path = tmp_path / "decode-0.log"
    path.write_text("\n".join(lines) + "\n")
    return diagnose(library([str(path)]))


KILLED = "was killed by SIGKILL (from outside, or OOM-killed: see dmesg)"


def test_a_kill_that_the_launcher_saw_is_not_said_to_be_unknown(tmp_path: Path) -> None:
    found = launched(tmp_path, KILLED)
    (death,) = found.deaths
    assert "was killed by SIGKILL" in death.why
    assert "dmesg" in death.fix
    (asked,) = [one for one in found.unknowns if "SIGKILL" in one.what]
    assert not any("what ended" in one.what for one in found.unknowns)
    assert asked.what.startswith("who sent SIGKILL")
    assert "kubectl" not in f"{death.fix} {asked.enable_with}"


def test_the_command_of_a_fix_names_a_file_that_is_there(tmp_path: Path) -> None:
    """A run's log is called `RUN/logs/…` in answers, which is no path from where the command is pasted."""
    logs = tmp_path / "my logs"
    logs.mkdir()
    launched(logs, "was killed by SIGSEGV (it crashed in native code)")
    path = str(logs / "decode-0.log")
    (log,) = open_logs([path], names={path: "decode-0"})
    part = log.parts[0]._replace(origin="e/logs/decode-0.log")
    (death,) = diagnose(Library((log._replace(parts=(part,)),))).deaths
    assert death.evidence[0].file == "e/logs/decode-0.log"
    assert death.fix == f"tail -n 50 '{path}'"


def test_every_start_that_was_killed_is_a_death(tmp_path: Path) -> None:
    found = launched(tmp_path, KILLED, KILLED)
    assert [one.instance for one in found.deaths] == ["decode-0", "decode-0"]


@for_each("exit", [one for one in ENDS_BY_ORDER if one.signal or one.code])
def test_an_end_that_pdctl_ordered_is_no_death(tmp_path: Path, exit: Exit) -> None:
    """In the words that the supervisor writes of it, whatever the process then does."""
    found = launched(tmp_path, in_words(exit))
    assert not found.deaths
    assert not found.unknowns or not any("decode-0" in one.what and "SIGKILL" in one.what for one in found.unknowns)


def test_who_left_with_an_exit_code_died_and_who_was_ended_because_of_it_did_not(tmp_path: Path) -> None:
    lines = {
        "prefill-0": (f"{at(11)} free the port: 30000 is taken", "left with exit code 1"),
        "prefill-1": (f"{at(11)} Draining.", "was killed by SIGTERM (pdctl ended it)"),
        "decode-0": (f"{at(12)} Shutting down: 0 request(s) running, grace 10 s", "left with exit code 0"),
    }
    for name, (last, end) in lines.items():
        begin = f"{at(10)} pdctl: {name} generation 1: {BY_PDCTL.replace('decode', name.partition('-')[0])}"
        write(tmp_path, **{name: (begin, last, f"{at(12)} pdctl: {name} generation 1 {end}")})
    found = diagnose(library([str(tmp_path / f"{name}.log") for name in lines]))
    (death,) = found.deaths
    assert (death.instance, death.code, death.why) == (
        "prefill-0", "PD705", "it left with exit code 1: free the port: 30000 is taken",
    )  # fmt: skip
    assert [line.line for line in death.evidence] == [3, 2]
    said = [note for note in found.notes if note.startswith("no cause: after prefill-0 had died, ")]
    assert [note.partition("died, ")[2].partition(" (")[0] for note in said] == [
        "pdctl ended prefill-1", "an order ended decode-0",
    ]  # fmt: skip


@pytest.mark.parametrize("again", [True, False])
def test_a_death_before_a_new_start_is_not_why_the_others_were_ended_later(tmp_path: Path, again: bool) -> None:
    """After the stop of a run, what `down` had ended was said to have ended because of a death a minute before."""
    stopped = "was killed by SIGTERM (pdctl ended it)"
    begin = {name: f"pdctl: {name} generation {{}}: {BY_PDCTL}" for name in ("decode-0", "decode-1")}
    later = [f"{at(17)} {begin['decode-0'].format(2)}", f"{at(80)} pdctl: decode-0 generation 2 {stopped}"]
    lines = [f"{at(10)} {begin['decode-0'].format(1)}", f"{at(12)} pdctl: decode-0 generation 1 {KILLED}"]
    write(tmp_path, **{"decode-0": [*lines, *(later if again else [])]})
    others = [f"{at(10)} {begin['decode-1'].format(1)}", f"{at(80)} pdctl: decode-1 generation 1 {stopped}"]
    write(tmp_path, **{"decode-1": others})
    found = diagnose(library([str(tmp_path / f"{name}.log") for name in begin]))
    assert [one.instance for one in found.deaths] == ["decode-0"]
    assert any("decode-0 had died, pdctl ended decode-1" in note for note in found.notes) is not again


@pytest.mark.parametrize("ended", ["pdctl ended it", "from outside, or OOM-killed: see dmesg"])
def test_rooms_that_the_stop_of_a_run_cut_are_said_to_be(tmp_path: Path, ended: str) -> None:
    """Two Ctrl-C: the router has lines of the room, the decode none after it took it, and each is killed."""
    room, who = 8467546191872496, "2f" * 16
    begin = f"{at(10)} pdctl: decode-0 generation 1: {BY_PDCTL}"
    end = f"{at(80)} pdctl: decode-0 generation 1 was killed by SIGKILL ({ended})"
    write(tmp_path, **{"decode-0": [begin, received(70, room, who), sending(70, room), end]})
    found = diagnose(library([str(tmp_path / "decode-0.log")]))
    said = "1 room was cut by the stop of the run: pdctl ended decode-0"
    assert any(note.startswith(said) for note in found.notes) is (ended == "pdctl ended it")


CRASHED_ON = f"{at(140)} Scheduler hit an exception: Traceback (most recent call last):\nRuntimeError: no memory"


@pytest.mark.parametrize(
    ("last", "end", "code"),
    [
        (CRASHED_ON, "left with exit code 1", "PD709"),
        (CRASHED_ON, "was killed by SIGKILL (from outside, or OOM-killed: see dmesg)", "PD709"),
        ("", "left with exit code 1", "PD704"),
        ("", "was killed by signal 35", "PD704"),
        (f"{at(140)} Shutting down: 0 request(s) running, grace 10 s", "left with exit code 1", ""),
        (f"{at(140)} Shutting down: 0 request(s) running, grace 10 s", KILLED, "PD704"),
        ("", "was killed by SIGTERM", ""),
    ],
    ids=["crash", "crash and kill", "exit code", "signal", "ordered", "ordered and killed", "of an older pdctl"],
)
@pytest.mark.parametrize("starts", [1, 2])
def test_each_start_that_ended_is_judged_by_its_own_lines(
    tmp_path: Path, last: str, end: str, code: str, starts: int
) -> None:
    """Twice the same end: what an earlier start said tells nothing of a later one, and each is told once."""
    found = launched(tmp_path, *[end] * starts, last=last)
    assert [one.code for one in found.deaths] == [code] * starts if code else not found.deaths
    assert all("no memory" in one.why for one in found.deaths if code == "PD709")


@pytest.mark.parametrize(
    ("end", "fix"),
    [
        ("was lost with its node n3 (DOWN+NOT_RESPONDING)", "scontrol show node n3"),
        ("was killed by SIGSEGV (it crashed in native code)", "tail -n 50 "),
    ],
)
def test_an_end_whose_reason_is_written_down_leaves_no_question(tmp_path: Path, end: str, fix: str) -> None:
    found = launched(tmp_path, end)
    (death,) = found.deaths
    assert fix in death.fix
    assert not death.untold


def test_of_a_process_whose_launcher_is_not_known_both_places_are_named() -> None:
    (death,) = diagnosis("1p1d-decode-killed-info-sgl0523").deaths
    assert "dmesg" in death.fix
    assert "kubectl describe pod" in death.fix
    assert death.untold[0].what.startswith("what ended decode0")


@pytest.mark.parametrize("again", [True, False])
def test_a_decode_that_started_again_after_its_death_is_said_to_be_back(tmp_path: Path, again: bool) -> None:
    """Only the last start tells that it serves; what an earlier start answered shows nothing of the later one."""
    listens = "INFO:     Uvicorn running on http://127.0.0.1:30002 (Press CTRL+C to quit)"
    answer = ACCESS.format(1, "/generate", "200 OK")
    lines = []
    for number in (1, 2, 3):
        first = 100 * number
        said = [
            f"pdctl: decode-0 generation {number}: {BY_PDCTL}",
            listens,
            "The server is fired up and ready to roll!",
        ]
        said += [answer] if number < 3 or again else []
        said += [f"pdctl: decode-0 generation {number} {KILLED}"] if number < 3 else []
        lines += [f"{at(first + 10 * place)} {text}" for place, text in enumerate(said)]
    path = tmp_path / "decode-0.log"
    path.write_text("\n".join(lines) + "\n")
    found = diagnose(library([str(path)]))
    assert [one.serves for one in found.deaths] == [False, again]
    assert [one.back is not None and one.back > one.at for one in found.deaths] == [True, True]
    written = io.StringIO()
    show(found, Term(written), dt.timezone.utc)
    told = [line for line in written.getvalue().splitlines() if "since then:" in line]
    assert [("started at 2026-11-21 02:" in line, "answered requests since" in line) for line in told] == [
        (True, False),
        (True, again),
    ]


RAN = (
    f"{at(30)} Decode batch, #running-req: 1, #token: 71, token usage: 0.02, pre-allocated usage: 0.00, "
    "#prealloc-req: 0, #transfer-req: 0, #retracted-req: 0, cpu graph: False, gen throughput (token/s): 72.13, "
    "#queue-req: 0, "
)
ROOM, NEXT = 7179054193972827371, 7179054193972827372
ANSWER = f'{at(31)} INFO:     127.0.0.1:1 - "POST /generate HTTP/1.1" 200 OK'


@pytest.mark.parametrize(
    ("more", "since", "running"),
    [
        ("", (), 1),
        (", log_requests=True", (finished(31, ROOM, rid(ROOM)),), 0),
        (", log_requests=True", (received(31, NEXT, rid(NEXT)), ANSWER, finished(31, NEXT, rid(NEXT))), 1),
        ("", (ANSWER,), 0),
        ("", (f"{at(31)} Using regular tokenizer for 1 inputs", ANSWER), 1),
    ],
)
def test_what_ended_between_the_last_batch_line_and_the_death_did_not_die_with_it(
    tmp_path: Path, more: str, since: Sequence[str], running: int
) -> None:
    path = tmp_path / "decode-0.log"
    end = f"{at(32)} pdctl: decode-0 generation 1 {KILLED}"
    path.write_text("\n".join([*engine("decode", 30002, 8999, RAN, *since, more=more)[:-1], end]) + "\n")
    (death,) = diagnose(library([str(path)])).deaths
    assert death.running == running


def test_a_room_that_died_while_it_ran_is_told_once() -> None:
    found = diagnosis("1p1d-decode-killed-debug-sgl058")
    (death,) = found.deaths
    assert (len(death.rooms), death.running) == (1, 1)
    assert _took_along(found) == f"1 room ({death.rooms[0]})"
    three = found._replace(deaths=(death._replace(running=3),))
    also = "and at least 2 more running requests by its last batch line"
    assert _took_along(three) == f"1 room ({death.rooms[0]}) {also}"


def _took_along(found: Diagnosis) -> str:
    written = io.StringIO()
    show(found, Term(written), dt.timezone.utc)
    (line,) = [line for line in written.getvalue().splitlines() if "took along:" in line]
    return line.partition(": ")[2]
