"""A name has a deadline whatever its DNS server does; an address needs none."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from pdctl import name_lookup
from pdctl.engine.kv_link.bootstrap_client import BootstrapClient, BootstrapError
from pdctl.name_lookup import dial, is_localhost, is_loopback, look_up
from tests.cases import for_each

real = socket.getaddrinfo


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A resolver that answers for no name. It counts how often it was asked."""
    over = threading.Event()

    def ask(host: str, port: int, **how: int) -> object:
        if how.get("flags", 0) & socket.AI_NUMERICHOST:
            return real(host, port, **how)
        assert over.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "over")

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    yield over
    over.set()


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


def test_a_silent_resolver_is_named_with_the_name(silent: threading.Event) -> None:
    with pytest.raises(
        OSError, match=r"the name 'prefill-0' was not looked up within 0\.05 s: its DNS server is silent"
    ):
        look_up("prefill-0", 8998, 0.05)
    assert look_up("127.0.0.1", 8998)[0].host == "127.0.0.1"
    with socket.create_server(("127.0.0.1", 0)) as door:
        dial("127.0.0.1", door.getsockname()[1], 5.0).close()


def test_one_name_is_looked_up_once_at_a_time_and_names_are_bounded(
    silent: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = name_lookup.begin("a", 1)
    assert name_lookup.begin("a", 1) is first
    monkeypatch.setattr(name_lookup, "MOST", len(name_lookup._asked))
    with pytest.raises(OSError, match="other names are being looked up; 'b' is not"):
        look_up("b", 1, 5.0)
    silent.set()
    with pytest.raises(OSError, match="over"):
        first.result(60)


def test_a_bootstrap_server_whose_name_is_not_looked_up(
    silent: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pdctl.engine.kv_link.bootstrap_client.HEALTH_TIMEOUT", 0.05)
    with pytest.raises(BootstrapError, match=r"prefill-0:8998/health: the name 'prefill-0' was not looked up within"):
        asyncio.run(BootstrapClient().health("prefill-0:8998"))


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_what_is_no_name_is_an_error_with_words(host: str) -> None:
    with pytest.raises(OSError, match=host[:4]) as refused:
        look_up(host, 1, 30.0)
    assert refused.value.strerror


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "::1", "[::1]", "::ffff:127.0.0.1"])
def test_spellings_of_localhost_are_one_address(host: str) -> None:
    assert is_localhost(host)


@pytest.mark.parametrize("host", ["127.0.0.2", "127.1.2.3", "0.0.0.0", "10.0.0.1", "node1", ""])
def test_another_loopback_address_is_another_address(host: str) -> None:
    assert not is_localhost(host)
