"""A user's own rows: read in front of the shipped ones, or refused with the line and the fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.engines.base import Level, Phase, Sign, Speaker
from pdctl.engines.user_rows import extended_speech, load
from pdctl.engines.versions import NEWEST, Span, spell
from pdctl.errors import UsageError
from tests.cases import for_each

GOOD = r"""
# lines of our fork
- id: fork-stuck
  speaker: sglang
  level: warning
  role: decode
  literal: "fork: room "
  pattern: 'fork: room (?P<room>\d+) is stuck: (?P<reason>.*)'
  example: '[2026-11-21 01:00:00 TP1] fork: room 5 is stuck: no pages'
  since: 0.5.8
  until: 0.5.23
  phase: prealloc
  backend: nixl
  cause: PD501
  echo: false
  needs: --log-level debug
  proves: page-list-sent, abort-talk
  reached: prealloc
- id: fork-alive
  speaker: sglang-router
  level: info
  literal: fork alive
  pattern: fork alive
  example: '2026-11-21 01:20:05  INFO smg::fork: fork alive'
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "fork.yaml").write_text(GOOD)
    return tmp_path


def refused(tmp_path: Path, text: str) -> UsageError:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(UsageError) as caught:
        load(tmp_path)
    return caught.value


def row(**changes: str) -> str:
    keys = {
        "id": "mine", "speaker": "sglang", "level": "info", "literal": "my words", "pattern": "my words",
        "example": "my words",
    }  # fmt: skip
    keys.update(changes)
    return "- " + "\n  ".join(f"{name}: {value}" for name, value in keys.items() if value) + "\n"


def test_rows_are_read_and_used(directory: Path) -> None:
    stuck, alive = load(directory)
    assert (stuck.id, stuck.speaker, stuck.level, stuck.role) == ("fork-stuck", Speaker.SGLANG, Level.WARNING, "decode")
    assert (stuck.span, stuck.phase, stuck.backend) == (Span((0, 5, 8), (0, 5, 23)), Phase.PREALLOC, "nixl")
    assert (stuck.cause, stuck.echo, stuck.needs) == ("PD501", False, "--log-level debug")
    assert (stuck.proves, stuck.reached) == ((Sign.PAGE_LIST_SENT, Sign.ABORT_TALK), Phase.PREALLOC)
    assert (alive.proves, alive.reached) == ((), None)
    assert (alive.span, alive.phase, alive.role) == (Span(), None, "")
    said = extended_speech(directory).match(b"[2026-11-21 02:00:00] fork: room 71 is stuck: no slot")
    assert said is not None
    assert dict(said.values) == {"room": "71", "reason": "no slot"}
    shipped = extended_speech(directory).match(b"[2026-11-21 02:00:00] room=5 is bootstrapped")
    assert shipped is not None
    assert shipped.row.id == "room-bootstrapped"


def test_a_user_s_row_wins_over_a_shipped_one(tmp_path: Path) -> None:
    mine = row(
        literal="is bootstrapped", pattern=r"'room=(?P<room>\d+) is bootstrapped'", example="room=5 is bootstrapped"
    )
    (tmp_path / "mine.yaml").write_text("rows:\n" + mine)
    said = extended_speech(tmp_path).match(b"[2026-11-21 02:00:00] room=5 is bootstrapped")
    assert said is not None
    assert said.row.id == "mine"


@for_each(
    ("text", "message", "fix"),
    [
        ("- id: [", "expected the node content", "quote patterns"),
        ("rows: 5\n", "a list of rows is expected", "- id:"),
        ("- 5\n", "a row is a mapping", "indented keys"),
        (row(speaker="sglng"), "'sglng' is no speaker", "did you mean sglang?"),
        (row(level="loud"), "'loud' is no level", "debug, info, warning, error, critical"),
        (row(role="prefil"), "'prefil' is no role", "prefill, decode, router"),
        (row(phase="prealoc"), "'prealoc' is no phase", "did you mean prealloc?"),
        (row(echo="maybe"), "'maybe' is not true or false", "true or false"),
        (row(since="newest"), "`newest` is not an sglang version", spell(NEWEST)),
        (row(spaeker="sglang"), "no key 'spaeker'", "did you mean 'speaker'?"),
        (row(pattern="", example=""), "pattern and example missing", "add `pattern: …`"),
        (row(literal="[a, b]"), "literal is one value", "write `literal: value`"),
        (row() + "  level: info\n", "level is given twice", "leave one"),
        (row(id="room-bootstrapped"), "id room-bootstrapped is taken by pdctl", "another id"),
        (row() + row(), "id mine is taken by", "another id"),
        (row(pattern="'my (words'"), "not a regular expression", "docs/dialects.md"),
        (row(pattern="'(?:my )?words'", literal="words"), "may be missing", "docs/dialects.md"),
        (row(literal="odd words"), "need not stand", "docs/dialects.md"),
        (row(literal="my"), "shorter than 4 bytes", "docs/dialects.md"),
        (
            row(example="'[2026-11-21 01:00:00] other'"),
            "the example of mine is not matched",
            "where the message begins",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, message: str, fix: str) -> None:
    error = refused(tmp_path, "# a comment\n" + text)
    assert message in error.message
    assert fix in error.fix
    assert f"{tmp_path}/bad.yaml:" in error.message


def test_the_line_of_the_mistake_is_named(tmp_path: Path) -> None:
    error = refused(tmp_path, "# one\n# two\n" + row(level="loud"))
    assert f"{tmp_path}/bad.yaml:5: " in error.message


def test_directories_that_hold_no_rows(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such directory"):
        load(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"no \*\.yaml file"):
        load(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"- id: caf\xe9\n")
    with pytest.raises(UsageError, match="is not UTF-8"):
        load(tmp_path)
    (tmp_path / "latin.yaml").write_text("[" * 1500)
    with pytest.raises(UsageError, match=r"nested too deeply|expected"):
        load(tmp_path)


def refusal(directory: Path) -> UsageError | None:
    try:
        load(directory)
    except UsageError as error:
        return error
    return None


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.text(max_size=200), st.text(alphabet="-: \nidxspeaklr[]{}'\"0", max_size=200)))
def test_any_text_is_rows_or_a_usage_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    directory = tmp_path_factory.mktemp("rows")
    (directory / "any.yaml").write_text(text, encoding="utf-8", errors="replace")
    failure = refusal(directory)
    assert failure is None or ("any.yaml" in failure.message and failure.fix)
