"""Read files, overlays and `--set` into one checked Topology, or tell every problem at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pdctl import package_data, program, user_files
from pdctl.errors import TopologyError
from pdctl.suggestions import nearest
from pdctl.topology.build import build, complete
from pdctl.topology.checked_values import ValueReader, Values
from pdctl.topology.contradictions import WrittenTopology, check
from pdctl.topology.diagnostic import Code, Diagnostic, ProblemReport
from pdctl.topology.yaml_parser import Map, Scalar, YamlText, shape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.topology.model import Topology


SUFFIXES = (".yaml", ".yml")
MAX_BYTES = 1 << 20  # a topology is a page or two; a megabyte is a mistake (a log, a checkpoint)
STDIN = "-"
SITE = "PDCTL_TOPOLOGIES"  # a directory of the site's own topologies, looked at before the shipped ones


class ResolvedTopology(NamedTuple):
    """The topology, and the same as nested values under the file's own key names."""

    topology: Topology
    values: Values


def load(files: Sequence[Path], sets: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Topology:
    """The topology of the first file with the others merged over it, then `sets`. Raises TopologyError with all
    problems in `.diagnostics`. `-` is standard input."""
    return resolve(files, sets, environ).topology


def resolve(
    files: Sequence[Path], sets: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> ResolvedTopology:
    """As `load`, with the values under their written names beside the topology (`pdctl topology show`)."""
    report = ProblemReport()
    return _resolved(_merged(files, sets, report), report, str(files[0]), os.environ if environ is None else environ)


def of_text(text: str, name: str, environ: Mapping[str, str]) -> ResolvedTopology:
    """As `resolve`, of a text that stands in no file yet; `name` is what it will be called."""
    from pdctl.topology.yaml_parser import parse  # late, as below

    report = ProblemReport()
    report.reading(name)
    node = parse(YamlText.of(name, text), report)
    return _resolved(node if isinstance(node, Map) else None, report, name, environ)


def _resolved(root: Map | None, report: ProblemReport, name: str, environ: Mapping[str, str]) -> ResolvedTopology:
    if root is None:
        raise report.refusal(name)
    reader = ValueReader(report, environ)
    values = reader.document(root)
    complete(values, reader.spans, name, environ)
    topology = build(values, reader.spans, name)
    for problem in check(WrittenTopology(topology, reader.keys, frozenset(reader.mistakes.paths))):
        report.take(problem)
    if report:
        raise report.refusal(name)
    return ResolvedTopology(topology, values)


def find(name: str, environ: Mapping[str, str] | None = None) -> Path:
    """The file meant by a path, or by the name of a site's or shipped topology (`2p1d`, `incidents/slow-transfer`)."""
    path = Path(name)
    if name == "-" or path.suffix in SUFFIXES or (path.exists() and not path.is_dir()):
        return path
    shelf = known_topologies(os.environ if environ is None else environ)
    if name in shelf or path.exists() or len(path.parts) > 1:
        return shelf.get(name, path)
    near = nearest(name, shelf)
    fix = f"did you mean `{near}`?" if near else f"known by name are {', '.join(sorted(shelf))}; a path works as well"
    problem = Diagnostic(Code.MISSING_FILE, f"there is no topology `{name}`", (), fix)
    raise TopologyError("1 problem in the arguments", diagnostics=(problem,))


def _merged(files: Sequence[Path], sets: Sequence[str], report: ProblemReport) -> Map | None:
    """All files and sets as one map; None when any of them cannot be read, for then nothing else can be judged."""
    from pdctl.topology.overlay import assignments, merge  # late: loads the YAML parser

    maps = [_map(path, report) for path in files]
    given = assignments(sets, report)
    root = maps[0]
    for each in (*maps[1:], *given):
        root = merge(root, each) if root is not None and each is not None else None
    return root


def _map(path: Path, report: ProblemReport) -> Map | None:
    """The top-level map of one file."""
    from pdctl.topology.yaml_parser import parse  # late, as above

    source = read_file(path, report)
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


def read_file(path: Path, report: ProblemReport) -> YamlText | None:
    """The text of a topology file (`-`: standard input), or None after reporting why there is none."""
    name = "<stdin>" if str(path) == STDIN else str(path)
    report.reading(name)
    raw = _bytes(path, name, report)
    return None if raw is None else _text(raw, name, report)


def _bytes(path: Path, name: str, report: ProblemReport) -> bytes | None:
    if name == "<stdin>":
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    try:
        return user_files.read(path, MAX_BYTES)
    except FileNotFoundError:
        report.add(Code.MISSING_FILE, f"there is no file {name}", help=_neighbours(path))
    except IsADirectoryError:
        found = sorted(entry.name for entry in path.glob("*.yaml"))[:8]
        hint = f"name one of the files in it: {', '.join(found)}" if found else "name a topology file"
        report.add(Code.NOT_A_FILE, f"{name} is a directory", help=hint)
    except OSError as error:
        report.add(Code.UNREADABLE_FILE, f"{name} cannot be read: {(error.strerror or str(error)).lower()}")
    return None


def _text(raw: bytes, name: str, report: ProblemReport) -> YamlText | None:
    if len(raw) > MAX_BYTES:
        report.add(Code.FILE_TOO_LARGE, f"{name} is larger than 1 MiB", help="is this the topology, or a log?")
        return None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        _not_utf8(raw, error, name, report)
        return None
    if "\0" in text:
        report.add(Code.NOT_UTF8, f"{name} is a binary file (it holds a zero byte)", help="name a YAML text file")
        return None
    return YamlText.of(name, text)


def _not_utf8(raw: bytes, error: UnicodeDecodeError, name: str, report: ProblemReport) -> None:
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        report.add(Code.NOT_UTF8, f"{name} is UTF-16", help="save the file as UTF-8")
        return
    source = YamlText.of(name, raw.decode("utf-8", errors="replace"))
    before = YamlText.of(name, raw[: error.start].decode("utf-8-sig", errors="replace"))
    line, column = len(before.lines) - 1, len(before.lines[-1])
    mark = (source.span(line, column, column + 1), f"byte 0x{raw[error.start]:02x}")
    report.add(Code.NOT_UTF8, f"{name} is not UTF-8 text", [mark], "save the file as UTF-8")


def _neighbours(path: Path) -> str:
    """A file beside the missing one that has nearly its name, or the shipped topology that was meant."""
    shipped = known_topologies({})
    if path.stem in shipped:
        return f"the topology that ships with pdctl goes by its bare name: {path.stem}"
    try:
        beside = {entry.name: str(path.parent / entry.name) for entry in path.parent.glob("*.y*ml")}
    except OSError:
        beside = {}
    near = nearest(path.name, beside)
    return f"did you mean {beside[near]}?" if near else ""


def known_topologies(environ: Mapping[str, str]) -> dict[str, Path]:
    """Every name with its file; `incidents/NAME` for one a directory down. Shipped ones lie in the wheel, or beside the
    package in a checkout."""
    package = package_data.PACKAGE.resolve()
    shipped = (package / "topologies", package.parent / "topologies")
    if program.FILE:
        shipped = (package_data.unpack(package_data.location("topologies")),) * 2
    site = [Path(environ[SITE])] if environ.get(SITE) else []
    found: dict[str, Path] = {}
    for shelf in (*site, *shipped):
        for file in sorted((*shelf.glob("*.yaml"), *shelf.glob("incidents/*.yaml"))):
            found.setdefault(file.relative_to(shelf).with_suffix("").as_posix(), file)
    return found
