"""Which transport `auto` is, and what its choice costs at start-up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pdctl.engine.transfer import select
from pdctl.engine.transfer.nixl import NixlTransport, ucx_advice
from pdctl.engine.transfer.transport import TransferError
from tests.engine.transfer.backends import has_nixl

WITHOUT_NIXL = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("nixl", "nixl_cu12", "nixl_cu13"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name.startswith("nixl") else found(name)
import logging
logging.basicConfig(format="%(levelname)s %(message)s")
from pdctl.engine.transfer import select
print(select.create(sys.argv[1], "127.0.0.1").name)
"""

WITHOUT_MOONCAKE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "mooncake":
            raise ({error})
sys.meta_path.insert(0, Absent())
from pdctl.engine.transfer import select
transport = select.create("{name}", "127.0.0.1")
assert transport.name == "mooncake"
transport.register(transport.allocate(4096))
"""

LOADED = """
import sys
from pdctl.engine.transfer import select
select.create("shm", "127.0.0.1")
print(sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "nixl", "nixl_cu12", "nixl_cu13"}))
"""


def run(code: str, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=False)


@pytest.mark.skipif(not has_nixl(), reason="no NIXL wheel for this platform")
@pytest.mark.parametrize(
    ("ip", "same_host"), [("127.0.0.1", True), ("127.0.3.4", True), ("::1", True), ("10.1.2.3", False)]
)
def test_auto_is_nixl_where_it_imports(ip: str, same_host: bool) -> None:
    transport = select.create("auto", ip)
    assert isinstance(transport, NixlTransport)
    assert transport.caps.same_host is same_host


def test_auto_without_nixl_is_shm_and_says_so() -> None:
    done = run(WITHOUT_NIXL, "auto")
    assert done.stdout == "shm\n"
    assert "WARNING KV transfer backend: shm" in done.stderr
    assert "must share this host" in done.stderr


def test_nixl_that_is_asked_for_by_name_but_absent_fails_when_the_pool_is_registered() -> None:
    register = "\ntransport = select.create('nixl', '127.0.0.1')\ntransport.register(transport.allocate(4096))\n"
    done = run(WITHOUT_NIXL + register, "shm")
    assert done.returncode != 0
    assert "TransferError: nixl: none of nixl, nixl_cu12, nixl_cu13 is installed" in done.stderr


def test_a_pool_on_a_gpu_needs_nixl() -> None:
    class OnGpu:
        nbytes = 4096

        def data_ptr(self) -> int:
            return 1 << 40

        def get_device(self) -> int:
            return 0

    with pytest.raises(TransferError, match="GPU memory cannot be shared"):
        select.create("shm", "127.0.0.1").register(OnGpu())


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            "ModuleNotFoundError(name)",
            "mooncake: mooncake-transfer-engine-non-cuda is not installed "
            "(pip install mooncake-transfer-engine-non-cuda; Linux only)",
        ),
        (
            "ImportError('libibverbs.so.1: cannot open shared object file: No such file or directory')",
            "mooncake: mooncake-transfer-engine-non-cuda cannot be loaded: libibverbs.so.1: cannot open shared object "
            "file: No such file or directory (apt install libibverbs1 libnl-3-200 libnl-route-3-200)",
        ),
    ],
)
@pytest.mark.parametrize("name", ["mooncake", "mooncake_tcp"])
def test_mooncake_says_which_package_it_lacks(name: str, error: str, text: str) -> None:
    done = run(WITHOUT_MOONCAKE.replace("{name}", name).replace("({error})", error))
    assert done.returncode != 0
    assert f"TransferError: {text}" in done.stderr


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(TransferError, match="'pigeon': nixl, shm, mooncake or fake"):
        select.create("pigeon", "127.0.0.1")


def test_shm_loads_neither_torch_nor_nixl() -> None:
    assert run(LOADED).stdout == "[]\n"


@pytest.mark.skipif(not has_nixl(), reason="no NIXL wheel for this platform")
def test_a_process_that_used_nixl_exits_normally() -> None:
    """With UCX's ib module loaded the interpreter's exit can crash (rc -11)."""
    code = "from tests.engine.transfer.far import *\nt, p = open_pool('nixl', geometry(), 1)\nt.close()\n"
    done = run(code)
    assert done.returncode == 0, done.stderr


FSIZE = "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))"


def test_shared_memory_that_cannot_be_written_is_named_where_ucx_only_gives_a_code(tmp_path: Path) -> None:
    assert ucx_advice(str(tmp_path)) == "check UCX_TLS and UCX_NET_DEVICES"
    lacking = str(tmp_path / "shm")
    assert ucx_advice(lacking).startswith(f"{lacking}: No such file or directory; it must be writable")
    code = f"import resource; from pdctl.engine.transfer.nixl import ucx_advice; from pathlib import Path; {FSIZE}"
    done = run(f"{code}\nprint(ucx_advice({str(tmp_path)!r}))")
    assert "ulimit -f unlimited" in done.stdout, done.stderr


@pytest.mark.skipif(not has_nixl(), reason="no NIXL wheel for this platform")
def test_a_home_that_may_not_be_entered_is_named(tmp_path: Path) -> None:
    """A pod's user whose HOME is still root's. Modules are imported before root gives its rights up."""
    home = tmp_path / "home"
    home.mkdir(mode=0)
    code = (
        "import os, encodings.idna\n"
        "from pdctl.engine.transfer import nixl\n"
        "nixl.load(True)\n"
        "if os.getuid() == 0: os.setuid(54321)\n"
        "try: nixl.Agent(nixl.Memory(0, 0, 0, 'DRAM'), 'none', True)\n"
        "except nixl.TransferError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "HOME": str(home)}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("nixl: the agent cannot start: "), done.stderr
    assert done.stdout.endswith(f"; this user may not enter HOME={home}: set HOME to a directory of this user\n")
