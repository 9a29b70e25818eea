from __future__ import annotations

import os
from pathlib import Path

import pytest

from pdctl.logs import log_cache, scan
from pdctl.logs.log_cache import Fingerprint
from pdctl.logs.part import examine
from pdctl.logs.room_index import RoomIndex
from pdctl.logs.scan import LineHit

ANSWER = log_cache.CachedAnswer(
    Fingerprint(1, 2, 300, 1_795_226_400_000_000_000, 290, b"d" * 16), log_cache.terms_digest(scan.room_terms(7)),
    (LineHit(10, b"room=7", 2), LineHit(200, b"\x00\xff room=7", 9)),
)  # fmt: skip


def test_answers_come_back_as_they_were_saved(tmp_path: Path) -> None:
    file = log_cache.answer_file(tmp_path / "not" / "there" / "yet", "room 7")
    none = ANSWER._replace(of=ANSWER.of._replace(inode=3), hits=())
    log_cache.save_answers(file, [ANSWER, none])
    assert log_cache.load_answers(file) == {(1, 2): ANSWER, (1, 3): none}
    assert [path.name for path in file.parent.iterdir()] == [file.name]  # no draft is left


@pytest.mark.parametrize("damage", [slice(0, 1), slice(20, 21), slice(-1, None)])
def test_a_damaged_file_is_no_answer(tmp_path: Path, damage: slice) -> None:
    file = log_cache.answer_file(tmp_path, "room 7")
    log_cache.save_answers(file, [ANSWER])
    data = bytearray(file.read_bytes())
    data[damage] = b"?"
    file.write_bytes(data)
    assert log_cache.load_answers(file) == {}
    file.write_bytes(b"")
    assert log_cache.load_answers(file) == {}


def test_what_was_searched_for_is_part_of_the_question() -> None:
    room = 2148025886387619708
    both = (*scan.room_terms(room), *scan.hex_room_terms(room))
    assert len({log_cache.terms_digest(each) for each in (scan.room_terms(room), both, scan.room_terms(room + 1))}) == 3


def test_a_directory_that_cannot_be_written_to_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file = log_cache.answer_file(tmp_path / "file", "room 7")
    log_cache.save_answers(file, [ANSWER])
    assert log_cache.load_answers(file) == {}


def test_only_the_latest_answers_are_kept(tmp_path: Path) -> None:
    other = tmp_path / "0.index"
    other.touch()
    files = [log_cache.answer_file(tmp_path, f"room {number}") for number in range(log_cache.MOST_ANSWERS + 3)]
    for number, file in enumerate(files):
        log_cache.save_answers(file, [ANSWER])
        os.utime(file, (number, number))
    log_cache.save_answers(files[-1], [ANSWER])
    assert {path.name for path in tmp_path.iterdir()} == {other.name, *(file.name for file in files[3:])}


def test_tables_are_bounded_by_count_and_bytes_the_oldest_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_cache, "MOST_LOGS", 4)
    logs = []
    for number in range(6):
        log = tmp_path / f"decode-{number}.log"
        log.write_text("".join(f"room={10**15 + each * 7 + number}\n" for each in range(100)))
        logs.append(examine(str(log)))
    cache = tmp_path / "cache"
    tables = RoomIndex({"XDG_CACHE_HOME": str(cache)}, enabled=True)
    kept = log_cache.cache_directory(logs[0], {"XDG_CACHE_HOME": str(cache)})
    names = [f"{part.device:x}-{part.inode:x}" for part in logs]
    for number, part in enumerate(logs):
        assert tables.build(part)
        os.utime(kept / f"{names[number]}.rooms", (number, number))
        os.utime(kept / f"{names[number]}.lock", (0, 0))  # goes with its table, not by its own age
    assert {path.stem for path in kept.iterdir()} == set(names[2:])
    assert len(list(kept.iterdir())) == 8

    monkeypatch.setattr(log_cache, "MOST_BYTES", (kept / f"{names[5]}.rooms").stat().st_size * 2)
    log_cache.save_answers(log_cache.answer_file(kept, "room 7"), [])
    assert {path.stem for path in kept.iterdir() if path.suffix != ".asked"} == {names[5]}
