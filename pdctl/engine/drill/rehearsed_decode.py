"""The decode that ends as SGLang's does, on a page size it cannot read: for rehearsals only (docs/rehearsals.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engine.decode.decode_role import DecodeRole
from pdctl.engine.kv_link.room_failure import FailureCode

if TYPE_CHECKING:
    from pdctl.engine.scheduler.req import Req


class RehearsedDecode(DecodeRole):
    def _fail(self, req: Req, stage: str) -> None:
        failure = req.receiver.failure if req.receiver else None
        if failure and failure.code == FailureCode.MISMATCH.value:
            raise RuntimeError(failure.message.partition(" (bootstrap_addr: ")[0])
        super()._fail(req, stage)
