"""Read files, overlays and `--set` into one checked Topology, or tell every problem at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl import package_data, program, user_files
from pdctl.errors import TopologyError
from pdctl.quick_definitions import NamedTuple, compile_late
from pdctl.suggestions import nearest
from pdctl.topology.build import build, complete
from pdctl.topology.checked_values import ValueReader, Values
from pdctl.topology.contradictions import WrittenTopology, find_contradictions
from pdctl.topology.diagnostic import Code, Diagnostic, ProblemReport, shown
from pdctl.topology.yaml_parser import SUFFIXES, KeyValue, List, Map, Node, Scalar, YamlText, parse, shape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.topology.model import SourceSpan, Topology


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
    for problem in find_contradictions(WrittenTopology(topology, reader.keys, frozenset(reader.mistakes.paths))):
        report.take(problem)
    if report:
        raise report.refusal(name)
    return ResolvedTopology(topology, values)


def topology_file(name: str, environ: Mapping[str, str] | None = None) -> Path:
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
    """All files and sets as one map; None when a set cannot be read, for then nothing else can be judged.

    Raise TopologyError if a file cannot be read.
    """
    maps = [_map(path, report) for path in files]
    given = assignments(sets, report)
    unread = [_called(path) for path, each in zip(files, maps, strict=True) if each is None]
    if unread:
        raise report.refusal(", ".join(unread))
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
    """The text of a YAML file (`-`: standard input), or None after reporting why there is none."""
    name = _called(path)
    report.reading(name)
    raw = _bytes(path, name, report)
    return None if raw is None else _text(raw, name, report)


def _called(path: Path) -> str:
    return "<stdin>" if str(path) == STDIN else str(path)


def _bytes(path: Path, name: str, report: ProblemReport) -> bytes | None:
    if name == "<stdin>":
        return user_files.standard_input().read(MAX_BYTES + 1)
    try:
        return user_files.read(path, MAX_BYTES)
    except FileNotFoundError:
        report.add(Code.MISSING_FILE, f"there is no file {name}", help=_neighbours(path, report.subject))
    except IsADirectoryError:
        found = sorted(entry.name for entry in path.glob("*.yaml"))[:8]
        hint = f"name one of the files in it: {', '.join(found)}" if found else f"name a {report.subject} file"
        report.add(Code.NOT_A_FILE, f"{name} is a directory", help=hint)
    except OSError as error:
        report.add(Code.UNREADABLE_FILE, f"{name} cannot be read: {(error.strerror or str(error)).lower()}")
    return None


def _text(raw: bytes, name: str, report: ProblemReport) -> YamlText | None:
    if len(raw) > MAX_BYTES:
        report.add(Code.FILE_TOO_LARGE, f"{name} is larger than 1 MiB", help=f"is this the {report.subject}, or a log?")
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


def _neighbours(path: Path, subject: str) -> str:
    """A file beside the missing one that has nearly its name, or the shipped topology that was meant."""
    if subject == "topology" and path.stem in known_topologies({}):
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


SET = "--set"

_SEGMENT = compile_late(r'"([^"]+)"|([^."=\[\]\s]+)')


def merge(base: Map, over: Map) -> Map:
    """`over` on top of `base`. A value of another shape replaces too, and remembers what it replaced."""
    entries = dict(base.entries)
    for name, new in over.entries.items():
        old = entries.get(name)
        if old is None:
            entries[name] = new
        elif isinstance(old.value, Map) and isinstance(new.value, Map):
            entries[name] = KeyValue(new.key, merge(old.value, new.value))
        else:
            replaced = None if type(old.value) is type(new.value) else old.key
            entries[name] = KeyValue(new.key, new.value, replaced)
    return Map(base.span, entries)


def assignments(sets: Sequence[str], report: ProblemReport) -> list[Map]:
    """One map per `--set`. They share one source, a line each, so that `--set:2:7` is column 7 of the second."""
    if sets:
        report.reading(SET)
    source = YamlText(SET, tuple(text.replace("\n", " ") for text in sets))
    found = (_assignment(source, number, report) for number in range(len(sets)))
    return [each for each in found if each is not None]


def _assignment(source: YamlText, number: int, report: ProblemReport) -> Map | None:
    text = source.lines[number]
    keys: list[tuple[str, SourceSpan]] = []
    at = 0
    while match := _SEGMENT.match(text, at):
        keys.append((match[1] or match[2], source.span(number, match.start(), match.end())))
        at = match.end() + 1
        if text[match.end() : at] != ".":
            break
    if not keys or text[at - 1 : at] != "=":
        _malformed(source, number, max(at - 1, 0), report)
        return None
    value = _value(source, number, at, report)
    if value is None:
        return None
    for name, span in reversed(keys):
        blank = isinstance(value, Scalar) and value.blank
        value = Map(span, {name: KeyValue(span, value._replace(span=span) if blank else value)})
    return value if isinstance(value, Map) else None


def _malformed(source: YamlText, number: int, at: int, report: ProblemReport) -> None:
    text = source.lines[number]
    fix = "write path=value, such as roles.prefill.instances=2"
    if text[at : at + 1] == "[":
        fix = "items of a list have no path: set the whole list, such as transfer.ib-devices=[mlx5_0, mlx5_1]"
    elif "=" in text:
        fix += '; a key with dots or spaces goes in quotes: pools.h100.labels."a.b/c"=d'
    mark = (source.span(number, min(at, len(text)), at + 1), "")
    report.add(Code.BAD_SET, f"{shown(text)} is not a path and a value", [mark], fix)


def _value(source: YamlText, number: int, at: int, report: ProblemReport) -> Node | None:
    """The text behind the `=`, read as YAML, with its marks moved to where it stands in the `--set`."""
    text = source.lines[number]
    inner = ProblemReport()
    # Spaces in front would count as indentation; a list or map is in flow style here and does not care.
    node = parse(YamlText.of(SET, text[at:]), inner)
    for found in inner.listed():
        marks = tuple((_moved(span, source, number, at), label) for span, label in found.spans)
        report.add(found.code, found.message, marks, found.help)
    if inner:
        return None
    if node is None:
        return Scalar(source.span(number, at, at), "")
    return _placed(node, source, number, at)


def _moved(span: SourceSpan, source: YamlText, number: int, by: int) -> SourceSpan:
    return source.span(number, span.column - 1 + by, span.end_column - 1 + by)


def _placed(node: Node, source: YamlText, number: int, by: int) -> Node:
    span = _moved(node.span, source, number, by)
    if isinstance(node, Scalar):
        return node._replace(span=span)
    if isinstance(node, List):
        return List(span, tuple(_placed(item, source, number, by) for item in node.items))
    entries = {
        name: KeyValue(_moved(entry.key, source, number, by), _placed(entry.value, source, number, by))
        for name, entry in node.entries.items()
    }
    return Map(span, entries)
