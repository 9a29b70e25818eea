"""The door to this room: files, overlays and `--set` in, one checked Topology out, or every problem at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pdctl.errors import TopologyError
from pdctl.topology.build import build, complete
from pdctl.topology.diagnostic import Code, Diagnostic, Report
from pdctl.topology.files import read
from pdctl.topology.read import Reader, Values
from pdctl.topology.rules import check
from pdctl.topology.shelves import known
from pdctl.topology.suggest import nearest
from pdctl.topology.tree import Map, Scalar, Source, shape
from pdctl.topology.written import Written

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.topology.model import Topology

SUFFIXES = (".yaml", ".yml")


class Resolved(NamedTuple):
    """The topology, and the same as nested values under the file's own key names."""

    topology: Topology
    values: Values


def load(files: Sequence[Path], sets: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Topology:
    """The topology of the first file with the others merged over it, then `sets`. Raises TopologyError with all
    problems in `.diagnostics`. `-` is standard input."""
    return resolve(files, sets, environ).topology


def resolve(files: Sequence[Path], sets: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Resolved:
    """As `load`, with the values under their written names beside the topology (`pdctl topology show`)."""
    report = Report()
    return _resolved(_merged(files, sets, report), report, str(files[0]), os.environ if environ is None else environ)


def of_text(text: str, name: str, environ: Mapping[str, str]) -> Resolved:
    """As `resolve`, of a text that stands in no file yet; `name` is what it will be called."""
    from pdctl.topology.source import parse  # late, as below

    report = Report()
    report.reading(name)
    node = parse(Source.of(name, text), report)
    return _resolved(node if isinstance(node, Map) else None, report, name, environ)


def _resolved(root: Map | None, report: Report, name: str, environ: Mapping[str, str]) -> Resolved:
    if root is None:
        raise report.refusal(name)
    reader = Reader(report, environ)
    values = reader.document(root)
    complete(values, reader.spans, name, environ)
    topology = build(values, reader.spans, name)
    for problem in check(Written(topology, reader.keys, frozenset(reader.mistakes.paths))):
        report.take(problem)
    if report:
        raise report.refusal(name)
    return Resolved(topology, values)


def find(name: str, environ: Mapping[str, str] | None = None) -> Path:
    """The file meant by a path, or by the name of a site's or shipped topology (`2p1d`, `incidents/slow-transfer`)."""
    path = Path(name)
    if name == "-" or path.suffix in SUFFIXES or (path.exists() and not path.is_dir()):
        return path
    shelf = known(os.environ if environ is None else environ)
    if name in shelf or path.exists() or len(path.parts) > 1:
        return shelf.get(name, path)
    near = nearest(name, shelf)
    fix = f"did you mean `{near}`?" if near else f"known by name are {', '.join(sorted(shelf))}; a path works as well"
    problem = Diagnostic(Code.MISSING_FILE, f"there is no topology `{name}`", (), fix)
    raise TopologyError("1 problem in the arguments", diagnostics=(problem,))


def _merged(files: Sequence[Path], sets: Sequence[str], report: Report) -> Map | None:
    """All files and sets as one map; None when any of them cannot be read, for then nothing else can be judged."""
    from pdctl.topology.overlay import assignments, merge  # late: loads the YAML parser

    maps = [_map(path, report) for path in files]
    given = assignments(sets, report)
    root = maps[0]
    for each in (*maps[1:], *given):
        root = merge(root, each) if root is not None and each is not None else None
    return root


def _map(path: Path, report: Report) -> Map | None:
    """The top-level map of one file."""
    from pdctl.topology.source import parse  # late, as above

    source = read(path, report)
    if source is None:
        return None
    before = len(report.listed())
    node = parse(source, report)
    if isinstance(node, Map):
        return node
    if len(report.listed()) == before:
        begin = "a topology begins with `version: pdctl/v1`"
        if node is None or (isinstance(node, Scalar) and node.blank):
            report.add(Code.EMPTY_FILE, f"{source.name} is empty", help=begin)
        else:
            message = f"a topology is a map of keys, this is {shape(node)}"
            report.add(Code.NOT_A_MAP, message, [(node.span, "")], begin)
    return None
