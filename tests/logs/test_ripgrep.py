"""With rg or without, the answer is the same."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdctl.logs import ripgrep, scan, search
from pdctl.logs.blocks import LINE, LineNumbers
from pdctl.logs.part import LogPart
from pdctl.logs.room_index import RoomIndex
from pdctl.logs.search import LogQuery, LogSearch
from pdctl.logs.source import open_logs

needs_rg = pytest.mark.skipif(ripgrep.program() is None, reason="rg is not installed (apt-get install ripgrep)")
ROOM = 2148025886387619708
HEX = b"%x" % ROOM


def asked(paths: list[Path]) -> tuple[list[tuple[str, int, int, bytes]], LogSearch]:
    numbers: dict[LogPart, LineNumbers] = {}
    tables = RoomIndex({}, False)
    asker = LogSearch(lambda part: numbers.setdefault(part, LineNumbers(part)), tables, {}, False, None, None)
    wanted = (*scan.room_terms(ROOM), *scan.hex_room_terms(ROOM))
    query = LogQuery("room", (wanted,), lambda part: wanted, ROOM)
    parts = [part for log in open_logs([str(path) for path in paths]) for part in log.parts]
    return [(part.path, hit.line, hit.offset, hit.text) for part, hit in asker.ask(query, parts)], asker


def both(monkeypatch: pytest.MonkeyPatch, paths: list[Path]) -> tuple[object, object]:
    plain, _ = asked(paths)
    with monkeypatch.context() as patched:
        patched.setattr(search, "LEAST_FOR_RG", 0)
        seen = []
        hits = ripgrep.hits
        patched.setattr(ripgrep, "hits", lambda wanted: seen.append(hits(wanted)) or seen[-1])
        accelerated, _ = asked(paths)
        assert seen
        assert seen[0] is not None
    return plain, accelerated


TEXT = st.lists(
    st.one_of(
        st.sampled_from(
            [
                b"%d" % ROOM,
                b"9",
                b"room=",
                b"0x" + HEX,
                HEX,
                b"f",
                b"\n",
                b"\r\n",
                b"\x00",
                b"\xff",
                b"\xef\xbb\xbf",
                b":",
            ]
        ),
        st.binary(max_size=8),
    ),
    max_size=60,
).map(lambda parts: b"log " + b"".join(parts))


@needs_rg
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(TEXT, min_size=1, max_size=3))
def test_any_bytes_give_the_same_lines(monkeypatch: pytest.MonkeyPatch, texts: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory) / f"{name}: log {at}.log" for at, name in enumerate("abc"[: len(texts)])]
        for path, text in zip(paths, texts, strict=True):
            path.write_bytes(text)
        plain, accelerated = both(monkeypatch, paths)
        assert accelerated == plain


@needs_rg
def test_long_lines_and_many_lines_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = b"x" * 3_000_000 + b" room=%d " % ROOM + b"y" * 3_000_000 + b" %d\n" % ROOM
    (tmp_path / "a.log").write_bytes(b"".join(b"%d room=%d\n" % (at, ROOM + at % 3) for at in range(5000)) + long)
    (tmp_path / "b.log").write_bytes(long + b"%d" % ROOM)
    plain, accelerated = both(monkeypatch, [tmp_path / "a.log", tmp_path / "b.log"])
    assert accelerated == plain


@needs_rg
def test_what_was_written_since_the_log_was_opened_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"room=%d one\nroom=%d" % (ROOM, ROOM))
    (log,) = open_logs([str(path)])
    with path.open("ab") as stream:
        stream.write(b"0 other\nroom=%d late\n" % ROOM)
    wanted = [ripgrep.Wanted(log.parts[0], scan.room_terms(ROOM))]
    found = ripgrep.hits(wanted)
    assert found is not None
    assert [hit.text for hit in found[log.parts[0]]] == [b"room=%d one" % ROOM, b"room=%d" % ROOM]
    path.rename(tmp_path / "a.log.1")
    path.write_bytes(b"room=%d another file\n" % ROOM)
    assert ripgrep.hits(wanted) is None


@pytest.mark.parametrize("script", ["exit 2", "exit 1", "kill -9 $$", "printf 'nonsense\\n'; exit 2"])
def test_an_rg_that_fails_or_lies_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"no such room\n")
    rg = tmp_path / "rg"
    rg.write_text(f"#!/bin/sh\n{script}\n")
    rg.chmod(0o755)
    monkeypatch.setattr(search, "LEAST_FOR_RG", 0)
    monkeypatch.setattr(ripgrep, "program", lambda: str(rg))
    assert asked([path])[0] == []


def test_rg_is_not_asked_about_little_or_about_what_it_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"room=%d\n" % ROOM)
    monkeypatch.setattr(ripgrep, "program", lambda: "/nowhere/rg")
    (log,) = open_logs([str(path)])
    seen = []
    with monkeypatch.context() as patched:
        patched.setattr(ripgrep, "able", lambda parts: bool(seen.append(parts)))
        assert asked([path])[0]
        assert not seen
        patched.setattr(search, "LEAST_FOR_RG", 0)
        assert asked([path])[0]
        assert seen
    monkeypatch.setattr(search, "LEAST_FOR_RG", 0)
    assert ripgrep.able(log.parts)
    assert ripgrep.hits([ripgrep.Wanted(log.parts[0], scan.room_terms(ROOM))]) is None
    assert [text for *_, text in asked([path])[0]] == [b"room=%d" % ROOM]
    assert LINE == 1 << 16
