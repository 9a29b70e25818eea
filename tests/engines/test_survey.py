from __future__ import annotations

from pdctl.engines.row_matching import KEPT, speech, survey
from tests.engines.recorded import FILES, lines


def test_counts_add_up() -> None:
    for path in FILES:
        found = survey(lines(path), speech())
        assert found.lines == len(lines(path))
        assert found.known == sum(counted.lines for counted in found.rows)
        assert found.unknown == sum(shape.lines for shape in found.shapes)
        assert found.lines == found.known + found.unknown + found.empty


def test_lines_that_differ_in_numbers_and_names_are_one_shape() -> None:
    said = survey(
        [
            b"[2026-11-21 01:00:00] loaded 5 of 7 from /srv/model for 'a' at http://10.0.0.1:30000\n",
            b"[2026-11-21 01:00:09] loaded 123 of 7.5 from /srv/other/model for 'bcd' at http://10.0.0.2:30001\n",
            b"[2026-11-21 01:00:09] something else\n",
            b"\n",
            b"[2026-11-21 01:00:09] room=5 is bootstrapped\n",
        ],
        speech(),
    )
    assert [(shape.text, shape.lines) for shape in said.shapes] == [
        ("loaded … of … from … for … at …", 2),
        ("something else", 1),
    ]
    assert said.shapes[0].example == "loaded 5 of 7 from /srv/model for 'a' at http://10.0.0.1:30000"
    assert [(counted.row.id, counted.lines) for counted in said.rows] == [("room-bootstrapped", 1)]
    assert (said.lines, said.known, said.unknown, said.empty) == (5, 1, 3, 1)


def test_memory_is_bounded_by_the_kept_shapes() -> None:
    words = (
        f"word{chr(97 + at % 26)}{chr(97 + at // 26 % 26)}{chr(97 + at // 676)}x".encode() for at in range(KEPT + 500)
    )
    said = survey(words, speech())
    assert len(said.shapes) <= KEPT + 1
    assert said.unknown == KEPT + 500
