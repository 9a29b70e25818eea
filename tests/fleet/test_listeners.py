"""Who listens on this machine, as /proc tells without a connection."""

from __future__ import annotations

import socket

import pytest

from pdctl.fleet.listeners import PROC, is_listening

pytestmark = pytest.mark.skipif(not (PROC / "net/tcp").exists(), reason="no /proc/net/tcp")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_listener_is_seen_and_not_dialled(host: str) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as door:
        door.bind((host, 0))
        port = door.getsockname()[1]
        assert not is_listening(host, port), "bound, but it does not listen yet"
        door.listen()
        assert is_listening(host, port)
        assert not is_listening("127.0.0.2", port)
        door.settimeout(0.05)
        with pytest.raises(TimeoutError):
            door.accept()
    assert not is_listening(host, port)


def test_what_is_no_address_listens_nowhere() -> None:
    assert not is_listening("localhost", 1)
    assert not is_listening("", 0)
