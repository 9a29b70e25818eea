"""diagnose on every recorded deployment: each death and its cause is named, and nothing is said of the healthy ones."""

from __future__ import annotations

import datetime as dt
import gzip
import io
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from pdctl.cli.diagnose import exit_code
from pdctl.engines.prefix import COLOUR
from pdctl.errors import ExitCode
from pdctl.launch.ending_reasons import in_words
from pdctl.launch.run_record import Exit
from pdctl.logs.library import Library
from pdctl.logs.source import open_logs
from pdctl.render.diagnosis_view import show
from pdctl.render.term import Term
from pdctl.trace import proven_deaths
from pdctl.trace.deployment_report import SourceKind
from pdctl.trace.diagnose import diagnose, diagnose_each
from pdctl.trace.observed_deployment import ObservedDeployment
from pdctl.trace.summaries import ListNotes, room_summaries
from pdctl.trace.tracer import Tracer
from tests.cases import for_each
from tests.trace import pasted
from tests.trace.engines import at, engine, finished, received, rid
from tests.trace.recordings import ROOMS, SCENARIOS, diagnosis, library, logs, tracer, truth

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.trace.deployment_report import Diagnosis


class Truth(NamedTuple):
    """What happened: who died, under which code, how many rooms that took along; codes of other causes."""

    deaths: tuple[tuple[str, str, int], ...] = ()
    findings: tuple[str, ...] = ()


FINE = Truth()
UNASKED = frozenset({"1p1d-spawn-mixed-sgl058"})  # started, warmed up and ended: nobody sent it a request
NULL_PORTS = Truth(findings=("PD201",))
HAPPENED = {
    "1p0d-prefill-alone-debug-sgl058": Truth(findings=("PD712",)),
    "1p1d-decode-killed-debug-sgl058": Truth((("decode0", "PD704", 1),)),
    "1p1d-decode-killed-info-sgl0523": Truth((("decode0", "PD704", 5),)),
    "1p1d-dp-attention-crash-debug-sgl058": Truth((("prefill0", "PD709", 0),)),
    "1p1d-dp2-tp1-debug-sgl058": FINE,
    "1p1d-duplicate-room-debug-sgl058": Truth((("prefill0", "PD707", 2),)),
    "1p1d-healthy-debug-sgl058": FINE,
    "1p1d-healthy-mooncake-debug-sgl058": FINE,
    "1p1d-page-size-debug-sgl0523": Truth((("decode0", "PD302", 5),)),
    "1p1d-page-size-debug-sgl058": Truth((("decode0", "PD302", 0),)),
    "1p1d-spawn-mixed-sgl058": FINE,
    "1p1d-tp1-tp2-debug-sgl058": FINE,
    "1p1d-tp1-tp2-info-timestats-sgl0523": FINE,
    "1p1d-tp2-tp1-debug-sgl058": Truth(findings=("PD305",)),
    "1p1d-wrong-port-debug-sgl058": Truth(findings=("PD202",)),
    "1p1d-wrong-port-info-sgl0523": Truth(findings=("PD202",)),
    "2p1d-decode-killed-info-sgl0522": Truth((("decode0", "PD704", 9),)),
    "2p1d-healthy-debug-sgl0518": FINE,
    "2p1d-healthy-debug-sgl0523": FINE,
    "2p1d-healthy-debug-sgl058": FINE,
    "2p1d-healthy-info-log-requests-sgl0523": FINE,
    "2p1d-healthy-info-sgl0522": FINE,
    "2p1d-healthy-info-sgl0523": FINE,
    "2p1d-hicache-crash-info-sgl0522": Truth((("decode0", "PD709", 0),)),  # then the others got SIGTERM, all processes
    "2p1d-missing-ports-debug-sgl0518": NULL_PORTS,
    "2p1d-missing-ports-debug-sgl058": NULL_PORTS,
    "2p1d-missing-ports-info-log-requests-sgl058": NULL_PORTS,
    "2p1d-missing-ports-info-sgl0522": NULL_PORTS,
    "2p1d-missing-ports-info-sgl0523": NULL_PORTS,
    "2p1d-missing-ports-mooncake-debug-sgl058": NULL_PORTS,
    "2p1d-missing-ports-spawn-debug-sgl058": NULL_PORTS,
    "2p1d-prefill-killed-debug-sgl0523": Truth((("prefill0", "PD705", 4),)),
    "2p1d-prefill-killed-info-sgl0522": Truth((("prefill0", "PD705", 8),)),
    "2p1d-swapped-ports-info-log-requests-sgl0523": Truth(findings=("PD203", "PD203")),
    "2p1d-swapped-ports-info-sgl0522": Truth(findings=("PD203", "PD203")),
    "pdctl-killed-decode": Truth((("decode-0", "PD704", 2),)),
    "pdctl-killed-prefill": Truth((("prefill-0", "PD705", 2),)),
    "pdctl-killed-router": Truth((("router", "PD720", 6),)),
    "pdctl-missing-bootstrap-port": NULL_PORTS,
    "pdctl-page-size-mismatch": Truth((("decode-0", "PD302", 1),)),
    "pdctl-slow-transfer": Truth(findings=("PD412",)),
    "pdctl-swapped-bootstrap-ports": Truth(findings=("PD203", "PD203")),
    "pdctl-wrong-bootstrap-port": Truth(findings=("PD202",)),
}


def test_every_recording_is_here() -> None:
    assert set(SCENARIOS) <= set(HAPPENED)


@for_each("scenario", SCENARIOS)
def test_what_happened_is_named_and_nothing_else(scenario: str) -> None:
    found, happened = diagnosis(scenario), HAPPENED[scenario]
    assert tuple((one.instance, one.code, len(one.rooms)) for one in found.deaths) == happened.deaths
    assert tuple(sorted(one.code for one in found.findings)) == happened.findings
    assert found.wrong == (happened != FINE)
    assert found.fine == (happened == FINE and scenario not in UNASKED)
    assert found.told


def test_given_together_each_is_judged_as_when_given_alone() -> None:
    found = {Path(each.directory).name: each.diagnosis for each in diagnose_each(library([str(ROOMS)]))}
    assert set(found) == set(HAPPENED)
    for scenario, happened in HAPPENED.items():
        told = found[scenario]
        assert tuple((one.instance, one.code, len(one.rooms)) for one in told.deaths) == happened.deaths, scenario
        assert tuple(sorted(one.code for one in told.findings)) == happened.findings, scenario
        assert (told.wrong, told.fine) == (happened != FINE, happened == FINE and scenario not in UNASKED), scenario


@for_each("scenario", SCENARIOS)
def test_every_broken_room_belongs_to_a_death_or_a_finding(scenario: str) -> None:
    known = {room: what for room, what in truth(scenario).items() if "outcome" not in what.get("untold", ())}
    broken = {int(room) for room, what in known.items() if what["outcome"] in ("failed", "hung")}
    found = diagnosis(scenario)
    told = {room for one in found.deaths for room in one.rooms}
    told |= {room for one in found.findings for room in one.rooms}
    assert broken <= told | set(found.tally.unexplained)
    assert not found.tally.unexplained


@for_each("scenario", SCENARIOS)
def test_without_the_routers_log_no_other_cause_is_made_up(scenario: str) -> None:
    found, happened = diagnosis(scenario, "router"), HAPPENED[scenario]
    assert {one.instance for one in found.deaths} <= {name for name, _, _ in happened.deaths}
    if happened == FINE:
        assert not found.wrong
    elif happened.deaths and all(name == "router" for name, _, _ in happened.deaths):
        assert not found.findings  # the rooms broke, and no line that is left says why
    elif any(".router" in path or "router.log" in path for path in logs(scenario)):
        assert any("no router's log" in one.what for one in found.unknowns)


@for_each("scenario", [name for name, happened in HAPPENED.items() if happened.deaths])
def test_a_death_shows_its_lines(scenario: str) -> None:
    for death in diagnosis(scenario).deaths:
        assert death.evidence
        assert death.fix
        for line in death.evidence:
            data = Path(line.file).read_bytes()
            lines = (gzip.decompress(data) if line.file.endswith(".gz") else data).split(b"\n")
            assert line.text[:60] in COLOUR.sub(b"", lines[line.line - 1]).decode(errors="replace")


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


def test_ports_that_lead_elsewhere_are_found_before_a_request_is(tmp_path: Path) -> None:
    """Start lines alone: no room went wrong yet."""
    cut = []
    for path in map(Path, logs("2p1d-missing-ports-info-sgl0523")):
        file = tmp_path / path.name
        file.write_text("\n".join(path.read_text(errors="replace").split("\n")[:66]) + "\n")
        cut.append(str(file))
    found = diagnose(library(cut))
    assert not found.tally.broken
    assert [(one.code, one.instance) for one in found.findings] == [("PD201", "prefill1")]
    assert "8998" in found.findings[0].why


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


def test_the_routers_line_names_the_decode_that_was_dead_and_no_log_is_asked_for_that_was_read() -> None:
    reader = tracer("pdctl-killed-decode")
    room = reader.trace(5356430874981527)
    assert room.decode == "decode-0"
    assert room.known is not None
    assert room.known["decode"] == "the router sent it there, and no line says that it arrived"
    assert next(one.decode for one in room_summaries(reader) if one.room == room.room) == "decode-0"
    for number in (room.room, 7):  # 7: of no line at all
        asked = [f"{one.what} {one.enable_with}" for one in reader.trace(number).missing_evidence]
        assert not [one for one in asked if "give the logs of all" in one]


BATCH = (
    "[2026-11-21 01:47:{second:02}] Prefill batch, #new-seq: 1, #new-token: 1, #cached-token: 0, token usage: 0.00, "
    "#running-req: 0, #queue-req: 0, #prealloc-req: {waiting}, #inflight-req: 0, input throughput (token/s): 0.86, \n"
)


@pytest.mark.parametrize(("counts", "said"), [((0, 2, 2), 2), ((2, 3, 1), 1), ((2, 2, 0), 0), ((), 0)])
def test_requests_that_wait_at_a_prefill_for_a_decode_are_not_passed_over(
    tmp_path: Path, counts: Sequence[int], said: int
) -> None:
    """Their rooms stand in no line; that they wait is in the counts of the batch lines alone."""
    start = Path(logs("1p1d-decode-killed-info-sgl0523")[1]).read_text().splitlines(keepends=True)
    start = [line for line in start if "server_args=" in line][:1]
    log = tmp_path / "prefill0.log"
    log.write_text("".join(start) + "".join(BATCH.format(second=at, waiting=one) for at, one in enumerate(counts)))
    waits = [one.what for one in diagnose(library([str(log)])).unknowns if "that waited at prefill0" in one.what]
    assert len(waits) == bool(said), waits
    assert not said or waits[0].startswith(f"what became of {said} request")


def test_what_is_no_log_of_ours_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "core.log").write_bytes(bytes(range(256)) * 300)
    (tmp_path / "nginx.log").write_text('10.0.0.9 - - [21/Nov/2026:02:00:00 +0000] "GET / HTTP/1.1" 200 5\n' * 50)
    (tmp_path / "empty.log").write_text("")
    found = diagnose(library(sorted(str(path) for path in tmp_path.iterdir())))
    assert {one.instance: one.kind for one in found.sources} == {
        "core": SourceKind.BINARY, "nginx": SourceKind.FOREIGN, "empty": SourceKind.EMPTY,
    }  # fmt: skip
    assert all(one.said for one in found.sources)
    assert not found.told
    assert not found.wrong


def test_hints_are_silent_only_where_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert ListNotes(Tracer(library(logs("2p1d-healthy-debug-sgl058")))).lines(listed=True) == ()
    assert ListNotes(Tracer(library(logs("1p1d-decode-killed-debug-sgl058")))).died == ("decode0",)
    (said,) = ListNotes(Tracer(library(logs("2p1d-healthy-info-sgl0523")))).lines(listed=False)
    assert "--log-requests" in said
    (tmp_path / "x.log").write_bytes(b"\0\1\2\3" * 4000)
    (said,) = ListNotes(Tracer(library([str(tmp_path / "x.log")]))).lines(listed=False)
    assert "binary" in said


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


def test_a_log_that_tells_no_role_proves_nothing_fine(tmp_path: Path) -> None:
    """The first lines of an engine's log, without its arguments."""
    found = diagnose(
        pasted.library(
            tmp_path,
            half=[
                f"{at(0)} Load weight begin. avail mem=21.00 GB",
                f"{at(1)} max_total_num_tokens=4096, chunked_prefill_size=-1",
            ],
        )
    )
    assert (found.wrong, found.told) == (False, False)


@pytest.mark.parametrize("scenario", [name for name, happened in HAPPENED.items() if happened == FINE])
def test_logs_that_show_no_answered_request_prove_nothing_fine(scenario: str, tmp_path: Path) -> None:
    """The first 40 lines of each: start-up, at most the warm-up."""
    cut = []
    for path in map(Path, logs(scenario)):
        data = gzip.decompress(path.read_bytes()) if path.name.endswith(".gz") else path.read_bytes()
        file = tmp_path / path.name.removesuffix(".gz")
        file.write_bytes(b"\n".join(data.split(b"\n")[:40]) + b"\n")
        cut.append(str(file))
    found = diagnose(library(cut))
    assert not found.wrong
    assert not found.fine
    assert exit_code(found) is ExitCode.NOT_PROBED


def test_a_prefills_answers_alone_do_not_show_that_the_deployment_serves() -> None:
    found = diagnose(library([path for path in logs("2p1d-healthy-info-sgl0523") if "prefill" in path]))
    assert found.tally.answered
    assert not found.wrong
    assert not found.fine


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


ACCESS = 'INFO:     127.0.0.1:5000{} - "POST {} HTTP/1.1" {}'


def test_rooms_of_which_none_is_known_to_have_ended_show_nothing_fine() -> None:
    """The decode was killed; its own log merely stops, behind the beginnings of its answers."""
    found = diagnose(
        library([path for path in logs("1p1d-decode-killed-debug-sgl058") if path.endswith("decode0.log")])
    )
    assert found.tally.answered
    assert dict(found.tally.rooms) == {"incomplete": 3}
    assert (found.wrong, found.fine) == (False, False)
    assert exit_code(found) is ExitCode.NOT_PROBED


def test_every_request_for_tokens_is_counted_and_no_warm_up(tmp_path: Path) -> None:
    said = (
        ACCESS.format(1, "/generate", "200 OK"),  # its own
        "The server is fired up and ready to roll!",
        ACCESS.format(2, "/generate", "200 OK"),
        ACCESS.format(3, "/v1/chat/completions", "200 OK"),
        ACCESS.format(4, "/v1/completions?x=1", "200 OK"),
        ACCESS.format(5, "/v1/chat/completions", "500 Internal Server Error"),
        ACCESS.format(6, "/v1/tokenize", "200 OK"),
    )
    lines = [f"{at(10 + number)} {text}" for number, text in enumerate(said)]
    again = [line.replace(at(0), at(90)).replace(at(1), at(91)) for line in engine("decode", 30002, 8999)]
    again += [f"{at(100)} {said[0]}", f"{at(101)} {said[1]}", f"{at(102)} {said[3]}"]
    path = tmp_path / "decode.log"
    path.write_text("\n".join([*engine("decode", 30002, 8999, *lines), *again]) + "\n")
    found = diagnose(library([str(path)]))
    assert dict(found.tally.answered) == {"decode": 4}
    assert found.fine


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
