"""A worker whose name nobody looks up is said to be that, and a name is dialled at every address it has."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from pdctl.router.router_args import Origin
from pdctl.router.upstream import ConnectionPool, UpstreamError

real = socket.getaddrinfo


def connect(url: str, seconds: float) -> None:
    async def go() -> None:
        pool = ConnectionPool(Origin.parse(url), idle_timeout=1.0, connect_timeout=seconds)
        (await pool.connect()).close()

    asyncio.run(go())


def test_a_name_that_no_dns_server_answers_for(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def ask(host: str, port: int, **how: int) -> object:
        if how.get("flags", 0) & socket.AI_NUMERICHOST:
            return real(host, port, **how)
        assert over.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "over")

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    try:
        with pytest.raises(UpstreamError, match=r"the name 'prefill-0' was not looked up within 0\.05 s"):
            connect("http://prefill-0:30000", 0.05)
    finally:
        over.set()


def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = int(door.getsockname()[1])

        def ask(host: str, port: int, **how: int) -> object:
            if host != "prefill-0":
                return real(host, port, **how)
            if how.get("flags", 0) & socket.AI_NUMERICHOST:
                raise socket.gaierror(socket.EAI_NONAME, "no address")
            return [*real("127.0.0.2", port, **how), *real("127.0.0.1", port, **how)]

        monkeypatch.setattr(socket, "getaddrinfo", ask)
        connect(f"http://prefill-0:{port}", 30.0)
