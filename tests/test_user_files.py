"""Files that somebody names: silent pipes, devices without end, sockets, loops, directories; full disks."""

from __future__ import annotations

import os
import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdctl import user_files
from pdctl.engines import user_rows
from pdctl.errors import UsageError
from pdctl.logs.source import open_logs
from pdctl.manifests import read as manifests
from pdctl.topology import resolve
from pdctl.topology.diagnostic import ProblemReport
from tests.cli.verb import BROKEN, within


@pytest.fixture
def fifo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(user_files, "OPENED", 0.1)
    monkeypatch.setattr(user_files, "PATIENCE", 0.2)
    path = tmp_path / "fifo.yaml"
    os.mkfifo(path)
    return path


def test_a_pipe_that_nobody_opens_is_given_up_early(fifo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_files, "PATIENCE", 3600.0)
    with pytest.raises(TimeoutError, match=r"no process opened this pipe to write to it within 0\.1 s"):
        user_files.read(fifo, 10)
    with pytest.raises(TimeoutError, match=r"no process opened this pipe to read from it within 0\.1 s"):
        user_files.write_whole(fifo, "text")


def test_a_pipe_that_nobody_writes_to_is_given_up(fifo: Path) -> None:
    writer = os.open(fifo, os.O_RDWR)
    with pytest.raises(TimeoutError, match=r"nothing was written to it within 0\.2 s"):
        user_files.read(fifo, 10)
    os.close(writer)


def test_a_pipe_that_somebody_writes_to_is_read(fifo: Path) -> None:
    writer = threading.Thread(target=fifo.write_bytes, args=(b"x" * 300_000,))
    writer.start()
    assert user_files.read(fifo, 1 << 20) == b"x" * 300_000
    writer.join()


def test_no_more_is_read_than_the_limit() -> None:
    assert user_files.read("/dev/zero", 5000) == b"\0" * 5001


@pytest.mark.parametrize("kind", ["directory", "socket", "loop", "missing"])
def test_what_cannot_be_read_is_an_os_error(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("directory").mkdir()
    Path("loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        with pytest.raises(OSError, match=r"\w+"):
            user_files.read(kind, 10)


def test_every_reader_gives_a_silent_pipe_up(fifo: Path) -> None:
    with pytest.raises(UsageError, match="no process opened this pipe"):
        open_logs([str(fifo)])
    with pytest.raises(UsageError, match="no process opened this pipe"):
        manifests.text_of(str(fifo))
    with pytest.raises(UsageError, match="no process opened this pipe"):
        user_rows.load(fifo.parent)
    report = ProblemReport()
    assert resolve.read_file(fifo, report) is None
    assert "no process opened this pipe" in report.listed()[0].message


@pytest.mark.parametrize(
    "words",
    [
        "trace-room 5 FIFO", "rooms FIFO", "rooms --dialects FOLDER FIFO", "diagnose FIFO", "dialect check FIFO",
        "topology check FIFO", "topology show FIFO", "plan FIFO", "plan 2p1d -F FIFO", "plan --tp 8 --model FIFO",
        "plan 2p1d --set model.config=FIFO", "launch --dry-run FIFO", "render kubernetes FIFO", "import FIFO",
        "doctor --static FIFO",
        "doctor --reached FIFO --prefill http://127.0.0.1:9,1 --decode http://127.0.0.1:9",
        "rooms FINE --output-file FIFO", "diagnose FINE --output-file FIFO",
    ],
)  # fmt: skip
def test_no_verb_waits_for_a_pipe_that_nobody_opens(fifo: Path, words: str) -> None:
    named = {"FIFO": str(fifo), "FOLDER": str(fifo.parent), "FINE": str(BROKEN)}
    argv = [named.get(word, word.replace("FIFO", str(fifo))) for word in words.split()]
    answer = within(*argv, env={**os.environ, "PDCTL_HOME": str(fifo.parent), "XDG_CACHE_HOME": str(fifo.parent)})
    assert "no process opened this pipe" in answer.stdout + answer.stderr
    assert answer.returncode in (1, 2, 4) or "model.config" in words


def test_a_stream_without_lines_is_no_log() -> None:
    with pytest.raises(UsageError, match="/dev/zero is not a log: 64 KiB without a line"):
        open_logs(["/dev/zero"])


@pytest.fixture
def full() -> Iterator[None]:
    """No file can grow beyond ten bytes: what a full disk does, with another number (EFBIG)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("before", [None, b"old"])
def test_a_file_that_cannot_be_written_whole_is_as_it_was(tmp_path: Path, full: None, before: bytes | None) -> None:
    file = tmp_path / "topology.yaml"
    if before is not None:
        file.write_bytes(before)
    with pytest.raises(OSError, match="File too large"):
        user_files.write_whole(file, b"x" * 100)
    assert [each.read_bytes() for each in tmp_path.iterdir()] == ([] if before is None else [before])


def test_what_is_replaced_keeps_its_mode_and_its_link(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"old")
    file.chmod(0o604)
    link.symlink_to(file)
    user_files.write_whole(link, "größer")
    assert file.read_text(encoding="utf-8") == "größer"
    assert file.stat().st_mode & 0o777 == 0o604
    assert link.is_symlink()


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=user_files.write_whole, args=(pipe, "text"))
    writer.start()
    assert user_files.read(pipe, 10) == b"text"
    writer.join()
    assert pipe.is_fifo()
