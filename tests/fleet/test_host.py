"""Facts about this host: the real one where it can be looked at, a tree of files where the hardware is not here."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pdctl.fleet import host_probe, listeners
from pdctl.fleet.observations import Endpoint, Holder, ObservedEngine, Package, RdmaDevice
from tests.fleet.conftest import closed_port

GID = "fe80:0000:0000:0000:5054:00ff:fe12:3456"
MAPPED = "0000:0000:0000:0000:0000:ffff:0a00:0001"
NONE = "0000:0000:0000:0000:0000:0000:0000:0000"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def device(
    name: str, state: str, layer: str, rate: str, gids: tuple[str, ...], kinds: tuple[str, ...]
) -> dict[str, str]:
    port = f"sys/class/infiniband/{name}/ports/1"
    table = {f"{port}/gids/{index}": f"{gid}\n" for index, gid in enumerate(gids)}
    types = {f"{port}/gid_attrs/types/{index}": f"{kind}\n" for index, kind in enumerate(kinds) if kind}
    return {
        f"{port}/state": f"{state}\n",
        f"{port}/link_layer": f"{layer}\n",
        f"{port}/rate": f"{rate}\n",
        **table,
        **types,
    }


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two cards as mlx5 shows them: InfiniBand that is up, RoCE that is down; and an open NVIDIA driver."""
    write(
        tmp_path,
        {
            **device("mlx5_0", "4: ACTIVE", "InfiniBand", "400 Gb/sec (4X NDR)", (GID, NONE), ("IB/RoCE v1", "")),
            **device(
                "mlx5_1",
                "1: DOWN",
                "Ethernet",
                "40 Gb/sec (4X QDR)",
                (GID, GID, MAPPED),
                ("IB/RoCE v1", "RoCE v2", "RoCE v2"),
            ),
            "sys/module/nvidia_peermem/refcnt": "0\n",
            "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15\n",
            "proc/driver/nvidia/gpus/0000:1b:00.0/information": "Model: \t\t NVIDIA H200\nIRQ:   \t\t 17\n",
            "proc/driver/nvidia/gpus/0000:43:00.0/information": "Model: \t\t NVIDIA H200\n",
        },
    )
    return tmp_path


def test_rdma_devices_of_a_tree(tree: Path) -> None:
    first, second = host_probe.devices(tree / "sys")
    assert first == RdmaDevice("mlx5_0", "ACTIVE", "InfiniBand", "400 Gb/sec (4X NDR)", ((0, GID, "IB/RoCE v1"),))
    assert (second.state, second.link_layer) == ("DOWN", "Ethernet")
    assert second.gids == ((0, GID, "IB/RoCE v1"), (1, GID, "RoCE v2"), (2, MAPPED, "RoCE v2"))


def test_a_host_with_that_hardware(tree: Path) -> None:
    found = host_probe.probe_host((), {}, root=tree)
    assert (len(found.rdma), found.peermem, found.dma_buf) == (2, True, True)
    assert found.gpus == ("NVIDIA H200", "NVIDIA H200")
    write(tree, {"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15\n"})
    assert host_probe.probe_host((), {}, root=tree).dma_buf is False


def test_a_host_without_any_of_it(tmp_path: Path) -> None:
    found = host_probe.probe_host((), {}, root=tmp_path)
    assert (found.rdma, found.peermem) == ((), False)
    assert (found.gpus, found.dma_buf, found.packages) == ((), None, ())


def test_this_host() -> None:
    found = host_probe.probe_host((), {"UCX_TLS": "tcp", "SGLANG_API_KEY": "k", "HOME": "/"})
    assert found.name == socket.gethostname()
    assert "127.0.0.1" in found.addresses
    assert dict(found.environ) == {"SGLANG_API_KEY": "(hidden)", "UCX_TLS": "tcp"}


def test_versions_of_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"sglang-0.5.23.dist-info/METADATA": "Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.23\n"})
    monkeypatch.syspath_prepend(tmp_path)
    assert Package("sglang", "0.5.23") in host_probe.probe_host((), {}, packages=True).packages


def test_addresses_are_those_the_kernel_gives() -> None:
    """A datagram socket that is connected tells which address it would use; it must be among ours."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("127.0.0.1", 9))
        assert probe.getsockname()[0] in host_probe.addresses()


CLOSED_BY_ITS_PEER = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]))
listener = socket.create_server(("127.0.0.1", 0))
kept = []
for _ in range(5):
    peer = socket.create_connection(listener.getsockname())
    kept.append(listener.accept()[0])
    peer.close()
    kept[-1].recv(1)
print("ready", flush=True)
sys.stdin.read()
"""


def test_limits_and_open_files_are_those_of_the_process() -> None:
    """Not those of this one, which asks."""
    command = [sys.executable, "-c", CLOSED_BY_ITS_PEER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        (found,) = host_probe.processes({child.pid: "decode-0"})
        assert (found.instance, found.pid, found.files, found.memlock) == ("decode-0", child.pid, 200, 65536)
        assert found.open == len(os.listdir(f"/proc/{child.pid}/fd"))
        assert found.closing == 5
        child.communicate()
    assert list(host_probe.processes({child.pid: "decode-0"})) == []


def test_the_disk_under_folders_is_told_once_with_the_trouble_first(tmp_path: Path) -> None:
    (found,) = host_probe.disks({str(tmp_path): "", str(tmp_path.parent): "logs are being lost", "/nowhere": ""})
    assert (found.folder, found.lost) == (str(tmp_path.parent), "logs are being lost")
    assert 0 < found.free <= found.total


def test_ports_and_who_holds_them() -> None:
    listen = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)"
    command = [sys.executable, "-c", listen + "; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        taken, free = int(holder.stdout.readline()), closed_port()
        found = host_probe.probe_host((free, taken, taken), os.environ)
        holder.communicate()
    assert list(found.busy) == [taken]
    assert (found.busy[taken].pid, found.busy[taken].stopped) == (holder.pid, False)
    assert str(found.busy[taken]).startswith(f"pid {holder.pid} ({sys.executable}")


def test_a_port_whose_holder_is_hidden_is_in_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setattr(listeners, "PROC", tmp_path)
        assert listeners.holders((port,)) == {port: Holder(None)}
        assert str(Holder(None)) == "a process that this user cannot see"


def test_a_process_that_is_stopped_is_told_from_one_that_runs() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        own = {process.pid: "decode-0"}
        assert listeners.stopped(own) == ()
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        (stopped,) = listeners.stopped(own)
        assert (stopped.pid, stopped.instance, stopped.stopped) == (process.pid, "decode-0", True)
        process.kill()
        assert process.wait() == -signal.SIGKILL


def test_the_clock_that_differs_most() -> None:
    def engine(offset: float | None) -> ObservedEngine:
        return ObservedEngine(Endpoint("e", "decode", "http://h"), True, "", clock_offset=offset)

    assert host_probe.probe_host((), {}, engines=map(engine, (0.5, None, -3.0))).clock_offset == -3.0
    assert host_probe.probe_host((), {}, engines=[engine(None)]).clock_offset is None
