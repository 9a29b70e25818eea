"""One problem of a topology: a stable code, a sentence, the places, the way out; and the report that collects them."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from pdctl.errors import TopologyError
from pdctl.quick_definitions import NamedTuple
from pdctl.topology.model import SourceSpan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Mark = tuple[SourceSpan, str]  # a place, and what to say about it


class Code(str, Enum):
    """Stable names; a code is never renamed or used again for something else. docs/topology.md explains each."""

    MISSING_FILE = "missing-file"
    NOT_A_FILE = "not-a-file"
    UNREADABLE_FILE = "unreadable-file"
    FILE_TOO_LARGE = "file-too-large"
    NOT_UTF8 = "not-utf8"
    EMPTY_FILE = "empty-file"
    YAML_SYNTAX = "yaml-syntax"
    TAB_INDENT = "tab-indent"
    MANY_DOCUMENTS = "many-documents"
    TOO_DEEP = "too-deep"
    TOO_MANY_NODES = "too-many-nodes"
    BAD_ALIAS = "bad-alias"
    BAD_MERGE = "bad-merge"
    BAD_KEY = "bad-key"
    BAD_TAG = "bad-tag"
    DUPLICATE_KEY = "duplicate-key"
    NOT_A_MAP = "not-a-map"
    BAD_SET = "bad-set"
    BAD_INTERPOLATION = "bad-interpolation"
    UNSET_VARIABLE = "unset-variable"
    UNKNOWN_KEY = "unknown-key"
    MISSING_KEY = "missing-key"
    WRONG_TYPE = "wrong-type"
    AMBIGUOUS_VALUE = "ambiguous-value"
    OUT_OF_RANGE = "out-of-range"
    BAD_CHOICE = "bad-choice"
    BAD_NAME = "bad-name"
    BAD_UNIT = "bad-unit"
    BAD_FLAG = "bad-flag"
    OWNED_FLAG = "owned-flag"
    UNKNOWN_POOL = "unknown-pool"
    PORT_COLLISION = "port-collision"
    PORT_RANGE = "port-range"
    DP_SPLIT = "dp-split"
    NIC_COUNT = "nic-count"
    WRONG_BACKEND = "wrong-backend"
    WRONG_POLICY = "wrong-policy"


class Diagnostic(NamedTuple):
    """The first mark is the place to look at; a second one is the place that contradicts it."""

    code: Code
    message: str
    spans: tuple[Mark, ...] = ()
    help: str = ""


class ProblemReport:
    """Collects problems, each once: an anchor used in three places is one mistake.

    `subject`: what the files should be; problems of a file that need not be a topology are worded for that.
    """

    def __init__(self, subject: str = "topology") -> None:
        self.subject = subject
        self._found: dict[tuple[str, str, tuple[Mark, ...]], Diagnostic] = {}
        self._files: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, code: Code, message: str, marks: Iterable[Mark] = (), help: str = "") -> None:
        self.take(Diagnostic(code, message, tuple(marks), help))

    def take(self, found: Diagnostic) -> None:
        self._found.setdefault((found.code, found.message, found.spans), found)

    def reading(self, file: str) -> None:
        """Remember the order in which files are read: problems are listed in that order."""
        self._files.setdefault(file, len(self._files))

    def listed(self) -> tuple[Diagnostic, ...]:
        """All problems by file, line and column."""
        return tuple(sorted(self._found.values(), key=self._position))

    def refusal(self, name: str, fix: str = "") -> TopologyError:
        """The error that carries all of them; `name` is what was read, if they are not all in one other place."""
        found = self.listed()
        files = {each.spans[0][0].file if each.spans else name for each in found}
        if len(files) == 1:
            (name,) = files
        problems = "1 problem" if len(found) == 1 else f"{len(found)} problems"
        return TopologyError(f"{problems} in {name}", fix, found)

    def _position(self, found: Diagnostic) -> tuple[int, int, int]:
        if not found.spans:
            return (-1, 0, 0)
        first = found.spans[0][0]
        return (self._files.get(first.file, len(self._files)), first.line, first.column)


def shown(text: str, limit: int = 48) -> str:
    """`text` as it may stand in a message: on one line, printable, not too long."""
    clean = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return f"`{clean}`" if len(clean) <= limit else f"`{clean[: limit - 1]}…`"


def listing(names: Iterable[str], word: str = "or") -> str:
    """`a`, `b` or `c`."""
    quoted = [f"`{name}`" for name in names]
    if len(quoted) < 2:
        return "".join(quoted)
    return f"{', '.join(quoted[:-1])} {word} {quoted[-1]}"


def places(spans: Mapping[str, SourceSpan], *wanted: tuple[str, str]) -> tuple[Mark, ...]:
    """Marks for those of the wanted (key path, label) that were written down, in the order asked for."""
    return tuple((spans[path], label) for path, label in wanted if path in spans)
