"""Every form of three rooms against the files in expected/. PDCTL_WRITE_EXPECTED=1 writes them anew: then read them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pdctl.cli.trace_room import RoomForm, write
from pdctl.trace.room import Room
from tests.cases import for_each
from tests.render.trace import samples

EXPECTED = Path(__file__).parent / "expected"
SUFFIX = {
    RoomForm.TEXT: "txt",
    RoomForm.JSON: "json",
    RoomForm.JSONL: "jsonl",
    RoomForm.MERMAID: "mmd",
    RoomForm.PERFETTO: "perfetto.json",
    RoomForm.HTML: "html",
}


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")


def told(form: RoomForm, room: Room, tty: bool = False, encoding: str = "utf-8") -> str:
    term, stream = samples.screen(tty, encoding)
    write(form, [room], False, term, samples.UTC)
    return stream.getvalue()


def compare(name: str, text: str) -> None:
    file = EXPECTED / name
    if os.environ.get("PDCTL_WRITE_EXPECTED"):
        EXPECTED.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@for_each("form", list(RoomForm), ids=lambda form: form.value)
@for_each("make", [samples.wrong_prefill, samples.healthy, samples.blind], ids=lambda make: make.__name__)
def test_a_room_in_every_form(form: RoomForm, make: Callable[[], Room]) -> None:
    text = told(form, make())
    if form is RoomForm.HTML:  # style and script have tests of their own
        text = text[text.index("<main>") : text.index("<footer>")]
    compare(f"{make.__name__}.{SUFFIX[form]}", text)


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize(
    "make", [samples.wrong_prefill, samples.healthy, samples.blind], ids=lambda make: make.__name__
)
def test_a_room_on_a_terminal(make: Callable[[], Room], width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    compare(f"{make.__name__}.tty{width}.txt", samples.ESCAPE.sub("", told(RoomForm.TEXT, make(), tty=True)))


def test_a_room_on_a_terminal_without_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = told(RoomForm.TEXT, samples.wrong_prefill(), tty=True, encoding="ascii")
    compare("wrong_prefill.ascii.txt", samples.ESCAPE.sub("", text))
