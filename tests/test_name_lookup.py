"""A name has a deadline whatever its DNS server does."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from pdctl import name_lookup
from pdctl.engine.kv_link.bootstrap_client import BootstrapClient, BootstrapError
from pdctl.name_lookup import dial, look_up

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
