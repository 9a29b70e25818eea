"""Where UCX listens: on the interface of --host, and on no other."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import subprocess
import sys

import pytest

from pdctl.engine.transfer.select import NET_DEVICES, interface_of, sees_all_processes

LISTENERS = """
import json, os, sys
from pathlib import Path
from pdctl.engine.transfer import select
transport = select.create("nixl", sys.argv[1])
transport.register(transport.allocate(1 << 20))
links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
own = {os.readlink(link) for link in links if os.path.islink(link)}
rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
print(json.dumps([row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]), flush=True)
os._exit(0)
"""


def outside() -> str:
    """An IPv4 address of this host that is not loopback; empty where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def listeners(host: str, **more: str) -> set[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("UCX_")} | more
    done = subprocess.run(
        [sys.executable, "-c", LISTENERS, host], env=environ, capture_output=True, text=True, check=True, timeout=60
    )
    found = [bytes.fromhex(word)[::-1] for word in json.loads(done.stdout.splitlines()[-1])]
    return {str(ipaddress.ip_address(packed)) for packed in found}


def test_with_host_on_loopback_ucx_listens_nowhere() -> None:
    """Only containers of one pod need it to: there, on loopback."""
    pytest.importorskip("nixl_cu12")
    assert listeners("127.0.0.1") == (set() if sees_all_processes() else {"127.0.0.1"})


def test_who_names_ucxs_transports_is_obeyed() -> None:
    pytest.importorskip("nixl_cu12")
    assert listeners("127.0.0.1", UCX_TLS="all") == {"127.0.0.1"}


@pytest.mark.skipif(not outside(), reason="this host has a loopback interface only")
def test_with_an_address_of_the_network_ucx_listens_there_and_not_everywhere() -> None:
    pytest.importorskip("nixl_cu12")
    assert listeners(outside()) == {outside()}


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_addresses_are_found_by_their_interface() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.77") == ""
    if outside():
        assert interface_of(outside()) in {name for _, name in socket.if_nameindex()} - {"lo"}


def test_who_names_the_devices_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    from pdctl.engine.transfer.select import bind_ucx

    monkeypatch.setenv(NET_DEVICES, "mlx5_0:1")
    bind_ucx("127.0.0.1")
    assert os.environ[NET_DEVICES] == "mlx5_0:1"
