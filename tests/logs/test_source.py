from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pdctl.errors import UsageError
from pdctl.logs.part import Compression
from pdctl.logs.scan import find_lines
from pdctl.logs.source import open_logs


def write(path: Path, text: str = "a line\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_directory_is_read_all_levels_deep_and_only_for_logs(tmp_path: Path) -> None:
    for name in ("router.log", "engines/decode-0.log", "engines/deep/prefill-0.txt", "wire.jsonl", ".git/x.log"):
        write(tmp_path / name)
    assert [log.instance for log in open_logs([str(tmp_path)])] == ["router", "decode-0", "prefill-0"]


def test_rotated_files_are_one_log_oldest_first(tmp_path: Path) -> None:
    for name in ("d.log", "d.log.1", "d.log.10", "d.log.2", "e.log"):
        write(tmp_path / name)
    (tmp_path / "d.log.11.gz").write_bytes(gzip.compress(b"old\n"))
    (rotated, alone) = open_logs([str(tmp_path)])
    names = [Path(part.path).name for part in rotated.parts]
    assert names == ["d.log.11.gz", "d.log.10", "d.log.2", "d.log.1", "d.log"]
    assert rotated.parts[0].form is Compression.GZIP
    assert (rotated.instance, alone.instance) == ("d", "e")


def test_the_nodes_of_an_instance_share_its_name_and_node_0_comes_first(tmp_path: Path) -> None:
    for name in (
        "decode-0-node1.log",
        "decode-0.log",
        "decode-0-node1.g2.log",
        "decode-0.g2.log",
        "decode-1-node1.log",
    ):
        write(tmp_path / name)
    logs = open_logs([str(tmp_path)])
    assert [(log.instance, [Path(part.path).name for part in log.parts]) for log in logs] == [
        ("decode-0", ["decode-0.log", "decode-0.g2.log"]),
        ("decode-0", ["decode-0-node1.log", "decode-0-node1.g2.log"]),
        ("decode-1-node1", ["decode-1-node1.log"]),  # its node 0 is not here
    ]


def test_names_come_from_the_run_then_from_the_stem_then_from_the_directories(tmp_path: Path) -> None:
    for name in ("a/x/engine.log", "b/x/engine.log", "router.log", "p.log", "p.txt"):
        write(tmp_path / name)
    named = str(tmp_path / "router.log")
    logs = open_logs([str(tmp_path)], names={named: "front"})
    assert [log.instance for log in logs] == [
        str(tmp_path / "p.log"),
        str(tmp_path / "p.txt"),
        "front",
        "a/x/engine",
        "b/x/engine",
    ]


def test_the_same_file_is_read_once(tmp_path: Path) -> None:
    path = write(tmp_path / "d.log")
    (tmp_path / "link.log").symlink_to(path)
    assert len(open_logs([str(path), str(tmp_path), str(tmp_path / "*.log")])) == 1


def test_standard_input_is_kept_so_that_it_can_be_read_twice() -> None:
    (log,) = open_logs(["-"], stdin=io.BytesIO(gzip.compress(b"room=1 one\nroom=2 two\n")))
    for _ in range(2):
        assert [raw.line for raw in find_lines(log, [b"room=2"])] == [b"room=2 two"]
    assert log.instance == "stdin"


def test_a_named_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    fifo = tmp_path / "p.log"
    os.mkfifo(fifo)
    writer = subprocess.Popen([sys.executable, "-c", f"open({str(fifo)!r}, 'wb').write(b'room=7\\n' * 3)"])
    (log,) = open_logs([str(fifo)])
    assert writer.wait(timeout=20) == 0
    assert log.size == 21


@pytest.mark.parametrize(
    ("path", "message", "fix"),
    [
        ("decode-9.log", "decode-9.log: no such file or directory", "decode-0.log"),
        ("logz/decode-0.log", "no such file", "logs"),
        ("*.nothing", "no file matches", "ls"),
        ("empty", "no logs in", "*.log*"),
        ("-", "standard input", "pipe"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(tmp_path: Path, path: str, message: str, fix: str) -> None:
    write(tmp_path / "decode-0.log")
    write(tmp_path / "logs" / "decode-0.log")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError) as caught:
        open_logs([path if path == "-" else str(tmp_path / path)])
    assert message in caught.value.message
    assert fix in caught.value.fix


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "d.log")
    path.chmod(0)
    with pytest.raises(UsageError, match=r"d\.log cannot be read: Permission denied"):
        open_logs([str(path)])


@pytest.mark.parametrize("text", ["room=1\n".encode("utf-16"), ("room=1 is bootstrapped\n" * 3).encode("utf-16-le")])
def test_utf_16_is_refused_with_the_command_that_helps(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "w.log").write_bytes(text)
    with pytest.raises(UsageError, match="UTF-16") as caught:
        open_logs([str(tmp_path / "w.log")])
    assert "iconv" in caught.value.fix


def test_a_file_of_a_directory_that_cannot_be_read_is_left_out_with_a_note(tmp_path: Path) -> None:
    (tmp_path / "decode0.log").write_text("one line\n")
    (tmp_path / "m.log").symlink_to("/proc/self/mem")
    (tmp_path / "w.log").write_text("a line of UTF-16\n", encoding="utf-16")
    for given in (str(tmp_path), f"{tmp_path}/*.log"):
        (log,) = open_logs([given])
        assert log.instance == "decode0"
        assert log.notes == (
            f"{tmp_path}/m.log cannot be read: Input/output error: it was left out",
            f"{tmp_path}/w.log is UTF-16, not UTF-8: it was left out",
        )
    with pytest.raises(UsageError, match="Input/output error"):  # somebody named it
        open_logs([str(tmp_path), f"{tmp_path}/m.log"])
    (tmp_path / "decode0.log").unlink()
    with pytest.raises(UsageError, match="Input/output error"):  # nothing else remains
        open_logs([str(tmp_path)])
