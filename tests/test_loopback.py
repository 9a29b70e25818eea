"""An address is this machine however it is written."""

from __future__ import annotations

import errno

from pdctl.loopback import fix_of_listening, is_localhost, is_loopback
from tests.cases import for_each

LOOPBACK = (
    "127.0.0.1", "127.0.0.2", "localhost", "LOCALHOST", "::1", "[::1]", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1",
)  # fmt: skip
ELSEWHERE = (
    "", "0.0.0.0", "::", "[::]", "10.0.0.1", "128.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "localhost.example.com",
    "127", "node1",
)  # fmt: skip


@for_each(("host", "loopback"), [*((host, True) for host in LOOPBACK), *((host, False) for host in ELSEWHERE)])
def test_loopback_however_it_is_written(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@for_each("host", ["localhost", "LOCALHOST", "127.0.0.1", "::1", "[::1]", "::ffff:127.0.0.1"])
def test_spellings_of_localhost_are_one_address(host: str) -> None:
    assert is_localhost(host)


@for_each("host", ["127.0.0.2", "127.1.2.3", "0.0.0.0", "10.0.0.1", "node1", ""])
def test_another_loopback_address_is_another_address(host: str) -> None:
    assert not is_localhost(host)


@for_each(
    ("host", "said"),
    [
        ("127.0.0.1", "sudo ip address add 127.0.0.1/8 dev lo"),
        ("::1", "sudo ip address add ::1/128 dev lo"),
        ("192.0.2.7", "no interface of this machine has 192.0.2.7"),
    ],
)
def test_an_address_that_this_machine_lacks_is_not_mended_by_another_port(host: str, said: str) -> None:
    assert said in fix_of_listening(OSError(errno.EADDRNOTAVAIL, "Cannot assign"), host, "give another --port")
    assert fix_of_listening(OSError(errno.EADDRINUSE, "in use"), host, "give another --port") == "give another --port"
