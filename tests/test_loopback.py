"""An address is this machine however it is written."""

from __future__ import annotations

import pytest

from pdctl.loopback import is_localhost, is_loopback
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


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "::1", "[::1]", "::ffff:127.0.0.1"])
def test_spellings_of_localhost_are_one_address(host: str) -> None:
    assert is_localhost(host)


@pytest.mark.parametrize("host", ["127.0.0.2", "127.1.2.3", "0.0.0.0", "10.0.0.1", "node1", ""])
def test_another_loopback_address_is_another_address(host: str) -> None:
    assert not is_localhost(host)
