from __future__ import annotations

import datetime as dt

from pdctl.engines.base import Speaker
from pdctl.engines.identify import Identity
from pdctl.engines.row_matching import SHIPPED, speech
from pdctl.logs.clock import Clock
from pdctl.logs.event import CachedSpeech, Event, EventReader, Place, RawLine
from pdctl.logs.part import Compression, LogPart

PART = LogPart("decode-0.log", Compression.PLAIN, 0, 0, 0)
READER = EventReader("decode-0", Identity(speaker=Speaker.SGLANG, role="decode"), speech(), Clock(dt.timezone.utc))
SENT = b"[2026-11-21 02:02:26 TP1] Sending to prefill server with bootstrap room 8463976258232842567 is_dummy=False"
ROOM = b"8463976258232842567"


def raw(line: bytes, offset: int = 1000) -> RawLine:
    return RawLine(Place(PART.path, 12, offset), line, PART)


def naming(line: bytes) -> list[Event]:
    return list(READER.naming(raw(line), lambda text: ROOM in text))


def test_a_known_line_becomes_an_event_with_its_place() -> None:
    (event,) = READER.known(raw(SENT))
    assert (event.instance, event.role, event.rank) == ("decode-0", "decode", "TP1")
    assert (event.row.id, event.room, event.values["dummy"]) == ("transfer-info-sent", int(ROOM), "False")
    assert (event.t, event.uncertainty_s) == (1795226546.0, 1.0)
    assert str(event.place) == "decode-0.log:12"
    assert event.text == "Sending to prefill server with bootstrap room 8463976258232842567 is_dummy=False"


def test_a_line_nobody_knows_is_an_event_only_when_it_was_searched_for() -> None:
    line = b"[2026-11-21 02:02:26] something new about " + ROOM
    assert list(READER.known(raw(line))) == []
    (event,) = naming(line)
    assert (event.row.id, event.room, event.t) == ("", None, 1795226546.0)
    assert event.text == "something new about 8463976258232842567"


def test_a_line_without_a_stamp_has_no_time() -> None:
    (event,) = naming(b"KeyError: " + ROOM)
    assert (event.t, event.uncertainty_s) == (None, 0.0)


def test_glued_lines_are_read_one_by_one() -> None:
    other = b"[2026-11-21 02:02:25] Using regular tokenizer for 1 inp"
    (event,) = naming(other + SENT)
    assert event.row.id == "transfer-info-sent"
    assert event.place == Place(PART.path, 12, 1000 + len(other))
    assert len(list(READER.known(raw(SENT + SENT)))) == 2


def test_marks_carriage_returns_colours_and_bytes_that_are_no_text_do_no_harm() -> None:
    for line in (b"\xef\xbb\xbf" + SENT, SENT + b"\r", b"\x1b[2m" + SENT + b"\x1b[0m"):
        (event,) = naming(line)
        assert (event.row.id, event.place.offset) == ("transfer-info-sent", 1000)
    (event,) = naming(b"\x00\xff\xfe " + ROOM + b" \xc3")
    assert event.row.id == ""


def test_a_line_heard_before_is_the_same_to_any_speaker() -> None:
    cached = CachedSpeech(speech())
    rows = [row.example.encode() for row in speech().rows]
    for line in rows:
        cached.match(line)
    for speakers in (None, *(frozenset({one.speaker}) for one in SHIPPED)):
        for line in rows:
            one, other = cached.match(line, speakers), speech().match(line, speakers)
            assert (one and one.row.id, one and dict(one.values)) == (
                other and other.row.id,
                other and dict(other.values),
            )
