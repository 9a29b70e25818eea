"""Parse URLs and host:port, resolve them, and test whether a port accepts a connection from here."""

from __future__ import annotations

import re
import socket
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pdctl.errors import limit_reached
from pdctl.fleet.deadline import SLICE
from pdctl.loopback import bracketed
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from pdctl.fleet.deadline import Deadline

URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9A-Za-z:.%]+\]|[^\s/?#@:\[\]]+)(?::(?P<port>[0-9]{1,5}))?(?P<rest>[/?][!-~]*)?"
)
PORTS = {"http": 80, "https": 443}
LAST_PORT = 65535


class Unanswered(Exception):
    """There was no answer, or not a complete one; the text is the reason."""


class SocketAddress(NamedTuple):
    """A socket address as the socket module takes it."""

    family: int
    address: tuple[str | int | bytes, ...]


class HttpTarget(NamedTuple):
    """A parsed URL. `authority`: the Host header; `path` begins with / and includes the query."""

    secure: bool
    host: str
    port: int
    authority: str
    path: str


def parse(url: str) -> HttpTarget:
    found = URL.fullmatch(url)
    if found is None:
        raise Unanswered(f"{url!r:.200} is no http:// or https:// address")
    secure, host = found["scheme"] == "https", found["host"]
    port = int(found["port"] or PORTS[found["scheme"]])
    if not 0 < port <= LAST_PORT:
        raise Unanswered(f"{url!r:.200}: a port is 1 to {LAST_PORT}")
    rest = found["rest"] or "/"
    authority = host if found["port"] is None else f"{host}:{port}"
    return HttpTarget(secure, host.strip("[]"), port, authority, rest if rest[0] == "/" else "/" + rest)


def host_and_port(url: str) -> tuple[str, int | None]:
    """The host, without brackets, and port of a URL of any scheme or of host:port; ("", None) for anything else."""
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        return parts.hostname or "", parts.port
    except ValueError:
        return "", None


def without_userinfo(url: str) -> str:
    """The URL without `user:password@`, which is for nobody's eyes; the rest may be anything."""
    return re.sub(r"(?<=://)[^/?#]*@", "", url)


def join(host: str, port: int) -> str:
    return f"http://{bracketed(host)}:{port}"


def places(host: str, port: int, deadline: Deadline) -> tuple[SocketAddress, ...]:
    """Every address of `host`. Names are resolved in a thread, because the system's resolver has no deadline."""
    try:
        return _ask(host, port, socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        pass
    found: list[tuple[SocketAddress, ...] | str] = []

    def resolve() -> None:
        try:
            found.append(_ask(host, port, 0))
        except (OSError, UnicodeError) as error:  # UnicodeError: a host like "a..b"
            found.append(f"{host!r:.100}: {words(error)}")

    asking = threading.Thread(target=resolve, name=f"resolve {host:.50}", daemon=True)
    asking.start()
    while asking.is_alive() and not deadline.passed:
        asking.join(min(SLICE, deadline.left))
    if not found:
        raise Unanswered(f"the name {host!r:.100} was not resolved within {deadline.seconds:.2g} s")
    if isinstance(found[0], str):
        raise Unanswered(found[0])
    return found[0]


def _ask(host: str, port: int, flags: int) -> tuple[SocketAddress, ...]:
    rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return tuple(dict.fromkeys(SocketAddress(family, address) for family, _, _, _, address in rows))


def words(error: Exception) -> str:
    """The error's text without its number ("[Errno 111] Connection refused")."""
    said = re.sub(r"^\[[^\]]*\] ", "", str(error)).rstrip(".") or type(error).__name__
    return said[0].lower() + said[1:]


def dial(host: str, port: int, deadline: Deadline) -> str:
    """Connect to host:port; return "" if it was reached, else why not."""
    try:
        found = places(host, port, deadline)
    except Unanswered as error:
        return str(error)
    reason = "no address"
    for number, place in enumerate(found):
        share = deadline.left / (len(found) - number)
        if not share:
            return f"no connection within {deadline.seconds:.3g} s"
        try:
            with socket.socket(place.family, socket.SOCK_STREAM) as line:
                line.settimeout(share)
                line.connect(place.address)
        except TimeoutError:
            reason = f"no connection within {deadline.seconds:.3g} s"
        except OSError as error:
            if reached := limit_reached(error):
                raise reached from None
            reason = words(error)
        else:
            return ""
    return reason
