"""A router without bootstrap ports, as a write-up prints its logs: no dates, lists over several lines, some files only.

Whatever is given and however it is wrapped, the verdict is the same or less, and never another prefill.
"""

from __future__ import annotations

import gzip
import re
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pdctl.trace.diagnose import diagnose
from pdctl.trace.room import RoomOutcome
from pdctl.trace.tracer import Tracer
from tests.trace import pasted
from tests.trace.recordings import library, logs

if TYPE_CHECKING:
    from pdctl.trace.room import Room

ROOM = 7311204486150993372
FOREIGN = "5d0e8c7b1f2a4e6695c3b8a7d6e5f401"  # a rid of which no line says the room
URLS = ("http://gpu3:31000", "http://gpu3:31001")

DECODE = [
    "[17:02:08 TP0] Fetched bootstrap info: {'rank_ip': '10.1.0.3', 'rank_port': 40211, 'is_dummy': False} for engine "
    "rank: 0",
    f"[17:02:08 TP0] Sending to prefill server with bootstrap room {ROOM} is_dummy=False",
    f"[17:04:08 TP0] Failure recorded for room {ROOM}: Request {ROOM} timed out after 120.0s in KVPoll.WaitingForInput",
]
CONTACTED = [
    f"[17:02:08] got info room={ROOM} agent_name='71b9e0aa-0c1d-4b7e-9a55-2e6c1f0d4a10' required_dst_info_num=1",
    f"[17:02:08] room={ROOM} is bootstrapped",
]
VICTIM = [f"[17:02:50] Abort bootstrap queue request. req.rid='{FOREIGN}'"]
LISTED = f'("{URLS[0]}", None), ("{URLS[1]}", None)'
START = (
    f"Starting router on 0.0.0.0:8100 | mode: PrefillDecode {{ prefill_urls: [{LISTED}], decode_urls: "
    '["http://gpu4:31000"], prefill_policy: Some(RoundRobin), decode_policy: None } | policy: RoundRobin | max_payload'
    ": 512MB"
)
PRETTY = [
    "Starting router on 0.0.0.0:8100 | mode: PrefillDecode {", "  prefill_urls: [", f'    ("{URLS[0]}", None),',
    f'    ("{URLS[1]}", None)', "  ], ...", "}",
]  # fmt: skip
DEBUG = [
    "PrefillDecode {", "    prefill_urls: [", "        (", f'            "{URLS[0]}",', "            None,",
    "        ),", "        (", f'            "{URLS[1]}",', "            None,", "        ),", "    ],",
    "    decode_urls: [", '        "http://gpu4:31000",', "    ],", "}",
]  # fmt: skip


def at_width(text: str, columns: int) -> list[str]:
    return [text[at : at + columns] for at in range(0, len(text), columns)]


def words(text: str, columns: int) -> list[str]:
    lines = [""]
    for word in text.split(" "):
        lines = [*lines, word] if len(lines[-1]) + len(word) > columns else [*lines[:-1], f"{lines[-1]} {word}".strip()]
    return lines


ROUTERS = {
    "one line": [START],
    "stamped": [f"2026-11-21 16:58:00  INFO smg::server: src/server.rs:794: {START}"],
    "pretty": PRETTY,
    "pretty, with names": [f"router-0  | {line}" for line in PRETTY],
    "debug": DEBUG,
    "its list alone": PRETTY[1:-1],
    "printed": [f"Prefill nodes: [{LISTED}]", 'Decode nodes: ["http://gpu4:31000"]'],
    "printed, wrapped": ["Prefill nodes: [", f'  ("{URLS[0]}", None),', f'  ("{URLS[1]}", None),', "]"],
    **{f"{columns} columns": at_width(START, columns) for columns in (44, 64, 80, 132)},
    **{f"words in {columns} columns": words(START, columns) for columns in (44, 72)},
}
HALVES = {
    "first one only": [f'Prefill nodes: [("{URLS[0]}", None), …]'],
    "URLs left out": ['Prefill nodes: [("http://…", None), …]'],
}


def told(folder: Path, **files: list[str]) -> Room:
    folder.mkdir()
    return pasted.room(folder, ROOM, **files)


def code(room: Room) -> str | None:
    return room.cause.code if room.cause else None


@pytest.mark.parametrize("router", ROUTERS.values(), ids=ROUTERS)
def test_the_prefill_that_waits_is_named_by_elimination(tmp_path: Path, router: list[str]) -> None:
    room = told(tmp_path / "all", d=DECODE, p1=CONTACTED, p2=VICTIM, r=router)
    assert (room.outcome, code(room)) == (RoomOutcome.FAILED, "PD201")
    assert (room.prefill_requested, room.prefill_contacted, room.decode) == ("p2", "p1", "d")
    assert room.wrong_prefill is not None
    assert room.wrong_prefill.by_elimination
    assert room.known is not None
    assert room.known["prefill_requested"].startswith("by elimination")
    assert room.cause is not None
    assert room.cause.headline.startswith("the router sends no bootstrap port for p2")
    assert "by elimination" in room.cause.why
    assert room.fix.count("--prefill http://gpu3:3100") == 2
    assert any("no proof" in note and FOREIGN in note for note in room.notes)
    assert any("bootstrap ports" in one.what for one in room.missing_evidence)


@pytest.mark.parametrize("form", ["one line", "pretty", "80 columns", "printed", *HALVES])
def test_a_part_of_the_files_never_names_another_prefill(tmp_path: Path, form: str) -> None:
    router = (ROUTERS | HALVES)[form]
    files = {"d": DECODE, "p1": CONTACTED, "p2": VICTIM, "r": router}
    for size in range(1, 5):
        for some in combinations(files, size):
            room = told(tmp_path / "".join(some), **{name: files[name] for name in some})
            assert room.prefill_contacted == ("p1" if "p1" in some else None)
            assert room.prefill_requested == ("p2" if size == 4 and form in ROUTERS else None)
            assert room.decode == ("d" if "d" in some else None)
            assert code(room) == ("PD201" if {"d", "r"} <= set(some) else None)
            assert room.cause is None or room.cause.instance in ("", "p2")
            if "r" in some and room.cause is None:
                assert any(note.startswith("PD201") for note in room.notes)


@pytest.mark.parametrize("router", ROUTERS.values(), ids=ROUTERS)
def test_the_routers_log_alone_says_that_it_sends_nulls(tmp_path: Path, router: list[str]) -> None:
    found = diagnose(pasted.library(tmp_path, r=router))
    assert [(one.code, one.instance, one.rooms) for one in found.findings] == [("PD201", "r", ())]
    assert found.findings[0].headline.startswith(f"the router sends no bootstrap port for {URLS[0]} and {URLS[1]}")
    assert found.findings[0].fix.count("--prefill http://gpu3:3100") == 2


@pytest.mark.parametrize(
    "line",
    [
        START.replace(URLS[1], "http://gpu9:31000"), START.replace(URLS[1], URLS[0]),
        START.replace(f', ("{URLS[1]}", None)', ""), START.replace(f'"{URLS[0]}", None', f'"{URLS[0]}", Some(9001)'),
        "[2026-11-21 19:44:33] Router listening on http://127.0.0.1:8000 policy=round_robin prefill=[('http://127.0.0.1"
        ":30000', None), ('http://127.0.0.1:30001', None)] decode=['http://127.0.0.1:30002']",
    ],
    ids=["hosts of their own", "one named twice", "one prefill", "one null", "a router that learns ports"],
)  # fmt: skip
def test_nulls_that_need_not_lead_astray_are_no_finding(tmp_path: Path, line: str) -> None:
    assert diagnose(pasted.library(tmp_path, r=[line])).findings == ()


def test_the_ports_stand_in_the_fix_where_a_line_tells_them(tmp_path: Path) -> None:
    """Who is who comes from the start lines then: the victim is named though its own line names no room."""

    def start(port: int, bootstrap: int) -> str:
        return (
            f"[16:58:00] server_args=ServerArgs(model_path='/srv/m', host='gpu3', port={port}, "
            f"disaggregation_mode='prefill', disaggregation_bootstrap_port={bootstrap}, tp_size=1)"
        )

    one, two = [start(31000, 9001), *CONTACTED], [start(31001, 9002), *VICTIM]
    room = told(tmp_path / "all", d=DECODE, p1=one, p2=two, r=[START])
    assert (room.prefill_requested, code(room)) == ("p2", "PD201")
    assert f"--prefill {URLS[0]} 9001 --prefill {URLS[1]} 9002 --decode http://gpu4:31000" in room.fix
    assert room.cause is not None
    assert "9001 (p1) instead of 9002" in room.cause.headline
    alone = told(tmp_path / "alone", d=DECODE, p1=one, r=[START])
    assert alone.prefill_requested is None
    assert alone.cause is not None
    assert alone.cause.headline.startswith(f"the router sends no bootstrap port for {URLS[1]}:")
    other = told(tmp_path / "other", d=DECODE, p1=[start(31000, 9001)], p2=[start(31001, 9002), *CONTACTED], r=[START])
    assert (other.prefill_requested, other.prefill_contacted) == ("p1", "p2")


def test_a_prefill_that_froze_may_have_had_the_request_itself(tmp_path: Path) -> None:
    """At INFO no prefill names a room: the silence of one whose log ends rules nothing out."""
    room, late, froze = (
        2922579826393521116,
        re.compile(r"\[2026-11-28 09:4[6-9]"),
        re.compile(r"\[2026-11-28 09:4[2-9]"),
    )

    def why(*cut: str) -> str:
        paths = []
        for path in map(Path, logs("2p1d-missing-ports-info-sgl0516")):
            stop = froze if path.name.split(".")[0] in cut else late
            lines = gzip.decompress(path.read_bytes()).decode().splitlines(keepends=True)
            kept = tmp_path / f"{len(cut)}-{path.name.removesuffix('.gz')}"
            kept.write_text("".join(line for line in lines if not stop.match(line)))
            paths.append(str(kept))
        cause = Tracer(library(paths)).trace(room).cause
        assert cause is not None
        return f"{cause.headline}: {cause.why}"

    assert "by elimination the request went to" in why()
    assert "by elimination" not in why("prefill0")
    assert "no line says whether it had the request too" in why("prefill0")


def test_with_a_third_prefill_two_are_left(tmp_path: Path) -> None:
    router = [START.replace(LISTED, f'{LISTED}, ("http://gpu3:31002", None)')]
    room = told(tmp_path / "all", d=DECODE, p1=CONTACTED, p2=VICTIM, r=router)
    assert (room.prefill_requested, room.prefill_contacted, code(room)) == (None, "p1", "PD201")


def test_prefills_on_hosts_of_their_own_are_each_found_by_a_null(tmp_path: Path) -> None:
    """The decode puts its port behind the host it was sent: the page list went where the request did."""
    router = [START.replace(URLS[1], "http://gpu9:31000")]
    room = told(tmp_path / "all", d=DECODE, p1=CONTACTED, p2=VICTIM, r=router)
    assert (room.prefill_requested, room.prefill_contacted, code(room)) == (None, "p1", None)


def test_a_router_with_ports_sends_nobody_astray(tmp_path: Path) -> None:
    router = [START.replace(f'"{URLS[0]}", None', f'"{URLS[0]}", Some(9001)').replace("None)", "Some(9002))")]
    room = told(tmp_path / "all", d=DECODE, p1=CONTACTED, p2=VICTIM, r=router)
    assert (room.prefill_requested, code(room)) == (None, None)


def test_a_prefill_that_sent_the_cache_had_the_request(tmp_path: Path) -> None:
    sent = f"[17:02:08] sending kvcache to 71b9e0aa-0c1d-4b7e-9a55-2e6c1f0d4a10 with notif {ROOM}_kv_0_1_0"
    room = told(tmp_path / "all", d=DECODE, p1=[*CONTACTED, sent], p2=VICTIM, r=[START])
    assert (room.prefill_requested, room.prefill_contacted, code(room)) == ("p1", "p1", "PD708")


SWAPPED = START.replace(f'"{URLS[0]}", None', f'"{URLS[0]}", Some(9002)').replace("None)", "Some(9001))")


@pytest.mark.parametrize(
    ("router", "fallback", "wanted"),
    [(SWAPPED, 8998, "PD203"), (SWAPPED.replace("9001", "9005"), 8998, "PD202"), (START, 9003, "PD201")],
    ids=["swapped", "wrong", "null"],
)
def test_ports_that_are_wrong_for_every_prefill_are_proved_by_the_start_lines(
    tmp_path: Path, router: str, fallback: int, wanted: str
) -> None:
    """At INFO (0.5.10) only the decode names the room: whichever prefill had it, the port was another's."""

    def engine(role: str, host: str, port: int, bootstrap: int) -> str:
        return (
            f"[16:58:00] server_args=ServerArgs(model_path='/srv/m', host='{host}', port={port}, "
            f"disaggregation_mode='{role}', disaggregation_bootstrap_port={bootstrap}, tp_size=1)"
        )

    room = told(
        tmp_path / "all", d=[engine("decode", "gpu4", 31000, fallback), DECODE[2]],
        p1=[engine("prefill", "gpu3", 31000, 9001)], p2=[engine("prefill", "gpu3", 31001, 9002)], r=[router],
    )  # fmt: skip
    assert (code(room), room.prefill_requested, room.prefill_contacted) == (wanted, None, None)
    assert f"--prefill {URLS[0]} 9001 --prefill {URLS[1]} 9002" in room.fix
    assert {"r", "p1", "p2", "d"} <= {one.instance for one in room.evidence}
    right = SWAPPED.replace("9002", "0").replace("9001", "9002").replace("Some(0)", "Some(9001)")
    fine = told(
        tmp_path / "right", d=[engine("decode", "gpu4", 31000, fallback), DECODE[2]],
        p1=[engine("prefill", "gpu3", 31000, 9001)], p2=[engine("prefill", "gpu3", 31001, 9002)], r=[right],
    )  # fmt: skip
    assert code(fine) is None
