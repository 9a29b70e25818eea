"""The four lines with which a room fails, by what follows "with exception" (srt/disaggregation).

0.5.3 and 0.5.8 write the prefill's bootstrap failure at ERROR, later releases at WARNING; from 0.5.13 on, a rank that
fails only because a peer failed says so at DEBUG. rid is a repr(): a double-quoted one contains an apostrophe.
"""

from __future__ import annotations

from pdctl.engines.base import Level, Phase, Row, Sign, Speaker
from pdctl.engines.versions import V0_5_6, V0_5_10, V0_5_11, V0_5_13, V0_5_16, V0_5_17, V0_5_20, V0_5_22, V0_5_23, Span
from pdctl.quick_definitions import NamedTuple


class Head(NamedTuple):
    """The start of such a line. `{room}` in a tail's example is the head's room. `proves`: by the head alone."""

    id: str
    level: Level
    role: str
    text: str
    name: str  # the request in the line
    example: str
    room: str
    reached: Phase
    proves: tuple[Sign, ...] = ()


class Tail(NamedTuple):
    """What follows `with exception`. `heads`: ids of the heads it is known to follow; "": all."""

    id: str
    phase: Phase
    literal: str
    pattern: str
    example: str
    heads: str = ""
    span: Span = Span()
    backend: str = ""
    cause: str = ""
    echo: bool = False
    wrapped: bool = True  # inside `KVTransferError(bootstrap_room=N): `
    proves: tuple[Sign, ...] = ()


HEADS = (
    Head(
        "prefill-bootstrap", Level.WARNING, "prefill", "Prefill bootstrap failed for request rank=", "req",
        "[2026-11-21 02:02:46] Prefill bootstrap failed for request rank=0 req.rid='abe1c3f7dd2240329e71a4f2eb60f0ff' "
        "req.bootstrap_room=8463976258232842567", "8463976258232842567", Phase.BOOTSTRAP,
    ),
    Head(
        "prefill-transfer", Level.WARNING, "prefill", "Prefill transfer failed for request rank=", "req",
        "[2026-11-21 01:36:47 TP1] Prefill transfer failed for request rank=1 "
        "req.rid='95c75f21626e43c88646e467f69120b9' req.bootstrap_room=3243084712043770366",
        "3243084712043770366", Phase.TRANSFER,
        # A request leaves the bootstrap queue only once its page list has arrived; only then can its transfer fail.
        (Sign.PAGE_LIST_ARRIVED,),
    ),
    Head(
        "decode-handshake", Level.ERROR, "decode", "Decode handshake failed for request rank=", "decode_req.req",
        "[2026-11-21 01:42:39] Decode handshake failed for request rank=0 "
        "decode_req.req.rid='e5318587dee843209e9232a939844128' decode_req.req.bootstrap_room=3243084712043770366",
        "3243084712043770366", Phase.PREALLOC, (Sign.GAVE_UP_UNMET,),
    ),
    Head(
        "decode-transfer", Level.ERROR, "decode", "Decode transfer failed for request rank=", "decode_req.req",
        "[2026-11-21 01:59:57] Decode transfer failed for request rank=0 "
        "decode_req.req.rid='2bfafc2472b4467383402a55ee1d31d5' decode_req.req.bootstrap_room=7707449254856086911",
        "7707449254856086911", Phase.HANDSHAKE, (Sign.PAGE_LIST_SENT,),
    ),
)  # fmt: skip

_CAUSE = r"KVTransferError\(bootstrap_room=\d+\): "
TAILS = (
    Tail(
        "timed-out", Phase.TIMED_OUT, " timed out after ",
        r"Request \d+ timed out after (?P<seconds>[\d.]+)s in KVPoll\.(?P<state>\w+)"
        r"(?: \(limit (?P<limit>[\d.]+)s\))?",  # only pdctl's own engine names the limit
        "Request {room} timed out after 20.0s in KVPoll.{state}",
    ),
    Tail("aborted", Phase.ABORTED, "Aborted by AbortReq.", r"Aborted by AbortReq\.", "Aborted by AbortReq.", echo=True),
    Tail(
        "aborted-by-decode", Phase.ABORTED, "Aborted by decode-side abort notification.",
        r"Aborted by decode-side abort notification\.", "Aborted by decode-side abort notification.",
        "prefill", Span(V0_5_16), echo=True,
    ),
    Tail(
        "failed-elsewhere", Phase.FAILED, "Failed due to an unknown reason from another rank",
        r"Failed due to an unknown reason from another rank", "Failed due to an unknown reason from another rank",
        echo=True,
    ),
    Tail(
        "might-be-dead", Phase.FAILED, "Failed to get kvcache from prefill instance, it might be dead",
        r"Failed to get kvcache from prefill instance, it might be dead",
        "Failed to get kvcache from prefill instance, it might be dead", "decode", echo=True,
    ),
    Tail(
        "session-dead", Phase.FAILED, "Decode instance could be dead, remote mooncake session",
        r"Decode instance could be dead, remote mooncake session (?P<session>\S+) is not alive",
        "Decode instance could be dead, remote mooncake session 127.0.0.1:15794 is not alive",
        "prefill-transfer", backend="mooncake", echo=True,
    ),
    Tail(
        "kv-chunk-not-sent", Phase.FAILED, "Failed to send kv chunk of",
        r"Failed to send kv chunk of \d+ to (?P<addr>\S+)", "Failed to send kv chunk of {room} to 127.0.0.1:43213",
        "prefill", backend="mooncake", cause="PD409",
    ),
    Tail(
        "state-not-sent", Phase.FAILED, "Failed to send state components of",
        r"Failed to send state components of \d+ to (?P<addr>\S+)",
        "Failed to send state components of {room} to 127.0.0.1:43213", "prefill", Span(V0_5_17), cause="PD409",
    ),
    Tail(
        "prefill-lost", Phase.FAILED, " connection with prefill instance (bootstrap_addr: ",
        r"(?:Losing|Lost) connection with prefill instance \(bootstrap_addr: (?P<addr>[^)]+)\)",
        "Lost connection with prefill instance (bootstrap_addr: 127.0.0.1:8998)", "decode",
        proves=(Sign.BOOTSTRAP_GIVEN, Sign.BOOTSTRAP_MISSED),
    ),
    Tail(
        "prefill-down", Phase.FAILED, "Prefill server with bootstrap_addr: ",
        r"Prefill server with bootstrap_addr: (?P<addr>\S+) is healthy before, but now it is down\.",
        "Prefill server with bootstrap_addr: 127.0.0.1:8998 is healthy before, but now it is down. "
        "Request (bootstrap_room: {room}) has been marked as failed.", "decode", Span(V0_5_10),
        proves=(Sign.BOOTSTRAP_GIVEN, Sign.BOOTSTRAP_MISSED),
    ),
    Tail(
        "prefill-unknown", Phase.FAILED, "Could not fetch prefill parallel info from ",
        r"Could not fetch prefill parallel info from (?:bootstrap_addr: )?(?P<addr>\S+)",
        "Could not fetch prefill parallel info from bootstrap_addr: 127.0.0.1:9999", "decode", cause="PD205",
    ),
    Tail(
        "rank-unknown", Phase.FAILED, "Could not fetch bootstrap info for",
        r"Could not fetch bootstrap info for:? (?P<rank_wanted>.*)",
        "Could not fetch bootstrap info for: prefill_dp_rank: 0 prefill_cp_rank: 0 target_tp_rank: 1 "
        "and target_pp_rank 0", "decode", cause="PD209",
    ),
    Tail(
        "rank-unreachable", Phase.FAILED, " to prefill ",
        r"(?:send_metadata|_register_kv_args|send_abort) to prefill (?P<addr>\S+) failed",
        "send_metadata to prefill 127.0.0.1:45795 failed", "decode", Span(V0_5_17), cause="PD210",
    ),
    Tail(
        "dp-rank-conflict", Phase.FAILED, "follow_bootstrap_room conflict",
        r"follow_bootstrap_room conflict: dispatched to dp_rank (?P<dp_rank>\d+)",
        "follow_bootstrap_room conflict: dispatched to dp_rank 0 but bootstrap_room {room} implies dp_rank 1. "
        "Set SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK=1 on both prefill and decode.",
        "prefill", Span(V0_5_11), cause="PD313",
    ),
    Tail(
        "policy-mismatch", Phase.FAILED, "Disaggregation decode allocation policy mismatch",
        r"Disaggregation decode allocation policy mismatch: prefill=(?P<prefill_policy>\w+), "
        r"decode=(?P<decode_policy>\w+)",
        "Disaggregation decode allocation policy mismatch: prefill=early, decode=prefill_complete. Set "
        "--disaggregation-decode-allocation-policy identically on both roles.", "decode", Span(V0_5_22), cause="PD325",
    ),
    Tail(
        "room-reused", Phase.FAILED, " bootstrap room", r"Duplicate (?:or cancelled|decode) bootstrap room",
        "Duplicate or cancelled bootstrap room", "", Span(V0_5_22), cause="PD707",
    ),
    Tail(
        "completion-timed-out", Phase.TIMED_OUT, "Timed out waiting for prefill completion",
        r"Timed out waiting for prefill completion", "Timed out waiting for prefill completion", "decode",
        Span(V0_5_22),
    ),
    Tail(
        "ended-early", Phase.FAILED, "Room marked Failed before the transfer ended",
        r"Room marked Failed before the transfer ended", "Room marked Failed before the transfer ended", "",
        Span(V0_5_20), echo=True,
    ),
    # Without a reason. NIXL up to 0.5.5 writes what the fake backend writes in every release; later a bare text of its
    # own, which from 0.5.13 to 0.5.22 is the reason of a KVTransferError.
    Tail(
        "unexplained-oldest", Phase.FAILED, "Exception", r"Fake KV(?:Receiver|Sender) Exception",
        "Fake KVReceiver Exception", "", echo=True, wrapped=False,
    ),
    Tail(
        "unexplained-old", Phase.FAILED, "Exception", r"NIXL KV(?:Receiver|Sender) Exception",
        "NIXL KVReceiver Exception", "", Span(V0_5_6, V0_5_13), "nixl", echo=True, wrapped=False,
    ),
    Tail(
        "unexplained", Phase.FAILED, "NIXL KV", r"NIXL KV(?:Receiver|Sender) Exception", "NIXL KVReceiver Exception",
        "", Span(V0_5_13, V0_5_23), "nixl", echo=True,
    ),
    Tail("failed", Phase.FAILED, " with exception ", r".*", "NIXL transport error: NIXL_ERR_REMOTE_DISCONNECT"),
)  # fmt: skip


def _row(head: Head, tail: Tail) -> Row:
    path = head.name.replace(".", r"\.")
    state = "Bootstrapping" if head.role == "prefill" else "WaitingForInput"
    said = tail.example.format(room=head.room, state=state)
    outer = f"KVTransferError(bootstrap_room={head.room}): " if tail.wrapped else ""
    cause = _CAUSE if tail.wrapped else ""
    if tail.id == "failed":  # the fallback also matches any other exception
        cause = f"(?:{cause})?"
    return Row(
        f"{head.id}-{tail.id}", Speaker.SGLANG, head.level, head.role,
        (head.text if tail.id == "failed" else tail.literal).encode(),
        head.text + rf"(?P<rank>\d+) {path}\.rid=(?:'(?P<rid>[^']*)'|\"[^\"]*\") {path}\.bootstrap_room=(?P<room>\d+) "
        rf"with exception {cause}(?P<reason>{tail.pattern}{'' if tail.pattern.endswith('.*') else '.*'})",
        f"{head.example} with exception {outer}{said}",
        tail.span, tail.phase, tail.backend, tail.cause, tail.echo,
        proves=(*head.proves, *tail.proves), reached=head.reached,
    )  # fmt: skip


def _bare(head: Head) -> Row:
    """The row of a head without any exception: the sender or receiver has none to report."""
    path = head.name.replace(".", r"\.")
    return Row(
        f"{head.id}-failed-silently", Speaker.SGLANG, head.level, head.role, head.text.encode(),
        head.text + rf"(?P<rank>\d+) {path}\.rid=(?:'(?P<rid>[^']*)'|\"[^\"]*\") {path}\.bootstrap_room=(?P<room>\d+)",
        head.example, phase=Phase.FAILED, proves=head.proves, reached=head.reached,
    )  # fmt: skip


ROWS = (
    *(_row(head, tail) for tail in TAILS for head in HEADS if head.id.startswith(tail.heads)),
    *(_bare(head) for head in HEADS),
)
