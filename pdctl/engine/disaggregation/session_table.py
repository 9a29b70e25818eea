"""The decode sessions of a prefill rank: as many as it can hold, and of one decode rank no more than its share."""

from __future__ import annotations

import resource
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pdctl.engine.disaggregation.channel import Link
    from pdctl.engine.disaggregation.session import Session

MOST = 1024  # a session's link holds four file descriptors and three ZMQ sockets, its mapped pool (shm) one more
PER_ENDPOINT = 64  # a decode rank keeps one for each prefill rank and DP group, and one more while it registers anew
FILES_EACH = 6
FILES_ELSEWHERE = 256  # file descriptors of this process for everything else


def capacity() -> int:
    """MOST, or fewer where this process may not open the files for so many."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST
    return max(16, min(MOST, (files - FILES_ELSEWHERE) // FILES_EACH))


class SessionTable:
    """In the order of their last use; the one that is idle for longest leaves for a new one."""

    def __init__(self, most: int | None = None, per_endpoint: int = PER_ENDPOINT) -> None:
        self._most = capacity() if most is None else most
        self._per_endpoint = per_endpoint
        self._kept: OrderedDict[str, Session] = OrderedDict()
        self._by_link: dict[Link, Session] = {}
        self._by_endpoint: dict[str, dict[str, Session]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def all(self) -> tuple[Session, ...]:
        return tuple(self._kept.values())

    def get(self, session: str) -> Session | None:
        return self._kept.get(session)

    def by_link(self, link: Link) -> Session | None:
        return self._by_link.get(link)

    def use(self, session: str) -> Session | None:
        """The session, which now is the one used last."""
        found = self._kept.get(session)
        if found is not None:
            self._kept.move_to_end(session)
            same = self._by_endpoint[found.endpoint]
            same[session] = same.pop(session)
        return found

    def add(self, session: Session) -> None:
        self._kept[session.id] = session
        self._by_link[session.link] = session
        self._by_endpoint.setdefault(session.endpoint, {})[session.id] = session

    def pop(self, session: str) -> Session | None:
        found = self._kept.pop(session, None)
        if found is not None:
            del self._by_link[found.link]
            same = self._by_endpoint[found.endpoint]
            del same[session]
            if not same:
                del self._by_endpoint[found.endpoint]
        return found

    def make_room(self, endpoint: str, idle: Callable[[Session], bool], evict: Callable[[Session], None]) -> str:
        """Evict an idle session where one more of `endpoint` does not fit; why it does not, where all are busy."""
        same = self._by_endpoint.get(endpoint, {})
        if len(same) >= self._per_endpoint and not _evicted(same.values(), idle, evict):
            return f"{len(same)} sessions of decode rank {endpoint} have rooms here; one decode rank may have no more"
        if len(self._kept) >= self._most and not _evicted(self._kept.values(), idle, evict):
            return f"this prefill rank serves {len(self._kept)} decode sessions, all with rooms; it can serve no more"
        return ""


def _evicted(sessions: Iterable[Session], idle: Callable[[Session], bool], evict: Callable[[Session], None]) -> bool:
    found = next((session for session in sessions if idle(session)), None)
    if found is not None:
        evict(found)
    return found is not None
