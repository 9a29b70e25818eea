"""Look host names up within a deadline.

The system's resolver has no deadline, and a DNS server may never answer.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet

from pdctl.quick_definitions import NamedTuple

LOOKUP = 10.0  # seconds, unless the caller says otherwise
MOST = 256  # names being looked up at once; the system may take half a minute for each


class Address(NamedTuple):
    """A row of socket.getaddrinfo."""

    family: socket.AddressFamily
    kind: socket.SocketKind
    proto: int
    canonical: str
    sockaddr: tuple[object, ...]

    @property
    def host(self) -> str:
        return str(self.sockaddr[0])


_lock = threading.Lock()
_asked: dict[tuple[str, int, int, int], Future[list[Address]]] = {}


def begin(host: str, port: int, kind: int = socket.SOCK_STREAM, flags: int = 0) -> Future[list[Address]]:
    """Begin to look up `host`; the future gets its addresses or an OSError. Callers of one name share one lookup.

    Each lookup has a daemon thread: a pool's threads would hold up other lookups, and the end of the process.
    """
    question = (host, port, kind, flags)
    found: Future[list[Address]] = Future()
    try:
        found.set_result(_ask(host, port, kind, flags | socket.AI_NUMERICHOST))
    except (OSError, UnicodeError):
        pass
    else:
        return found
    with _lock:
        known = _asked.get(question)
        if known is not None:
            return known
        if len(_asked) >= MOST:
            found.set_exception(_error(errno.EAGAIN, f"{MOST} other names are being looked up; {host!r:.100} is not"))
            return found
        _asked[question] = found
    threading.Thread(target=_run, args=(question, found), name=f"look up {host:.50}", daemon=True).start()
    return found


def look_up(
    host: str, port: int, seconds: float = LOOKUP, kind: int = socket.SOCK_STREAM, flags: int = 0
) -> list[Address]:
    """The addresses of `host`. Raise OSError, whose strerror says why there are none."""
    try:
        return begin(host, port, kind, flags).result(max(0.0, seconds))
    except (TimeoutError, NotYet) as error:
        if isinstance(error, OSError) and error.strerror:
            raise  # the answer itself
        raise lookup_timeout(host, seconds) from None


def lookup_timeout(host: str, seconds: float) -> OSError:
    """The error to raise if `begin` gave no answer in time."""
    return _error(
        errno.ETIMEDOUT, f"the name {host!r:.100} was not looked up within {seconds:.2g} s: its DNS server is silent"
    )


def dial(host: str, port: int, seconds: float) -> socket.socket:
    """A TCP connection to the first address of `host` that accepts one. Raise OSError."""
    until = time.monotonic() + seconds
    last: OSError = _error(errno.EHOSTUNREACH, f"{host!r:.100} has no address")
    for address in look_up(host, port, seconds):
        sock = socket.socket(address.family, address.kind, address.proto)
        try:
            sock.settimeout(max(0.001, until - time.monotonic()))
            sock.connect(address.sockaddr)
        except OSError as error:
            sock.close()
            last = error
        else:
            return sock
    raise last


def _run(question: tuple[str, int, int, int], found: Future[list[Address]]) -> None:
    try:
        answer = _ask(*question)
    except (OSError, UnicodeError) as error:  # UnicodeError: a label that is too long, or empty
        problem = error if isinstance(error, OSError) else _error(errno.EINVAL, f"{question[0]!r:.100}: {error}")
        with _lock:
            _asked.pop(question, None)
        found.set_exception(problem)
    else:
        with _lock:
            _asked.pop(question, None)
        found.set_result(answer)


def _ask(host: str, port: int, kind: int, flags: int) -> list[Address]:
    return [Address(*row) for row in socket.getaddrinfo(host, port, type=kind, flags=flags)]


def _error(number: int, words: str) -> OSError:
    return OSError(number, words)
