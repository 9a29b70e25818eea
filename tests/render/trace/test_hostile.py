"""Log lines are written by others: whatever stands in them reaches terminal, browser and diagram as text alone."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from pdctl.cli.trace_room import RoomForm, write
from pdctl.engines.base import Phase
from pdctl.render.term import cells, fitted, padded, visible
from pdctl.render.trace.mermaid import escaped
from pdctl.trace.room import Cause, Lane, MissingEvidence, Room
from tests.cases import for_each
from tests.render.trace import samples

EVIL = (
    "\x1b]0;owned\x07\x1b[2J\x9b31m\r\nroom\u202egnp.exe\u2066 \x00\x7f "
    "<script>alert(1)</script><img src=x onerror=alert(2)>\"'>&lt; javascript:alert(3) "
    "%%{init: {}}%% ; end # --> \ud800 \u3000日本 ]]> </style></title>"
)


def poisoned() -> Room:
    """EVIL everywhere a log, a file name or a user's dialect could put it."""
    room = samples.wrong_prefill()
    steps = tuple(step._replace(text=EVIL, instance=step.instance + EVIL, rank=EVIL, file=EVIL) for step in room.events)
    lines = tuple(line._replace(text=EVIL, says=EVIL, file=EVIL, instance=EVIL) for line in room.evidence)
    assert room.gap is not None
    assert room.wrong_prefill is not None
    return room._replace(
        events=(*steps, steps[0]._replace(role=EVIL, instance=EVIL, phase=Phase.TRANSFER)),
        rids={EVIL: EVIL},
        prefill_requested=EVIL,
        prefill_contacted=EVIL + "2",
        decode=EVIL,
        cause=Cause("PD201", "bootstrap-port-null", EVIL, EVIL, "router", EVIL),
        evidence=lines,
        echoes=lines,
        lanes=(Lane(EVIL, EVIL, EVIL), *room.lanes),
        durations=tuple(each._replace(name=EVIL, instance=EVIL) for each in room.durations),
        gap=room.gap._replace(after=EVIL, before=EVIL, code=EVIL),
        wrong_prefill=room.wrong_prefill._replace(requested=EVIL, contacted=EVIL),
        missing_evidence=(MissingEvidence(EVIL, EVIL),),
        consequences=(EVIL,),
        notes=(EVIL,),
        fix=EVIL,
    )


def told(form: RoomForm, tty: bool = False, encoding: str = "utf-8") -> str:
    term, stream = samples.screen(tty, encoding)
    write(form, [poisoned()], False, term, samples.UTC)
    return stream.getvalue()


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("tty", [True, False])
@pytest.mark.parametrize("width", ["40", "80", "200"])
def test_nothing_steers_the_terminal(tty: bool, encoding: str, width: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.delenv("NO_COLOR", raising=False)
    own = samples.ESCAPE.sub("", told(RoomForm.TEXT, tty, encoding))  # colours and links of our own
    assert all(letter == "\n" or letter.isprintable() for letter in own)
    if not tty:
        assert r"\x1b]0;owned\x07\x1b[2J\x9b31m" in own
        assert r"room\u202egnp.exe\u2066" in own


@for_each("form", [RoomForm.MERMAID, RoomForm.PERFETTO, RoomForm.HTML], ids=lambda form: form.value)
def test_no_file_carries_control_or_bidirectional_characters(form: RoomForm) -> None:
    assert all(letter == "\n" or letter.isprintable() for letter in told(form))


@pytest.mark.parametrize("form", [RoomForm.JSON, RoomForm.JSONL], ids=lambda form: form.value)
def test_json_keeps_the_text_as_it_was(form: RoomForm) -> None:
    assert json.loads(told(form))["fix"] == EVIL


class Elements(HTMLParser):
    """What a browser would build."""

    VOID = frozenset({"meta", "br", "img", "link", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(text: str) -> Elements:
    elements = Elements()
    elements.feed(text)
    elements.close()
    assert not elements.open
    return elements


def test_a_page_builds_no_element_from_a_log() -> None:
    page = parsed(told(RoomForm.HTML))
    assert page.tags.count("script") == 1  # our own, named in the policy by its digest
    assert not {"img", "iframe", "link", "object"} & set(page.tags)
    assert not {name for name in page.attributes if name.startswith("on")}
    assert {link[:1] for link in page.links} == {"#"}
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links} == set(page.ids)


def test_a_page_may_load_nothing_and_run_only_its_own_script() -> None:
    import base64
    import hashlib

    text = told(RoomForm.HTML)
    script = text[text.index("<script>") + len("<script>") : text.index("</script>\n</body>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert f'http-equiv="Content-Security-Policy" content="{policy}"' in text
    assert "http://www" not in text
    assert "url(" not in text


def test_a_diagram_has_only_statements_of_our_own() -> None:
    """The lexer of sequence diagrams: a statement ends at a newline or `;`, `#` begins an entity, `%%` a comment."""
    name = r"L\d+"
    statement = re.compile(
        rf"    (accTitle: .+|participant {name} as .+|{name}->>{name}: .+|Note over {name}(,{name})?: .+"
        r"|rect rgba\([\d., ]+\)|end)"
    )
    first, *lines = told(RoomForm.MERMAID).rstrip("\n").split("\n")
    assert first == "sequenceDiagram"
    for line in lines:
        assert statement.fullmatch(line)
        plain = re.sub(r"#\d+;", "", line.replace("<br/>", ""))
        assert not set(plain) & set("#;<\"'%&{}\\`") - ({"'"})
        assert line.isascii() or set(line) <= set("±×") | {letter for letter in line if letter.isascii()}


def test_a_word_of_the_grammar_is_no_statement_in_a_text() -> None:
    assert escaped("a;b#c%%d--e\nend") == "a#59;b#35;c#37;#37;d#45;#45;e#92;x0aend"


def test_wide_and_combining_letters_take_their_columns() -> None:
    assert cells("日本a\u0301") == 5
    assert cells(fitted("日本" * 20, 21)) <= 21
    assert padded("日", 4) == "日  "
    assert visible("tab\tand\x85") == "tab    and\\x85"
