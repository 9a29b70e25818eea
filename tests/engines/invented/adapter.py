"""Heron, an engine with words of its own: what it logs, what its lines prove, what it tells over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pdctl.engines.base import Adapter, Level, Phase, Row, Sign, Speaker
from pdctl.engines.reported_settings import Surface

if TYPE_CHECKING:
    from collections.abc import Mapping

HERON = Speaker("heron")
AT = "2026-11-21 02:00:05  INFO heron: "
_JOB = r"job (?P<room>\d+) \((?P<rid>[\w-]+)\) "

ROWS = (
    Row(
        "heron-nest", HERON, Level.INFO, "prefill", b"nest open on ",
        r"nest open on (?P<addr>\S+), perch (?P<port>\d+)",
        f"{AT}nest open on 127.0.0.1:7100, perch 7001", proves=(Sign.STARTED, Sign.HTTP_PORT, Sign.LISTENS),
    ),
    Row(
        "heron-egg", HERON, Level.INFO, "prefill", b"egg exchange on ", r"egg exchange on (?P<addr>\S+)",
        f"{AT}egg exchange on 127.0.0.1:7100", proves=(Sign.BOOTSTRAP_LISTENS, Sign.BOOTSTRAP_PORT, Sign.LISTENS),
    ),
    Row(
        "heron-pond", HERON, Level.INFO, "decode", b"pond open on ", r"pond open on (?P<addr>\S+), perch (?P<port>\d+)",
        f"{AT}pond open on 127.0.0.1:7003, perch 7003", proves=(Sign.STARTED, Sign.HTTP_PORT, Sign.LISTENS),
    ),
    Row(
        "heron-taken", HERON, Level.INFO, "prefill", b" taken", _JOB + r"taken",
        f"{AT}job 42 (a-1) taken", phase=Phase.BOOTSTRAP, proves=(Sign.HAS_REQUEST,),
    ),
    Row(
        "heron-list-in", HERON, Level.INFO, "prefill", b" list in", r"job (?P<room>\d+) list in",
        f"{AT}job 42 list in", phase=Phase.HANDSHAKE,
        proves=(Sign.PAGE_LIST_ARRIVES, Sign.PAGE_LIST_ARRIVED, Sign.ROOM_OPENED),
    ),
    Row(
        "heron-dropped", HERON, Level.WARNING, "prefill", b" dropped after ",
        _JOB + r"dropped after (?P<seconds>[\d.]+) s",
        f"{AT}job 42 (a-1) dropped after 20.0 s", phase=Phase.TIMED_OUT, reached=Phase.BOOTSTRAP,
    ),
    Row(
        "heron-looks", HERON, Level.INFO, "decode", b" looks for its egg at ",
        _JOB + r"looks for its egg at (?P<addr>\S+)",
        f"{AT}job 42 (b-1) looks for its egg at 127.0.0.1:7100", phase=Phase.PREALLOC, proves=(Sign.BOOTSTRAP_GIVEN,),
    ),
    Row(
        "heron-list-out", HERON, Level.INFO, "decode", b" list out", r"job (?P<room>\d+) list out",
        f"{AT}job 42 list out", phase=Phase.HANDSHAKE, proves=(Sign.PAGE_LIST_SENDS, Sign.PAGE_LIST_SENT, Sign.SERVES),
    ),
    Row(
        "heron-hatched", HERON, Level.INFO, "decode", b" hatched in ",
        _JOB + r"hatched in (?P<seconds>[\d.]+) s, (?P<bytes>\d+) bytes",
        f"{AT}job 42 (b-1) hatched in 0.25 s, 4096 bytes", phase=Phase.DECODE,
        proves=(Sign.CACHE_ARRIVES, Sign.CACHE_ARRIVED, Sign.PAGE_LIST_SENT, Sign.TRANSFER_MEASURED),
    ),
    Row(
        "heron-flown", HERON, Level.INFO, "decode", b" flown", _JOB + r"flown (?P<finish>'\w+')",
        f"{AT}job 42 (b-1) flown 'stop'", phase=Phase.FINISHED, proves=(Sign.REQUEST_FINISHED,),
    ),
    Row(
        "heron-cold", HERON, Level.WARNING, "decode", b" went cold after ",
        _JOB + r"went cold after (?P<seconds>[\d.]+) s",
        f"{AT}job 42 (b-1) went cold after 20.0 s", phase=Phase.TIMED_OUT, reached=Phase.HANDSHAKE,
        proves=(Sign.PAGE_LIST_SENT,),
    ),
    Row(
        "heron-fell", HERON, Level.ERROR, "", b"fell out of the sky: ", r"fell out of the sky: (?P<reason>.+)",
        f"{AT}fell out of the sky: wing", cause="PD709", proves=(Sign.CRASHED,),
    ),
    Row(
        "heron-south", HERON, Level.INFO, "", b"flies south", r"flies south", f"{AT}flies south",
        proves=(Sign.ORDERED_TO_END,),
    ),
)  # fmt: skip

ADAPTER = Adapter(HERON, ROWS, names_every_room=True)


def _about(said: Mapping[str, Any]) -> Mapping[str, Any]:
    """`GET /about` of a heron, in SGLang's keys; its own release is none of SGLang's, so it is left out."""
    if said.get("bird") != "heron":
        return {}
    modes = {"nest": "prefill", "pond": "decode"}
    return {
        "disaggregation_mode": modes.get(said.get("place", ""), "null"), "page_size": said.get("leaf"),
        "tp_size": said.get("wings"), "model_path": said.get("song"), "kv_cache_dtype": said.get("down"),
    }  # fmt: skip


SURFACE = Surface(("/about",), _about, health="/alive")
