"""What a prefill rank knows of one decode rank: its socket, its pool, what goes there, and whether it still lives."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pdctl.engine.disaggregation import rank_map
from pdctl.engine.disaggregation.channel import LinkError
from pdctl.engine.disaggregation.failure import FailureCode
from pdctl.engine.disaggregation.handshake import (
    PROTOCOL,
    RegisterAck,
    RegisterKvArgs,
    Status,
    clipped,
    codec,
    other_version,
)
from pdctl.engine.disaggregation.rank_shape import room_page_bytes
from pdctl.engine.transfer.base import Cut, TransferError
from pdctl.layout.cuts import piece, speaks

if TYPE_CHECKING:
    from pdctl.engine.disaggregation.channel import Link
    from pdctl.engine.disaggregation.handshake import Frame
    from pdctl.engine.disaggregation.prefill import PrefillManager
    from pdctl.engine.transfer.base import TransferPlan

log = logging.getLogger("pdctl.engine")


@dataclass(slots=True, eq=False)
class Session:
    """One decode rank's life, from its registration to the loss of its connection.

    `plan` is None where other ranks write everything: rooms are counted and answered, and no byte moves. `speaks`:
    the first token goes to this decode rank from here.
    """

    id: str
    endpoint: str
    link: Link
    num_pages: int  # of the decode's pool
    room_page_bytes: int  # one page of a room over all ranks of the decode's group
    plan: TransferPlan | None
    speaks: bool
    rooms: set[int] = field(default_factory=set)

    def tell(self, frame: Frame) -> None:
        if self.link.closed or self.link.send(codec.encode(frame)):
            return
        address = self.endpoint.removeprefix("tcp://")
        if isinstance(frame, Status):
            log.warning(
                "Failed to sync status %d of room %d to %s: it has stopped reading", frame.status, frame.room, address
            )
        else:
            log.warning("Cannot send %s to %s: it has stopped reading", type(frame).__name__, address)


class Refusal(NamedTuple):
    code: FailureCode
    reason: str


def refusal(manager: PrefillManager, message: RegisterKvArgs) -> Refusal | None:
    """Why this decode cannot be served, with both shapes; None when it can."""
    if message.instance not in ("", manager.instance):
        text = f"this is prefill rank {manager.instance}, not {message.instance} that the bootstrap server named"
        return Refusal(FailureCode.STALE_ENDPOINT, text)
    if message.protocol != PROTOCOL:
        return Refusal(FailureCode.MISMATCH, other_version(message.protocol))
    reason = rank_map.mismatch(manager.shape, message.shape)
    if not reason and message.backend != manager.transport.name:
        reason = (
            f"Transfer backend mismatch: prefill={manager.transport.name}, decode={message.backend}. "
            "Both servers must use the same --disaggregation-transfer-backend value."
        )
    return Refusal(FailureCode.MISMATCH, reason) if reason else None


def planned(manager: PrefillManager, message: RegisterKvArgs) -> TransferPlan | None:
    """What goes to this decode; None for nothing. Raises TransferError where the pools do not hold what they should."""
    found = piece(manager.shape.kv_model, manager.shape.seat, message.shape.seat)
    if found is None:
        return None
    manager.transport.add_peer(message.session, message.descriptor)
    cut = Cut(
        slabs=found.slabs,
        heads=found.heads,
        local_slab=found.local_slab,
        remote_slab=found.remote_slab,
        local_head=found.local_head,
        remote_head=found.remote_head,
    )
    return manager.transport.plan(message.session, manager.geometry, message.geometry, cut)


def open_session(manager: PrefillManager, message: RegisterKvArgs) -> Session | None:
    """Answer a registration. None when it was refused; the decode then knows why, in the same words as our log."""
    refused, plan = refusal(manager, message), None
    if refused is None:
        try:
            plan = planned(manager, message)
        except (TransferError, ValueError, OverflowError, MemoryError) as error:
            manager.transport.drop_peer(message.session)
            refused = Refusal(FailureCode.MISMATCH, rank_map.both(f"{error}.", manager.shape.words, message.shape))
    crowded = manager.make_room(message.endpoint) if refused is None else ""
    if crowded:
        manager.transport.drop_peer(message.session)
        refused = Refusal(FailureCode.MISMATCH, crowded)
    answer = codec.encode(_answer(manager, message.session, refused))
    try:
        if refused is not None:
            manager.rate.error("Refused decode session %s (%s): %s", message.session, message.endpoint, refused.reason)
            manager.loop.send_once(message.endpoint, answer)
            return None
        link = manager.loop.connect(message.endpoint)
    except LinkError as error:
        manager.rate.error("Cannot answer decode session %s: %s", message.session, error)
        manager.transport.drop_peer(message.session)
        return None
    link.send(answer)
    log.info("Register KVArgs from %s successfully", message.session)
    first = speaks(manager.shape.kv_model, manager.shape.seat, message.shape.seat)
    return Session(
        id=message.session,
        endpoint=message.endpoint,
        link=link,
        num_pages=message.geometry.num_pages,
        room_page_bytes=room_page_bytes(message.shape, message.geometry),
        plan=plan,
        speaks=first,
    )


def _answer(manager: PrefillManager, session: str, refused: Refusal | None) -> RegisterAck:
    code, reason = (refused.code.value, clipped(refused.reason)) if refused else ("", "")
    return RegisterAck(session, manager.endpoint, manager.host, refused is None, reason, code)
