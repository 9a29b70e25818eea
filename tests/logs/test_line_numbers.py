from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from pdctl.logs.blocks import LineNumbers
from pdctl.logs.event import Place
from pdctl.logs.part import examine

DATA = b"".join(b"line %d%s\n" % (at, b"." * (at % 50)) for at in range(1, 30_001))


@pytest.mark.parametrize("packed", [False, True])
def test_lines_are_numbered_in_any_order(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "d.log"
    path.write_bytes(gzip.compress(DATA, 1) if packed else DATA)
    lines = LineNumbers(examine(str(path)))
    for wanted in (20_000, 19_990, 3, 30_000, 1, 25_000):
        assert lines.at(DATA.index(b"line %d" % wanted)) == wanted


def test_what_is_known_is_believed(tmp_path: Path) -> None:
    path = tmp_path / "d.log"
    path.write_bytes(DATA)
    lines = LineNumbers(examine(str(path)))
    lines.learn(DATA.index(b"line 20000"), 20_000)
    path.unlink()  # nothing is read any more for it
    assert lines.at(DATA.index(b"line 20000")) == 20_000


def test_a_place_is_the_same_whether_its_line_was_counted_or_not(tmp_path: Path) -> None:
    path = tmp_path / "d.log"
    path.write_bytes(DATA)
    offset = DATA.index(b"line 12345")
    later = LineNumbers(examine(str(path))).place(offset)
    place = Place(str(path), 12345, offset)
    assert later == place
    assert hash(later) == hash(place)
    assert str(later) == f"{path}:12345"
