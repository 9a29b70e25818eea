"""What a prefill rank knows of one decode rank: its socket, its pool, and whether it still lives."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pdctl.engine.disaggregation.channel import LinkError
from pdctl.engine.disaggregation.handshake import RegisterAck, RegisterKvArgs, Status, clipped, codec
from pdctl.engine.transfer.base import TransferError

if TYPE_CHECKING:
    from pdctl.engine.disaggregation.channel import Link
    from pdctl.engine.disaggregation.handshake import Frame
    from pdctl.engine.disaggregation.prefill import PrefillManager
    from pdctl.engine.transfer.base import TransferPlan

log = logging.getLogger("pdctl.engine")


@dataclass(slots=True, eq=False)
class Session:
    """One decode rank's life, from its registration to the loss of its connection."""

    id: str
    endpoint: str
    link: Link
    plan: TransferPlan
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


def mismatch(manager: PrefillManager, message: RegisterKvArgs) -> str:
    """Why this decode cannot be served, with both values; empty when it can. sglang 0.5.23's words where it has any."""
    config, geometry = manager.config, message.geometry
    if geometry.page_size != config.page_size:
        return (
            f"Page size mismatch: prefill server has page_size={config.page_size}, but decode server has "
            f"page_size={geometry.page_size}. Both servers must use the same --page-size value."
        )
    if message.kv_dtype != config.kv_dtype:
        return (
            f"KV cache dtype mismatch: prefill server has kv_cache_dtype={config.kv_dtype}, but decode server has "
            f"kv_cache_dtype={message.kv_dtype}. Both servers must use the same --kv-cache-dtype value."
        )
    if message.attn_tp_size != config.tp_size:
        return (
            f"Attention TP mismatch: prefill={config.tp_size}, decode={message.attn_tp_size}. "
            "This engine moves KV between equal attention TP sizes only."
        )
    if message.backend != manager.transport.name:
        return (
            f"Transfer backend mismatch: prefill={manager.transport.name}, decode={message.backend}. "
            "Both servers must use the same --disaggregation-transfer-backend value."
        )
    return ""


def open_session(manager: PrefillManager, message: RegisterKvArgs) -> Session | None:
    """Answer a registration. None when it was refused; the decode then knows why, in the same words as our log."""
    try:
        link = manager.loop.connect(message.endpoint)
    except LinkError as error:
        log.error("Cannot answer decode session %s: %s", message.session, error)
        return None
    reason = mismatch(manager, message)
    plan = None
    if not reason:
        try:
            manager.transport.add_peer(message.session, message.descriptor)
            plan = manager.transport.plan(message.session, manager.geometry, message.geometry)
        except TransferError as error:
            manager.transport.drop_peer(message.session)
            reason = str(error)
    link.send(
        codec.encode(RegisterAck(message.session, manager.endpoint, manager.host, plan is not None, clipped(reason)))
    )
    if plan is None:
        log.error("Refused decode session %s (%s): %s", message.session, message.endpoint, reason)
        manager.loop.drop(link, linger=1.0)
        return None
    log.info("Register KVArgs from %s successfully", message.session)
    return Session(message.session, message.endpoint, link, plan)
