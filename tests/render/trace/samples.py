"""Three rooms as the verdict makes them, from lines that SGLang 0.5.8 and sglang-router 0.3.2 really wrote."""

from __future__ import annotations

import datetime as dt
import io
import re

from pdctl.engines.base import Phase
from pdctl.render.term import Term
from pdctl.trace.room import (
    Cause,
    Duration,
    Evidence,
    Lane,
    LongestGap,
    MissingEvidence,
    Room,
    RoomOutcome,
    RoomStep,
    WrongPrefill,
)

UTC = dt.timezone.utc
BEGAN = dt.datetime(2026, 11, 21, 1, 34, 20, tzinfo=UTC).timestamp()
ESCAPE = re.compile(r"\x1b(\[[0-9;]*m|\]8;;[^\x1b]*\x1b\\)")
ROUTER = "Sending concurrent requests prefill_url=http://127.0.0.1:30001 decode_url=http://127.0.0.1:30002"
AGENT = "957bb87a-0056-45fd-aad1-984d9db24318"


class Screen(io.StringIO):
    """A terminal, or a pipe, that remembers what was written to it."""

    def __init__(self, tty: bool, encoding: str = "utf-8") -> None:
        super().__init__()
        self._tty, self._encoding = tty, encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return self._tty

    def write(self, text: str) -> int:
        text.encode(self._encoding)  # what a real stream of that encoding would refuse
        return super().write(text)


def screen(tty: bool = True, encoding: str = "utf-8") -> tuple[Term, Screen]:
    stream = Screen(tty, encoding)
    return Term(stream), stream


def step(
    instance: str, phase: Phase | None, delta: float | None, line: int, text: str, rank: str = "", **more: object
) -> RoomStep:
    doubt = more.pop("uncertainty_s", 1.0)
    base = RoomStep(
        instance=instance,
        role=instance.rstrip("0123456789"),
        rank=rank,
        phase=phase,
        t=None if delta is None else BEGAN + delta,
        delta_s=delta,
        uncertainty_s=float(str(doubt)),
        file=f"logs/{instance}.log",
        line=line,
        offset=line * 100,
        text=text,
    )
    return base._replace(**more)  # type: ignore[arg-type]


def evidence(of: RoomStep, says: str) -> Evidence:
    return Evidence(of.instance, of.file, of.line, of.text, says)


def wrong_prefill(number: int = 5111113946003395278) -> Room:
    """The seed incident: the router sent no port, decode0 asked the prefill behind its own."""
    sent = step("router", Phase.DISPATCHED, 0.0, 213, ROUTER)
    asked = step(
        "decode0", Phase.PREALLOC, 0.0, 69, f"Sending to prefill server with bootstrap room {number} is_dummy=False"
    )
    got = step(
        "prefill0",
        Phase.HANDSHAKE,
        1.0,
        75,
        f"got info room={number} agent_name='{AGENT}' required_dst_info_num=1",
    )
    ready = step("prefill0", Phase.HANDSHAKE, 1.0, 76, f"room={number} is bootstrapped")
    late = step("decode0", Phase.TIMED_OUT, 20.0, 75, f"Request {number} waiting_timeout")
    failed = step(
        "decode0",
        Phase.FAILED,
        20.0,
        76,
        "Decode transfer failed for request rank=0 decode_req.req.rid='67bb508ed39b4c6c9db20b4beddf121a' "
        f"decode_req.req.bootstrap_room={number} with exception NIXL KVReceiver Exception",
        echo=True,
    )
    return Room(
        room=number,
        rids={"decode0": "67bb508ed39b4c6c9db20b4beddf121a"},
        outcome=RoomOutcome.FAILED,
        prefill_requested="prefill1",
        prefill_contacted="prefill0",
        decode="decode0",
        phase_reached=Phase.HANDSHAKE,
        cause=Cause(
            "PD201",
            "bootstrap-port-null",
            "the router sends no bootstrap port for prefill1, so decode0 asked prefill0",
            "The router was started without the bootstrap port of prefill1 and sends null. "
            "decode0 then uses its own --disaggregation-bootstrap-port 8998, behind which prefill0 listens.",
            "router",
            "router",
        ),
        events=(sent, asked, got, ready, late, failed),
        evidence=(
            evidence(sent, "the router sent the request to prefill1 (port 30001)"),
            evidence(got, "decode0's page list arrived here, where nobody waits for it"),
            evidence(late, "no KV pages came for 20 s"),
        ),
        missing_evidence=(MissingEvidence("that prefill1 received the request", "--log-requests on prefill1"),),
        fix="python -m sglang_router.launch_router --pd-disaggregation --prefill http://127.0.0.1:30000 8998 "
        "--prefill http://127.0.0.1:30001 8999 --decode http://127.0.0.1:30002",
        began=BEGAN,
        ended=BEGAN + 20,
        lanes=(
            Lane("router", "router", "dispatched it"),
            Lane("prefill1", "prefill", "named by the router"),
            Lane("prefill0", "prefill", "got TransferInfo"),
            Lane("decode0", "decode", "named by the router"),
        ),
        durations=(
            Duration("prealloc", "decode0", 0.0, 1.0, 1.0),
            Duration("KV wait", "decode0", 0.0, 20.0, 1.0),
        ),
        gap=LongestGap(1.0, 20.0, 19.0, 1.0, "announced", "KV arrived", "decode0", "PD201"),
        wrong_prefill=WrongPrefill("prefill1", "prefill0"),
        consequences=("prefill1 keeps the request for ever: NIXL of 0.5.8 has no deadline there",),
        echoes=(evidence(failed, "says that the transfer failed, not why"),),
        notes=("all stamps are local time of one second",),
    )


def healthy() -> Room:
    """Two ranks of a prefill, our own engine's milliseconds, bytes and speed known."""
    number = 721586031618625451
    ranks = [
        step("prefill-0", Phase.TRANSFER, 0.0421, 90 + rank, f"sending kvcache room={number}", f"TP{rank}")
        for rank in range(4)
    ]
    fine = tuple(each._replace(uncertainty_s=0.001) for each in ranks)
    events = (
        step("router", Phase.DISPATCHED, 0.0, 12, f"room={number} prefill-0 decode-0", uncertainty_s=0.001),
        step("decode-0", Phase.HANDSHAKE, 0.0118, 40, f"page list sent room={number}", uncertainty_s=0.001),
        *(each._replace(role="prefill") for each in fine),
        step("decode-0", Phase.FINISHED, 0.2534, 44, f"finished room={number} tokens=8", uncertainty_s=0.001),
    )
    events = tuple(each._replace(role=each.instance.split("-")[0]) for each in events)
    return Room(
        room=number,
        rids={},
        outcome=RoomOutcome.OK,
        prefill_requested="prefill-0",
        prefill_contacted="prefill-0",
        decode="decode-0",
        phase_reached=Phase.FINISHED,
        cause=None,
        events=events,
        began=BEGAN,
        ended=BEGAN + 0.2534,
        lanes=(Lane("router", "router", ""), Lane("prefill-0", "prefill", ""), Lane("decode-0", "decode", "")),
        durations=(
            Duration("handshake", "decode-0", 0.0, 0.0118, 0.001),
            Duration("transfer", "prefill-0", 0.0421, 0.0871, 0.001, 1_342_177_280, 15.41),
            Duration("queue", "prefill-0", None, 0.004, 0.001),
        ),
    )


def blind() -> Room:
    """INFO logs of a room nobody wrote about: nothing is known, and it is said what would have told."""
    return Room(
        room=7,
        rids={},
        outcome=RoomOutcome.UNKNOWN,
        prefill_requested=None,
        prefill_contacted=None,
        decode="decode0",
        phase_reached=None,
        cause=None,
        events=(step("decode0", None, None, 3, "room 7", uncertainty_s=0.0),),
        lanes=(Lane("decode0", "decode", ""),),
        missing_evidence=(
            MissingEvidence("which prefill got the request", "--log-requests --log-requests-level 0"),
            MissingEvidence("that the room finished", "--enable-request-time-stats-logging"),
        ),
    )
