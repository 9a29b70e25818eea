"""One decode rank's page list for a room, and what has been written into it."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pdctl.engine.kv_link.kv_checksums import checksums
from pdctl.engine.transfer.pages import require_pages
from pdctl.engine.transfer.transport import Op, OpState, TransferError

if TYPE_CHECKING:
    from pdctl.engine.kv_link.kv_frames import Checksums, TransferInfo
    from pdctl.engine.prefill.decode_sessions import DecodeSession
    from pdctl.engine.transfer.transport import Pages, Transport

log = logging.getLogger("pdctl.engine")


@dataclass(frozen=True, slots=True)
class Chunk:
    pages: Pages
    last: bool
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Part:
    """A chunk on its way to every decode rank of the room."""

    chunk: Chunk
    began: float  # monotonic seconds
    ops: list[Op]

    @property
    def done(self) -> bool:
        return all(op.state == OpState.DONE for op in self.ops)

    def note(self, room: int) -> None:
        nbytes = sum(op.nbytes for op in self.ops)
        log.info(
            "room=%d sent chunk pages=%d last=%s bytes=%d seconds=%.6f",
            room, len(self.chunk.pages), self.chunk.last, nbytes, time.monotonic() - self.began,
        )  # fmt: skip


def note_page_list(info: TransferInfo) -> None:
    """sglang 0.5.3 to 0.5.23, nixl (there at debug level)."""
    required = info.required_dst_info_num
    log.info("got info room=%d agent_name='%s' required_dst_info_num=%d", info.room, info.session, required)


@dataclass(slots=True, eq=False)
class Destination:
    """A dummy takes part in the count and gets nothing. `nbytes`, `chunks` and `descriptors` count what was posted."""

    session: DecodeSession
    info: TransferInfo
    pages: Pages
    nbytes: int = 0
    chunks: int = 0
    descriptors: int = 0
    posted: list[tuple[Pages, Op]] = field(default_factory=list)  # our pages, in order

    def check(self) -> str:
        """What is wrong with the page list; empty when nothing is."""
        try:
            require_pages(f"page list of {self.session.endpoint}", self.pages, self.session.num_pages)
        except TransferError as error:
            return str(error)
        return ""

    @property
    def expected(self) -> int:
        """Pages of the whole prompt, those the decode has already among them."""
        return self.info.decode_prefix_pages + len(self.pages)

    def wrong_length(self, sent: int, last: bool) -> bool:
        return sent > self.expected or (last and sent != self.expected)

    def post(self, transport: Transport, pages: Pages, first: int) -> Op:
        """`pages` of ours, of the prompt's those from number `first` on, to the decode's pages for them.

        What the decode has already is left out. Raises TransferError for pages that are none.
        """
        session, prefix = self.session, self.info.decode_prefix_pages
        pages, first = pages[max(0, prefix - first) :], max(0, first - prefix)
        if session.plan is None or (prefix and not len(pages)):
            return Op(session.id, 0, OpState.DONE)
        op = transport.post(session.plan, pages, self.pages[first : first + len(pages)])
        self.nbytes += op.nbytes
        self.descriptors += op.descriptors
        self.chunks += bool(len(pages))
        self.posted.append((pages, op))
        return op

    @property
    def checksums(self) -> Checksums | None:
        """Once every write has ended."""
        return checksums(self.session.plan, self.posted) if self.session.plan is not None else None
