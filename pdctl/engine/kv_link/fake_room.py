"""Both ends of a room for requests that name the fake bootstrap host: warm-up and health never wait for a peer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engine.kv_link import room_failure as failures
from pdctl.engine.kv_link.room_failure import Failure, FailureCode
from pdctl.engine.kv_link.room_state import KVPoll, TransferStats

if TYPE_CHECKING:
    from pdctl.engine.transfer.transport import Pages


class FakeSender:
    """For requests that name the fake bootstrap host: everything succeeds at once and nothing is sent."""

    settled = True
    failure: Failure | None = None
    peers: tuple[str, ...] = ()

    def __init__(self, room: int, rid: str) -> None:
        self.room = room
        self.rid = rid
        self.stats = TransferStats()
        self._state = KVPoll.WAITING_FOR_INPUT

    def poll(self) -> KVPoll:
        return self._state

    def send(self, pages: Pages, last: bool, metadata: bytes = b"") -> None:
        del metadata
        self.stats = TransferStats(pages=self.stats.pages + len(pages), chunks=self.stats.chunks + 1)
        if last:
            self._state = KVPoll.SUCCESS

    def abort(self, reason: str = failures.ABORTED, code: str = FailureCode.ABORTED.value) -> None:
        self.failure = Failure(code, reason)
        self._state = KVPoll.FAILED

    def clear(self) -> None:
        return


class FakeReceiver:
    """For requests that name the fake bootstrap host: ready at once, arrived as soon as the pages are announced."""

    failure: Failure | None = None
    peers: tuple[str, ...] = ()

    def __init__(self, room: int, rid: str) -> None:
        self.room = room
        self.rid = rid
        self.metadata: bytes | None = None
        self.stats = TransferStats()
        self._state = KVPoll.WAITING_FOR_INPUT

    @property
    def settled(self) -> bool:
        return self._state.final

    def poll(self) -> KVPoll:
        return self._state

    def send_metadata(self, pages: Pages, prefix_pages: int = 0) -> None:
        """`metadata` stays empty: there is no first token, and the scheduler takes any."""
        del prefix_pages
        self.stats = TransferStats(pages=len(pages))
        self.metadata = b""
        self._state = KVPoll.SUCCESS

    def abort(self, reason: str = failures.ABORTED, code: str = FailureCode.ABORTED.value) -> None:
        self.failure = Failure(code, reason)
        self._state = KVPoll.FAILED

    def clear(self) -> None:
        return
