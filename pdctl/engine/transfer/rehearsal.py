"""A transport that its process does not survive: for rehearsals only (docs/rehearsals.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engine.transfer.around import Around

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engine.transfer.base import Op, Pages, TransferPlan, Transport


class RehearsedTransport(Around):
    """Once `doomed`, the next write stops half-way and `end` ends the process."""

    def __init__(self, inner: Transport, end: Callable[[], None]) -> None:
        super().__init__(inner)
        self.doomed = False
        self._process_end = end

    def post(self, plan: TransferPlan, src_pages: Pages, dst_pages: Pages) -> Op:
        if self.doomed:
            half = len(src_pages) // 2
            super().post(plan, src_pages[:half], dst_pages[:half])
            self._process_end()
        return super().post(plan, src_pages, dst_pages)
