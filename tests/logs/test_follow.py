from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pdctl.logs import source
from pdctl.logs.source import Log, growing, open_logs


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "d.log"
    path.write_bytes(b"one\n")
    return path


@pytest.fixture
def looks(file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Iterator[tuple[Log, ...]]]:
    monkeypatch.setattr(source, "POLL", 0.01)
    return growing(lambda: open_logs([str(file.parent)]), 20.0)


def sizes(logs: tuple[Log, ...]) -> list[int]:
    return [log.size for log in logs]


def test_the_first_look_comes_at_once_and_the_next_when_a_file_grew(
    file: Path, looks: Iterator[tuple[Log, ...]]
) -> None:
    assert sizes(next(looks)) == [4]
    with file.open("ab") as more:
        more.write(b"two\n")
    assert sizes(next(looks)) == [8]


def test_a_new_file_and_one_that_was_replaced_are_changes(file: Path, looks: Iterator[tuple[Log, ...]]) -> None:
    next(looks)
    (file.parent / "p.log").write_bytes(b"other\n")
    assert sizes(next(looks)) == [4, 6]
    file.rename(file.with_suffix(".log.1"))
    file.write_bytes(b"new\n")
    (changed, _) = next(looks)
    assert [Path(part.path).name for part in changed.parts] == ["d.log.1", "d.log"]


def test_a_file_that_was_cut_off_is_a_change(file: Path, looks: Iterator[tuple[Log, ...]]) -> None:
    next(looks)
    file.write_bytes(b"")
    assert sizes(next(looks)) == [0]


def test_it_ends_when_time_is_up(file: Path) -> None:
    moments = iter([0.0, 1.0, 2.0])  # began; after the first look, after the second
    assert len(list(growing(lambda: open_logs([str(file)]), 1.5, lambda: next(moments)))) == 1
