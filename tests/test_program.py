"""How a module of pdctl is started again, from a source tree and from a one-file build."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pdctl import program
from pdctl.engines.kinds import EMBEDDED, ENGINES
from tests.cases import for_each

FILE = "/opt/pdctl.pyz"
ROOT = Path(program.__file__).resolve().parents[1]


@pytest.fixture
def pyz(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "FILE", FILE)


@pytest.fixture
def executable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "FILE", FILE)
    monkeypatch.setattr(sys, "executable", FILE)


def test_a_source_tree_starts_modules_with_its_own_python() -> None:
    assert program.kind() is program.Kind.SOURCE
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    assert program.command("pdctl.launch") == (sys.executable, *safe, "-m", "pdctl.launch")
    assert ENGINES[EMBEDDED].command == (sys.executable, "-m", "pdctl.engine")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="CPython 3.10 cannot be told to leave out its directory")
def test_files_in_the_operators_directory_stand_in_for_no_module(tmp_path: Path) -> None:
    for name in ("secrets", "types", "contextlib", "logging"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not the module that was meant')\n")
    keeper = [*program.command("pdctl.launch.keeper"), "--", "printenv", "PYTHONSAFEPATH"]
    router = [*program.served_command("pdctl.router"), "--help"]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    kept = subprocess.run(keeper, cwd=tmp_path, env=inherited, capture_output=True, text=True, timeout=60, check=False)
    assert (kept.returncode, kept.stdout, kept.stderr) == (1, "", ""), "an engine of others imports as its user wants"
    served = {**inherited, **program.served_environment()}
    told = subprocess.run(router, cwd=tmp_path, env=served, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 0, told.stderr


@pytest.mark.parametrize(
    ("first", "others", "safe"),
    [("/usr/bin", [], True), (str(ROOT), [], False), (str(ROOT), [str(ROOT)], True)],
    ids=["pdctl", "python -m pdctl in a checkout", "installed, in its checkout"],
)
@pytest.mark.skipif(sys.version_info < (3, 11), reason="CPython 3.10 cannot be told to leave out its directory")
def test_a_checkout_that_is_not_installed_is_still_found(
    first: str, others: list[str], safe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [first, "/usr/lib/python3", *others])
    assert ("-P" in program.command("pdctl.launch")) is safe
    assert bool(program.served_environment()) is safe


@pytest.mark.usefixtures("pyz")
def test_a_zip_file_starts_modules_through_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(program.PYTHON, raising=False)
    assert program.kind() is program.Kind.PYZ
    assert program.command("pdctl.launch") == (sys.executable, FILE, "-m", "pdctl.launch")
    assert program.served_command("pdctl.engine") == ("python3", FILE, "-m", "pdctl.engine")
    monkeypatch.setenv(program.PYTHON, "/srv/venv/bin/python")
    assert program.served_command("pdctl.engine")[0] == "/srv/venv/bin/python"
    assert program.pythons() == ("/srv/venv/bin/python",)


@pytest.mark.usefixtures("executable")
def test_an_executable_starts_modules_alone_but_not_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(program.PYTHON, raising=False)
    assert program.kind() is program.Kind.EXECUTABLE
    assert program.command("pdctl.launch") == (FILE, "-m", "pdctl.launch")
    assert program.served_command("pdctl.engine") == ("python3", FILE, "-m", "pdctl.engine")


@pytest.mark.usefixtures("pyz")
@pytest.mark.parametrize("build", ["pyz", "executable"])
def test_our_own_commands_are_recognised_and_written_for_other_machines(
    build: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if build == "executable":
        monkeypatch.setattr(sys, "executable", FILE)
    for argv in (program.command("pdctl.launch"), program.served_command("pdctl.launch")):
        assert program.module_of((*argv, "--port", "1")) == "pdctl.launch"
        assert program.portable((*argv, "--port", "1")) == ("python", "-m", "pdctl.launch", "--port", "1")


@for_each("argv", [(), ("python",), ("python", "-m"), ("python", "other.pyz", "-m", "pdctl.engine"), ("smg", "launch")])
def test_other_commands_start_no_module(argv: tuple[str, ...]) -> None:
    assert program.module_of(argv) == ""
    assert program.portable(argv) == argv


def test_only_modules_of_pdctl_can_be_started() -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "pdctl", "-m", *words], capture_output=True, text=True, timeout=60)

    done = run("pdctl.launch.keeper", "--", "sh", "-c", "echo kept")
    assert (done.returncode, done.stdout) == (0, "kept\n"), done.stderr
    refused = run("http.server")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: -m starts modules of pdctl, not `http.server`\n")


def test_the_cache_is_of_this_user_alone(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pdctl.pyz"
    file.write_bytes(b"")
    monkeypatch.setattr(program, "FILE", str(file))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    assert program.cache().startswith(str(tmp_path / "cache" / "pdctl"))
    (tmp_path / "cache" / "pdctl").chmod(0o777)
    assert program.cache().startswith(str(tmp_path / "temporary"))
    top = next((tmp_path / "temporary").iterdir())
    top.rmdir()
    top.symlink_to(tmp_path)
    assert program.cache() == ""


def test_the_cache_of_a_user_without_a_home_is_not_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pdctl.pyz"
    file.write_bytes(b"")
    monkeypatch.setattr(program, "FILE", str(file))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "~/.cache")  # what `expanduser` leaves of it without a home
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    assert program.cache().startswith(str(tmp_path / "temporary"))
    assert not (tmp_path / "~").exists()


def test_parts_are_installed_from_the_checkout_or_package_by_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """pdctl itself is in no index: `pip install pdctl[engine]` would bring something else, or nothing."""
    root = Path(program.__file__).parents[1]
    assert program.install_command(["torch", "zmq"], "engine", "py") == f"py -m pip install -e '{root}[engine]'"
    monkeypatch.setattr(program, "__file__", "/usr/lib/python3/site-packages/pdctl/program.py")
    assert program.install_command(["torch", "zmq"], "engine", "py") == "py -m pip install torch pyzmq"
