"""Every broken topology under broken/ is answered with exactly the text beside it.

A case is `NNN-name.yaml` and `NNN-name.txt`. Lines of the case that begin with `#:` say how it is given to pdctl:
`#: -f overlay.yaml`, `#: --set path=value`, `#: env NAME=value`. After a change of wording,
`PDCTL_SNAPSHOTS=rewrite pytest tests/topology/test_broken.py` writes the texts anew: read the diff.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from pdctl.errors import TopologyError
from pdctl.render import diagnostics
from pdctl.render.term import Term
from pdctl.topology.diagnostic import Code
from pdctl.topology.resolve import load
from tests.cases import for_each

BROKEN = Path(__file__).parent / "broken"
CASES = sorted(BROKEN.glob("[0-9]*.yaml"))
REWRITE = os.environ.get("PDCTL_SNAPSHOTS") == "rewrite"

pytestmark = pytest.mark.skipif(
    not yaml.__with_libyaml__, reason="PyYAML without libyaml places some syntax errors differently"
)


class Case(NamedTuple):
    files: list[Path]
    sets: list[str]
    environ: dict[str, str]


def case(path: Path) -> Case:
    found = Case([Path(path.name)], [], {})
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if not line.startswith("#: "):
            continue
        kind, _, value = line.removeprefix("#: ").partition(" ")
        if kind == "-f":
            found.files.append(Path(value))
        elif kind == "--set":
            found.sets.append(value)
        else:
            assert kind == "env", f"{path.name}: `#: {kind}` is not a word of this harness"
            name, _, text = value.partition("=")
            found.environ[name] = text
    return found


def answer(path: Path) -> str:
    """What pdctl says, as it would stand in a pipe."""
    given = case(path)
    with pytest.raises(TopologyError) as caught:
        load(given.files, given.sets, given.environ)
    stream = io.StringIO()
    term = Term(stream)
    term.unicode = True
    diagnostics.show(diagnostics.of(caught.value), term)
    return stream.getvalue() + caught.value.message + "\n"


@for_each("path", CASES, ids=lambda path: path.stem)
def test_broken_topology_is_answered_exactly(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(BROKEN)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("CLICOLOR_FORCE", raising=False)
    said = answer(path)
    expected = path.with_suffix(".txt")
    if REWRITE:
        expected.write_text(said, encoding="utf-8")
    assert said == expected.read_text(encoding="utf-8")


def test_every_text_has_its_case() -> None:
    assert {path.stem for path in BROKEN.glob("*.txt")} == {path.stem for path in CASES}
    assert len(CASES) >= 40


def test_every_code_is_shown_by_some_case() -> None:
    shown = {line.partition(":")[0] for path in BROKEN.glob("*.txt") for line in path.read_text("utf-8").splitlines()}
    # A file of more than 1 MiB is not kept here: test_files.py makes one.
    assert {code.value for code in Code} - shown == {Code.FILE_TOO_LARGE.value}
