"""IP addresses as they are written, and which of them are this machine; no name is looked up.

Apart from `name_lookup`, because every plan asks this and loading sockets and futures costs half of a bare Python.
"""

from __future__ import annotations

import errno
import ipaddress


def parse_ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address without its zone, as IPv4 even if a dual-stack socket shows it as IPv6; None if it is none."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def bracketed(host: str) -> str:
    """The host as written in a URL: an IPv6 literal in brackets."""
    return f"[{host}]" if ":" in host and host[0] != "[" else host


def is_loopback(host: str) -> bool:
    """Whether `host`, an address (also in brackets) or a name, is always this machine. No name is looked up."""
    found = parse_ip(host.strip("[]"))
    return host.lower() == "localhost" if found is None else found.is_loopback


def is_localhost(host: str) -> bool:
    """Whether `host` is a spelling of what `localhost` means; 127.0.0.2 is a socket address of its own."""
    found = parse_ip(host.strip("[]"))
    return host.lower() == "localhost" if found is None else str(found) in ("127.0.0.1", "::1")


def fix_of_listening(error: OSError, host: str, fix: str) -> str:
    """What lets a server listen on `host` after all: `fix`, unless no interface of this machine has that address."""
    if error.errno != errno.EADDRNOTAVAIL:
        return fix
    if not is_loopback(host):
        return f"no interface of this machine has {host}: `ip -br address` lists what they have"
    given = "::1/128" if ":" in host else "127.0.0.1/8"
    return f"this machine's loopback interface lacks it: sudo ip address add {given} dev lo; sudo ip link set lo up"
