"""A transport whose writes fail, get lost, stall or bring other bytes on request (pdctl.engine.drill.fault_points)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from pdctl.engine.drill.fault_points import arm
from pdctl.engine.transfer.around import Around, find
from pdctl.engine.transfer.checksum import ChecksumTransport
from pdctl.engine.transfer.transport import Op, OpState

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.drill.fault_points import Armed
    from pdctl.engine.transfer.transport import Pages, TransferPlan, Transport


class FaultyTransport(Around):
    def __init__(self, inner: Transport, armed: Armed) -> None:
        super().__init__(inner)
        self.caps = dataclasses.replace(inner.caps, prompt=False)  # a stall must never be the KV manager's
        self._armed = armed
        self.breaks_off: Callable[[], None] | None = None  # half-way through the next write

    def post(self, plan: TransferPlan, src_pages: Pages, dst_pages: Pages) -> Op:
        if self.breaks_off is not None:
            half = len(src_pages) // 2
            super().post(plan, src_pages[:half], dst_pages[:half])
            self.breaks_off()
        fault = self._armed.at("post")
        action = fault.action if fault is not None else ""
        if action == "drop":  # as a write that the network acknowledged and lost
            return Op(plan.peer, plan.nbytes(len(src_pages)), OpState.DONE)
        if action == "fail":
            return Op(plan.peer, 0, OpState.FAILED, f"fault {fault.word}" if fault else "")
        if self._armed.at("page") is not None:
            src_pages = np.roll(src_pages, 1) if len(src_pages) > 1 else np.zeros_like(src_pages)
        if action == "duplicate":
            super().post(plan, src_pages, dst_pages)
        return super().post(plan, src_pages, dst_pages)


def with_faults(transport: Transport, rank: int, more: str = "") -> Transport:
    """`transport`, or one around it that does what PDCTL_FAULTS, and `more` like it, ask."""
    armed = arm(rank, more)
    if armed is None:
        return transport
    checked = find(transport, ChecksumTransport)
    if checked is not None and find(checked, FaultyTransport) is not None:
        return transport  # of the prefill this instance was before it was a decode
    if checked is not None:  # checksums are of what was to be sent: they have to see the fault
        checked.beneath(lambda inner: FaultyTransport(inner, armed))
        return transport
    return FaultyTransport(transport, armed)
