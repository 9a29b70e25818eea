"""Files that somebody names: silent pipes, devices without end, sockets, loops, directories."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from pdctl import user_files
from pdctl.engines import custom
from pdctl.errors import UsageError
from pdctl.logs.source import open_logs
from pdctl.manifests import read as manifests
from pdctl.topology import resolve
from pdctl.topology.diagnostic import ProblemReport


@pytest.fixture
def fifo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(user_files, "PATIENCE", 0.2)
    path = tmp_path / "fifo.yaml"
    os.mkfifo(path)
    return path


def test_a_pipe_that_nobody_writes_to_is_given_up(fifo: Path) -> None:
    with pytest.raises(TimeoutError, match=r"nothing was written to it within 0\.2 s"):
        user_files.read(fifo, 10)


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
    with pytest.raises(UsageError, match="nothing was written to it within"):
        open_logs([str(fifo)])
    with pytest.raises(UsageError, match="nothing was written to it within"):
        manifests.text_of(str(fifo))
    with pytest.raises(UsageError, match="nothing was written to it within"):
        custom.load(fifo.parent)
    report = ProblemReport()
    assert resolve.read_file(fifo, report) is None
    assert "nothing was written to it within" in report.listed()[0].message


def test_a_stream_without_lines_is_no_log() -> None:
    with pytest.raises(UsageError, match="/dev/zero is not a log: 64 KiB without a line"):
        open_logs(["/dev/zero"])
