"""What `GET /debug/rooms` shows of a rank: every request that has not ended, and what it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engine.ipc import steady_clock
from pdctl.engine.ipc.messages import LiveRoom

if TYPE_CHECKING:
    from pdctl.engine.scheduler.req import Req
    from pdctl.engine.scheduler.role import Role

# Queue → what moves a request out of it.
WAITS = {
    "bootstrap": "the decode's page list for this room",
    "waiting": "its forward pass",
    "inflight": "the end of its KV transfer",
    "prealloc": "the handshake with prefill {address}",
    "transfer": "the KV cache from prefill {address}",
    "running": "its next token",
    "retracted": "free pages, to resume",
    "draining": "the other side to stop writing",
}
NO_MEMORY = "free pages on this decode"


def live(role: Role) -> list[LiveRoom]:
    """Oldest first."""
    rooms = [_live(queue, req) for queue, req in role.members()]
    return sorted(rooms, key=lambda room: -room.age)


def _live(queue: str, req: Req) -> LiveRoom:
    end = req.sender or req.receiver
    state = end.poll().label if end else ""
    return LiveRoom(
        room=req.room,
        rid=req.rid,
        queue=queue,
        state=state,
        age=round(steady_clock.now() - req.times.received, 6),
        waiting_for=_waits(queue, req, state),
        prompt_tokens=req.prompt_len,
        output_tokens=len(req.output_ids),
        pages=len(req.pages),
        peers=list(end.peers) if end else [],
    )


def _waits(queue: str, req: Req, state: str) -> str:
    if queue == "prealloc" and state != "KVPoll.Bootstrapping":
        return NO_MEMORY
    message = req.message
    return WAITS[queue].format(address=f"{message.bootstrap_host}:{message.bootstrap_port}")
