"""Whatever happens to the files, what is remembered and indexed gives the lines a plain reading gives."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.logs import scan
from pdctl.logs.blocks import LineNumbers
from pdctl.logs.part import LogPart
from pdctl.logs.room_index import RoomIndex
from pdctl.logs.scan import find_lines
from pdctl.logs.search import LogQuery, LogSearch
from pdctl.logs.source import open_logs

ROOMS = (2148025886387619708, 4122085535627752128, 864046115928528705)


def parts(directory: Path) -> tuple[LogPart, ...]:
    return tuple(part for log in open_logs([str(directory)]) for part in log.parts)


def log_search(environ: dict[str, str], remembering: bool = True) -> LogSearch:
    numbers: dict[LogPart, LineNumbers] = {}
    tables = RoomIndex(environ, remembering)
    return LogSearch(lambda part: numbers.setdefault(part, LineNumbers(part)), tables, environ, remembering, None, None)


def asked(asker: LogSearch, directory: Path, room: int) -> list[tuple[str, int, int, bytes]]:
    wanted = scan.room_terms(room)
    query = LogQuery(f"room {room}", (wanted,), lambda part: wanted, room)
    return [(part.path, hit.line, hit.offset, hit.text) for part, hit in asker.ask(query, parts(directory))]


def plain(directory: Path, room: int) -> list[tuple[str, int, int, bytes]]:
    return [
        (raw.place.file, raw.place.line, raw.place.offset, raw.line)
        for log in open_logs([str(directory)])
        for raw in find_lines(log, [b"%d" % room])
    ]


LINES = st.lists(
    st.one_of(st.sampled_from([b"room=%d is bootstrapped\n" % room for room in ROOMS]), st.just(b"another line\n")),
    min_size=1,
    max_size=30,
).map(b"".join)
STEPS = st.one_of(
    st.tuples(st.just("append"), LINES),
    st.tuples(st.just("half"), st.sampled_from([b"room=2148025886", b"387619708\n", b"room=864046115928528705"])),
    st.tuples(st.just("rename"), LINES),  # logrotate create
    st.tuples(st.just("copytruncate"), LINES),
    st.tuples(st.just("rewrite"), LINES),
    st.tuples(st.just("compress"), st.just(b"")),
    st.tuples(st.just("build"), st.just(b"")),
    st.tuples(st.just("ask"), st.just(b"")),
)


def happen(directory: Path, step: str, data: bytes, environ: dict[str, str]) -> None:
    log, older = directory / "d.log", directory / "d.log.1"
    if step in ("append", "half"):
        with log.open("ab") as stream:
            stream.write(data)
    elif step == "rename":
        log.rename(older)
        log.write_bytes(data)
    elif step == "copytruncate":
        older.write_bytes(log.read_bytes())
        log.write_bytes(data)
    elif step == "rewrite":
        log.write_bytes(data)
    elif step == "compress" and older.exists():
        (directory / "d.log.2.gz").write_bytes(gzip.compress(older.read_bytes()))
        older.unlink()
    elif step == "build":
        for part in parts(directory):
            RoomIndex(environ, True).build(part)
    elif step == "ask":
        asked(log_search(environ), directory, ROOMS[0])


@settings(max_examples=60, deadline=None)
@given(LINES, st.lists(STEPS, max_size=8))
def test_no_history_of_a_log_makes_an_answer_wrong(first: bytes, steps: list[tuple[str, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) / "logs"
        directory.mkdir()
        environ = {"XDG_CACHE_HOME": f"{temporary}/cache"}
        (directory / "d.log").write_bytes(first)
        for step, data in steps:
            happen(directory, step, data, environ)
            for room in ROOMS[:2]:
                assert asked(log_search(environ), directory, room) == plain(directory, room)
        for room in ROOMS:
            assert asked(log_search(environ), directory, room) == plain(directory, room)
            assert asked(log_search(environ), directory, room) == plain(directory, room)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    found = tmp_path / "logs"
    found.mkdir()
    for name in ("a.log", "b.log"):
        (found / name).write_bytes(b"".join(b"%d room=%d\n" % (at, ROOMS[at % 3]) for at in range(3000)))
    return found


def test_the_same_question_is_answered_from_memory_and_growth_is_scanned(
    directory: Path, environ: dict[str, str]
) -> None:
    first = log_search(environ)
    lines = asked(first, directory, ROOMS[0])
    size = sum(part.size for part in parts(directory))
    assert (first.tally.scanned, first.tally.remembered, first.tally.hits) == (size, 0, len(lines))
    again = log_search(environ)
    assert asked(again, directory, ROOMS[0]) == lines
    assert (again.tally.scanned, again.tally.remembered) == (0, 2)
    with (directory / "a.log").open("ab") as stream:
        added = stream.write(b"3000 room=%d\n" % ROOMS[0])
    grown = log_search(environ)
    assert len(asked(grown, directory, ROOMS[0])) == len(lines) + 1
    assert (grown.tally.scanned, grown.tally.remembered) == (added, 2)


def test_another_question_is_answered_with_the_index(directory: Path, environ: dict[str, str]) -> None:
    for part in parts(directory):
        assert RoomIndex(environ, True).build(part)
    asker = log_search(environ)
    assert asked(asker, directory, 10**18) == []
    assert (asker.tally.looked_up, asker.tally.scanned) == (2, 0)


def test_nothing_is_remembered_when_nothing_shall_be(directory: Path, environ: dict[str, str], tmp_path: Path) -> None:
    asked(log_search(environ, remembering=False), directory, ROOMS[0])
    assert not (tmp_path / "cache").exists()


def test_answers_about_a_run_lie_beside_it(tmp_path: Path, environ: dict[str, str]) -> None:
    run = tmp_path / "runs" / "blue"
    (run / "logs").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    (run / "logs" / "decode-0.log").write_bytes(b"room=%d\n" % ROOMS[0])
    asked(log_search(environ), run / "logs", ROOMS[0])
    assert [file.suffix for file in (run / "index").iterdir()] == [".asked"]
    assert not (tmp_path / "cache").exists()


def test_a_part_that_cannot_be_read_to_its_end_is_not_remembered(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "d.gz").write_bytes(gzip.compress(b"room=%d\n" % ROOMS[0] * 9)[:-5])
    asker = log_search(environ)
    assert len(asked(asker, tmp_path / "logs", ROOMS[0])) == 9
    assert any("cut off" in note for note in asker.notes)
    again = log_search(environ)
    asked(again, tmp_path / "logs", ROOMS[0])
    assert again.tally.remembered == 0


def test_progress_goes_from_nothing_to_everything(directory: Path, environ: dict[str, str]) -> None:
    seen: list[tuple[int, int]] = []
    asker = LogSearch(
        LineNumbers, RoomIndex(environ, False), environ, False, None, lambda done, total: seen.append((done, total))
    )
    asked(asker, directory, ROOMS[0])
    size = sum(part.size for part in parts(directory))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (size, size)
