"""How a room ended, as every view marks and words it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pdctl.trace.room import WrongPrefill


class Mark(NamedTuple):
    """`plain` stands for `symbol` where the terminal has only ASCII. said: what there is to say without a cause."""

    symbol: str
    plain: str
    style: str
    said: str


MARKS = {
    "ok": Mark("✓", "+", "green", "the KV pages arrived and the decode finished"),
    "failed": Mark("✗", "x", "red", "no line says why"),
    "hung": Mark("✗", "x", "red", "no line says why"),
    "aborted": Mark("-", "-", "yellow", "the client left: nothing of the deployment failed"),
    "refused": Mark("-", "-", "yellow", "the request itself was refused: nothing of the deployment failed"),
    "incomplete": Mark("!", "!", "yellow", "the logs end before the room does"),
    "unknown": Mark("?", "?", "yellow", "the logs do not tell how the room ended"),
}
# Of the two legs of a request whose prefill is not the one that decode contacted.
STRAY = "has TransferInfo, never got the request"
BROKEN = frozenset({"failed", "hung"})


def waits(wrong: WrongPrefill) -> str:
    """What is to be said of the prefill that had the request."""
    return f"has the request{' by elimination' if wrong.by_elimination else ''}, waits for TransferInfo"
