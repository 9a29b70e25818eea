"""Every `pdctl …` that a page, a catalogue entry, a finding or a help tells somebody to type is one pdctl takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import typer

from pdctl.catalogue import book
from pdctl.catalogue.entry import Entry, fill
from pdctl.cli.app import respelt
from pdctl.doctor import check_run
from tests.cases import for_each
from tests.cli.leaves import LEAVES
from tests.doctor.fixtures.live import FIXTURES

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
GROUPS = {name.split()[0] for name in LEAVES if " " in name}
VERBS = {name.split()[0] for name in LEAVES}
QUOTED = re.compile(r"`(pdctl [^`\n]+)`")
TYPED = re.compile(r"^\s*(?:\$ )?(pdctl (?:[^\\\n]|\\\n)+)", re.MULTILINE)
OF_FIX = re.compile(r"(?:^|: )(pdctl .*)")  # the whole, or behind what to do with it
FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
ENDS = (
    "|",
    "||",
    "&&",
    "&",
    ";",
    ">",
    ">>",
    "2>",
    "2>&1",
    "<",
    "…",
    "...",
    "#",
    "───▶",
)  # the command ends there
REFUSAL = typer.BadParameter.__bases__[0]  # click's UsageError, which Typer does not name itself
GLOBAL = {"--help", "-h", "--version", "-V"}


def of_page(page: Path) -> Iterator[str]:
    text = page.read_text(encoding="utf-8")
    for block in FENCE.findall(text):
        yield from TYPED.findall(block)
    yield from QUOTED.findall(FENCE.sub("", text))


def of_entry(entry: Entry) -> Iterator[str]:
    said = fill(entry.fix, {})
    yield from OF_FIX.findall(said)
    yield from QUOTED.findall(entry.explain)


def refusal(line: str) -> str:
    """Why pdctl would not take it; "" where it would. Values are not looked at: many stand for others."""
    line = re.sub(r"\\\n\s*", " ", line.strip()).partition("     ")[0]  # a picture has its remarks that far away
    words = shlex.split(line, comments=True)[1:]
    cut = next((at for at, word in enumerate(words) if word in ENDS or word.endswith((";", "…"))), len(words))
    words = respelt([word for word in words[:cut] if word not in ("[OPTIONS]", "…")])
    if not words or words[0] in GLOBAL:
        return ""
    if words[0] not in VERBS:
        return f"there is no verb {words[0]}"
    size = 2 if words[0] in GROUPS and (words[0] not in LEAVES or " ".join(words[:2]) in LEAVES) else 1
    leaf = LEAVES.get(" ".join(words[:size]))
    if leaf is None:
        return "" if len(words) < size or words[1] in GLOBAL else f"there is no {' '.join(words[:size])}"
    args = [word.strip("[]") for word in words[size:] if word not in ("--help", "-h")]
    parser = leaf.make_parser(leaf.context_class(leaf))
    try:
        _, rest, _ = parser.parse_args(list(args))
    except REFUSAL as error:
        return str(error)
    return f"too many words: {rest}" if rest else ""


def problems(lines: list[str]) -> list[str]:
    assert lines
    return [f"{line.strip()}: {why}" for line in lines if (why := refusal(line))]


@for_each(
    ("line", "why"),
    [
        ("pdctl doctor 2p1d --static  # nothing runs yet", ""),
        ("pdctl doctor 2p1d --statics", "No such option: --statics"),
        ("pdctl docter 2p1d", "there is no verb docter"),
        ("pdctl dialect sho", "there is no dialect sho"),
        ("pdctl status blue | head", ""),
        ("pdctl status blue green", "too many words: ['green']"),
    ],
)
def test_what_is_refused(line: str, why: str) -> None:
    assert refusal(line) == why


@for_each("page", [page for page in PAGES if any(of_page(page))], ids=lambda page: page.name)
def test_the_commands_of_a_page(page: Path) -> None:
    assert problems(list(of_page(page))) == []


def test_the_commands_of_the_catalogue() -> None:
    assert problems([line for entry in book.ENTRIES for line in of_entry(entry)]) == []


def test_the_commands_of_findings() -> None:
    fixes = [one.fix for raising, _ in FIXTURES.values() for one in check_run.run(raising()).findings]
    assert problems([line for fix in fixes for line in OF_FIX.findall(fix)]) == []


@for_each("verb", sorted(LEAVES))
def test_the_commands_of_a_help(verb: str) -> None:
    assert [each for line in TYPED.findall(LEAVES[verb].help or "") if (each := refusal(line))] == []
