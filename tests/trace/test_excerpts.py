"""A few pasted lines of decode, two prefills and a router, as people send them: the mismatch is named."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest

from pdctl.engines.base import Phase
from pdctl.logs.library import Library
from pdctl.logs.source import open_logs
from pdctl.trace.room import RoomOutcome
from pdctl.trace.tracer import Tracer
from tests.cases import for_each

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.trace.room import Room

ROOM = 2148025886387619708
RID = "67bb508ed39b4c6c9db20b4beddf121a"

SENT = f"[04:46:20 TP0] Sending to prefill server with bootstrap room {ROOM} is_dummy=False"
TIMED_OUT = (
    f"[04:51:20 TP0] Decode transfer failed for request rank=0 decode_req.req.rid='0f3a{RID[4:]}' "
    f"decode_req.req.bootstrap_room={ROOM} with exception KVTransferError(bootstrap_room={ROOM}): Request {ROOM} timed "
    "out after 300.0s in KVPoll.WaitingForInput"
)
OLD_TIMED_OUT = f"[04:51:20 TP0] Request {ROOM} waiting_timeout"
RECORDED = (
    f"[04:51:20 TP0] Failure recorded for room {ROOM}: Request {ROOM} timed out after 300.0s in KVPoll.WaitingForInput"
)
GOT = f"[04:46:20 TP0] got info room={ROOM} agent_name='c2b1f0aa-77d1-4a8e-8c19-5ad1c3b0a001' required_dst_info_num=1"
BOOTSTRAPPED = f"[04:46:20 TP0] room={ROOM} is bootstrapped"
ABORTED = f"[04:51:21 TP0] Abort bootstrap queue request. req.rid='{RID}'"
GIVEN_UP = (
    f"[04:51:21 TP0] Prefill bootstrap failed for request rank=0 req.rid='{RID}' req.bootstrap_room={ROOM} with "
    f"exception KVTransferError(bootstrap_room={ROOM}): Aborted by AbortReq."
)
BOOTSTRAP_TIMEOUT = (
    f"[04:51:20 TP0] Prefill bootstrap failed for request rank=0 req.rid='{RID}' req.bootstrap_room={ROOM} with "
    f"exception KVTransferError(bootstrap_room={ROOM}): Request {ROOM} timed out after 300.0s in KVPoll.Bootstrapping"
)
TARGETS = (
    'prefill_urls: [("http://10.0.0.1:30000", None), ("http://10.0.0.2:30000", None)], '
    'decode_urls: ["http://10.0.0.3:30000"]'
)
MODE = f"mode: PrefillDecode {{ {TARGETS}, prefill_policy: None, decode_policy: None }}"
STARTING = (
    f"2026-11-21 04:40:01  INFO smg::server: src/server.rs:794: Starting router on 0.0.0.0:8000 | {MODE} | policy"
)
CUT = STARTING[: STARTING.index(", decode_urls")] + ", …"
COMMAND = "python -m sglang_router.launch_router --pd-disaggregation "
WORKERS = (
    "--prefill http://10.0.0.1:30000 <bootstrap port of http://10.0.0.1:30000> "
    "--prefill http://10.0.0.2:30000 <bootstrap port of http://10.0.0.2:30000> "
)


def pasted(folder: Path, **files: list[str]) -> Room:
    paths = []
    for name, lines in files.items():
        path = folder / f"{name}.log"
        path.write_text("".join(f"{line}\n" for line in lines))
        paths.append(str(path))
    return Tracer(Library(open_logs(paths), tz=dt.timezone.utc, index=False)).trace(ROOM)


@for_each("router", [STARTING, MODE, TARGETS, f"… | {MODE} …", CUT, f"router-0 | {STARTING}"])
@for_each(
    "second",
    [[GIVEN_UP], [ABORTED, GIVEN_UP], [ABORTED], [BOOTSTRAP_TIMEOUT]],
    ids=["given up", "aborted and given up", "aborted, no room", "timed out"],
)
@for_each("undated", [False, True], ids=["stamped", "bare"])
def test_the_write_up(tmp_path: Path, router: str, second: list[str], undated: bool) -> None:
    """The prefill that was asked and the one that was contacted, by name; the null port; the command to paste."""
    first = [GOT, BOOTSTRAPPED]
    if undated:
        first = [line.partition("] ")[2] for line in first]
    room = pasted(tmp_path, decode=[SENT, TIMED_OUT], prefill1=first, prefill2=second, router=[router])
    assert (room.prefill_requested, room.prefill_contacted, room.decode) == ("prefill2", "prefill1", "decode")
    assert room.outcome is RoomOutcome.FAILED
    assert room.wrong_prefill is not None
    assert (room.wrong_prefill.requested, room.wrong_prefill.contacted) == ("prefill2", "prefill1")
    assert room.cause is not None
    assert (room.cause.code, room.cause.slug) == ("PD201", "bootstrap-port-null")
    assert room.fix.startswith(COMMAND)
    assert WORKERS in room.fix
    assert ("--host 0.0.0.0 --port 8000" in room.fix) is (STARTING in router)
    shown = {(one.instance, one.text) for one in room.evidence}
    assert ("prefill1", GOT.partition("] ")[2]) in shown
    assert any(name == "prefill2" for name, _ in shown)
    assert any(name == "router" and "None" in text for name, text in shown)


def test_other_names_and_another_order(tmp_path: Path) -> None:
    room = pasted(tmp_path, a=[STARTING], b=[GIVEN_UP], c=[SENT, TIMED_OUT], d=[GOT, BOOTSTRAPPED])
    assert (room.prefill_requested, room.prefill_contacted, room.decode) == ("b", "d", "c")
    assert room.cause is not None
    assert room.cause.code == "PD201"


def test_with_the_prefills_own_words_the_ports_stand_in_the_command(tmp_path: Path) -> None:
    """A few lines of their starts tell which log is whose, and where each bootstrap server listens."""

    def start(host: str, port: int) -> list[str]:
        return [
            f"[04:40:00] server_args=ServerArgs(model_path='/srv/model', host='{host}', port=30000, "
            f"disaggregation_mode='prefill', disaggregation_bootstrap_port={port}, tp_size=1)",
            f"[04:40:09] INFO:     Uvicorn running on http://{host}:30000 (Press CTRL+C to quit)",
        ]

    room = pasted(
        tmp_path, decode=[SENT, TIMED_OUT], one=[*start("10.0.0.1", 8998), GOT, BOOTSTRAPPED],
        two=[*start("10.0.0.2", 8999), GIVEN_UP], router=[STARTING],
    )  # fmt: skip
    assert room.cause is not None
    assert "two" in room.cause.headline
    assert "--prefill http://10.0.0.1:30000 8998 --prefill http://10.0.0.2:30000 8999 --decode" in room.fix


def test_without_the_routers_line_the_mismatch_is_still_named(tmp_path: Path) -> None:
    room = pasted(tmp_path, decode=[SENT, TIMED_OUT], prefill1=[GOT, BOOTSTRAPPED], prefill2=[ABORTED, GIVEN_UP])
    assert room.cause is not None
    assert (room.cause.code, room.cause.slug) == ("PD701", "wrong-prefill-contacted")
    assert room.wrong_prefill is not None
    assert "--prefill" in room.fix
    assert "{" not in room.fix
    assert "--prefill  " not in room.fix


def test_a_router_with_the_right_ports_is_not_blamed(tmp_path: Path) -> None:
    router = STARTING.replace('"http://10.0.0.1:30000", None', '"http://10.0.0.1:30000", Some(8998)')
    router = router.replace('"http://10.0.0.2:30000", None', '"http://10.0.0.2:30000", Some(8999)')
    room = pasted(
        tmp_path, decode=[SENT, TIMED_OUT], prefill1=[GOT, BOOTSTRAPPED], prefill2=[GIVEN_UP], router=[router]
    )  # fmt: skip
    assert room.cause is not None
    assert room.cause.code == "PD701"


def test_what_the_excerpt_leaves_open_stays_open(tmp_path: Path) -> None:
    """Nobody wrote who had the request: it is not guessed from who is left over."""
    room = pasted(
        tmp_path, decode=[SENT, TIMED_OUT], prefill1=[GOT, BOOTSTRAPPED],
        prefill2=["[04:46:19 TP0] Prefill batch, #new-seq: 1, #new-token: 6, #cached-token: 0"], router=[STARTING],
    )  # fmt: skip
    assert room.prefill_requested is None
    assert room.prefill_contacted == "prefill1"
    assert room.missing_evidence
    assert room.wrong_prefill is None


def test_two_requests_given_up_at_once_could_each_be_the_rooms(tmp_path: Path) -> None:
    other = ABORTED.replace(RID, "b" * 32)
    room = pasted(tmp_path, decode=[SENT, TIMED_OUT], prefill1=[GOT], prefill2=[ABORTED, other], router=[STARTING])
    assert room.prefill_requested is None


@pytest.mark.parametrize("said", [OLD_TIMED_OUT, RECORDED])
@pytest.mark.parametrize("second", [[GIVEN_UP], [ABORTED]], ids=["with room", "without"])
def test_other_releases_end_the_wait_in_other_words(tmp_path: Path, said: str, second: list[str]) -> None:
    room = pasted(
        tmp_path, decode=[SENT, said], prefill1=[GOT, BOOTSTRAPPED], prefill2=second, router=[STARTING]
    )  # fmt: skip
    assert room.wrong_prefill is not None
    assert (room.wrong_prefill.requested, room.wrong_prefill.contacted) == ("prefill2", "prefill1")
    assert room.cause is not None
    assert room.cause.code == "PD201"
    assert room.phase_reached is Phase.HANDSHAKE
