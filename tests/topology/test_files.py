from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from pdctl.errors import TopologyError
from pdctl.topology.diagnostic import Code, ProblemReport
from pdctl.topology.resolve import MAX_BYTES, load, read_file

from .conftest import Write


def problems(path: Path) -> list[tuple[Code, str]]:
    report = ProblemReport()
    assert read_file(path, report) is None
    return [(found.code, found.help) for found in report.listed()]


def test_a_file_of_a_mebibyte_is_read_and_a_larger_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "log.yaml"
    path.write_bytes(b"#" * MAX_BYTES)
    assert read_file(path, ProblemReport()) is not None
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    assert [code for code, _ in problems(path)] == [Code.FILE_TOO_LARGE]


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "llama.yaml").touch()
    assert problems(tmp_path / "lama.yaml") == [(Code.MISSING_FILE, f"did you mean {tmp_path / 'llama.yaml'}?")]
    assert problems(tmp_path / "nowhere" / "other.yaml") == [(Code.MISSING_FILE, "")]


def test_a_shipped_topology_that_is_not_here_is_named(tmp_path: Path) -> None:
    assert problems(tmp_path / "topologies" / "2p1d.yaml") == [
        (Code.MISSING_FILE, "the topology that ships with pdctl goes by its bare name: 2p1d")
    ]


def test_a_byte_order_mark_is_skipped(write: Write) -> None:
    path = write()
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load([path]).version == "pdctl/v1"


def test_a_byte_that_is_not_utf8_is_placed(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_bytes("a: é\nb: ".encode() + b"\xff")
    report = ProblemReport()
    assert read_file(path, report) is None
    span, label = report.listed()[0].spans[0]
    assert (span.line, span.column, label) == (2, 4, "byte 0xff")


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"version: pdctl/v1\nroles: {prefill: {}, decode: {tp: 0}}\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    with pytest.raises(TopologyError) as caught:
        load([Path("-")])
    assert [found.spans[0][0].file for found in caught.value.diagnostics] == ["<stdin>"]  # type: ignore[attr-defined]
