"""diagnose on every recorded deployment: each death and its cause is named, and nothing is said of the healthy ones."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from pdctl.cli.diagnose import exit_code
from pdctl.engines.prefix import COLOUR
from pdctl.errors import ExitCode
from pdctl.trace.deployment_report import SourceKind
from pdctl.trace.diagnose import diagnose, diagnose_each
from pdctl.trace.summaries import ListNotes, room_summaries
from pdctl.trace.tracer import Tracer
from tests.cases import for_each
from tests.trace import pasted
from tests.trace.engines import ACCESS, at, engine
from tests.trace.recordings import ROOMS, SCENARIOS, diagnosis, library, logs, tracer, truth

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    "2p1d-decode-killed-info-sgl0521": Truth((("decode0", "PD704", 13),)),
    "2p1d-decode-killed-info-sgl0522": Truth((("decode0", "PD704", 9),)),
    "2p1d-healthy-debug-sgl0518": FINE,
    "2p1d-healthy-debug-sgl0523": FINE,
    "2p1d-healthy-debug-sgl058": FINE,
    "2p1d-healthy-info-log-requests-sgl0523": FINE,
    "2p1d-healthy-info-sgl0521": FINE,
    "2p1d-healthy-info-sgl0522": FINE,
    "2p1d-healthy-info-sgl0523": FINE,
    "2p1d-hicache-crash-info-sgl0522": Truth((("decode0", "PD709", 0),)),  # then the others got SIGTERM, all processes
    "2p1d-missing-ports-debug-sgl0518": NULL_PORTS,
    "2p1d-missing-ports-debug-sgl058": NULL_PORTS,
    "2p1d-missing-ports-info-log-requests-sgl058": NULL_PORTS,
    "2p1d-missing-ports-info-sgl0516": NULL_PORTS,
    "2p1d-missing-ports-info-sgl0522": NULL_PORTS,
    "2p1d-missing-ports-info-sgl0523": NULL_PORTS,
    "2p1d-missing-ports-mooncake-debug-sgl058": NULL_PORTS,
    "2p1d-missing-ports-spawn-debug-sgl058": NULL_PORTS,
    "2p1d-prefill-killed-debug-sgl0523": Truth((("prefill0", "PD705", 4),)),
    "2p1d-prefill-killed-info-sgl0516": Truth((("prefill0", "PD705", 7),)),
    "2p1d-prefill-killed-info-sgl0522": Truth((("prefill0", "PD705", 8),)),
    "2p1d-swapped-ports-info-log-requests-sgl0523": Truth(findings=("PD203", "PD203")),
    "2p1d-swapped-ports-info-sgl0516": Truth(findings=("PD203", "PD203")),
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


@pytest.mark.parametrize(("cut", "said"), [("file", "log is not here"), ("lines", "log says nothing of it")])
def test_a_prefill_by_elimination_is_not_said_to_lack_a_log_that_was_read(tmp_path: Path, cut: str, said: str) -> None:
    """With NIXL and before 0.5.18 a prefill waits for a lost room without a line, and for ever."""
    read = []
    for path in map(Path, logs("2p1d-missing-ports-info-sgl0522")):
        silent = path.name.startswith("prefill1")
        if silent and cut == "file":
            continue
        text = gzip.decompress(path.read_bytes()).decode()
        kept = [line for line in text.splitlines(keepends=True) if not silent or "req.bootstrap_room=" not in line]
        read.append(tmp_path / path.name.removesuffix(".gz"))
        read[-1].write_text("".join(kept))
    (found,) = diagnose(library(list(map(str, read)))).findings
    assert (found.code, f"whose {said}" in found.why) == ("PD201", True), found.why
    assert ("instead of 8999" in found.headline) == (cut == "lines"), found.headline


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


def test_requests_that_a_router_had_no_pair_for_are_counted(tmp_path: Path) -> None:
    """They never had a room, so no count of rooms has them. A request that was refused for its body is not one."""
    why = "no prefill-decode pair can be used: decode http://127.0.0.1:30002: no connection: Connection refused"
    lines = [f"{at(second)} WARNING Refuse request_id=r{second} path=/generate: {why}" for second in (11, 12, 13)]
    lines.append(f"{at(14)} Refuse request_id=r14 path=/generate: the body is not JSON")
    listening = f"{at(1)} Router listening on http://127.0.0.1:8000 policy=round_robin prefill=[] decode=[]"
    found = diagnose(pasted.library(tmp_path, router=[listening, *lines], p0=engine("prefill", 30000, 8998)))
    assert [(one.code, one.instance, one.lines) for one in found.remarks] == [("PD602", "router", 3)]
    assert found.remarks[0].first.text.endswith(why)


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
