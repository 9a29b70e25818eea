"""Open the logs a user names: files, directories, globs, stdin; rotated sets become one named log; watch logs grow."""

from __future__ import annotations

import glob
import os
import stat
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pdctl import user_files
from pdctl.errors import MissingExtraError, PdctlError, StorageError, UsageError
from pdctl.logs import collector_format, concatenated_logs
from pdctl.logs.merged_stream import UNNAMED, StreamSource, first_bytes, split_by_name
from pdctl.logs.part import Compression, LogPart, Spool, examine, lineless
from pdctl.quick_definitions import NamedTuple, compile_late
from pdctl.suggestions import similar

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


STDIN = "-"
_COPY = 1 << 20  # bytes
_HEAD = 1 << 16  # bytes of a stream within which a log has a line
SPOOLED = 8 << 30  # bytes of a stream that are kept
_TOLD = 4  # files that are left out and named
POLL = 0.2  # seconds between checks whether files have grown
_NODE = compile_late(r"(?P<instance>(?:prefill|decode)-\d+)-node[1-9]\d*\.log")  # pdctl launch
_COMPRESSED = (".gz", ".zst", ".zstd")
_DAY = r"20\d\d-?(?:0[1-9]|1[0-2])-?(?:0[1-9]|[12]\d|3[01])(?:[-_T.]?\d[\d._-]*)?"
_NUMBERED = compile_late(r"(?P<base>.+\.[A-Za-z][\w-]*)\.(?P<number>\d{1,4})")  # x.log.2
_DATED_BEHIND = compile_late(
    rf"(?P<base>.+?)[.-](?P<day>{_DAY})"
)  # x.log-20261121, x.log.2026-11-21_04, 0.log.20261121-044619
_DATED_INSIDE = compile_late(rf"(?P<stem>.+?)[._-](?P<day>{_DAY})(?P<ending>\.[A-Za-z]+)")  # x-20261121.log
_LATER = compile_late(
    r"(?P<stem>.+)\.g(?P<number>\d{1,4})(?P<ending>\.log)"
)  # x.g2.log: the second start (pdctl launch)
_OLD = compile_late(r"(?P<base>.+\.[A-Za-z][\w-]*)\.old")
_ENDINGS = (".log", ".txt", ".out")
_ARCHIVES = (".tar", ".cpio")


class Log(NamedTuple):
    """What one process wrote. Only the nodes of one `instance` share its name, node 0 first; `parts`: oldest first.

    notes: sentences about the stream it was taken from. mixed: several processes wrote it, and the stream does not show
    which of them wrote which line.
    """

    instance: str
    parts: tuple[LogPart, ...]
    notes: tuple[str, ...] = ()
    mixed: bool = False

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(part.size for part in self.parts)

    @property
    def files(self) -> tuple[str, ...]:
        """Paths to open; for a source of a merged stream, the stream itself."""
        return tuple(dict.fromkeys(part.origin or part.path for part in self.parts))


class _Found(NamedTuple):
    """A file that one of the paths denotes, and the log it belongs to."""

    part: LogPart
    directory: Path
    base: str
    order: tuple[int, str, int]
    notes: tuple[str, ...] = ()
    mixed: bool = False


def open_logs(
    paths: Sequence[str],
    *,
    names: Mapping[str, str] | None = None,
    stdin: BinaryIO | None = None,
) -> tuple[Log, ...]:
    """The logs at `paths`, in the order given (a directory's by name). names: path as typed → name of its instance.

    A merged stream becomes one log for each of its sources (merged_stream.py, concatenated_logs.py). A directory is
    read for *.log*, *.txt, *.out, .gz, .zst, all levels deep; `-` is `stdin`, kept in an unnamed file.
    Raise UsageError for a path that does not exist, is not readable, is UTF-16, or contains no log. A file that nobody
    named, of a directory or a glob, is left out with a note where others can be read.
    """
    found: dict[tuple[int, int], _Found] = {}
    left_out: list[PdctlError] = []
    for path in paths:
        for file in _expand(path):
            try:
                each = _open_given(file, stdin)
            except (UsageError, MissingExtraError) as error:
                if file == path:
                    raise
                left_out.append(error)
                continue
            found.setdefault((each.part.device, each.part.inode), each)
    if left_out and not found:
        raise left_out[0]
    chosen = names or {}
    apart = [one for each in found.values() for one in ([each] if each.part.path in chosen else _split_merged(each))]
    said = [f"{error.message}: it was left out" for error in left_out[:_TOLD]]
    if len(left_out) > _TOLD:
        said.append(f"{len(left_out) - _TOLD} more files were left out: they cannot be read either")
    if said:
        apart[0] = apart[0]._replace(notes=(*said, *apart[0].notes))
    return _named(_sets(apart), chosen)


def growing(
    open_now: Callable[[], tuple[Log, ...]],
    limit: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[Log, ...]]:
    """The logs as they are, then again each time a file is new, longer, truncated or replaced, for `limit` seconds."""
    deadline = clock() + limit
    seen: list[tuple[str, int, int, int]] | None = None
    while True:
        logs = open_now()
        files = [(part.path, part.device, part.inode, part.size) for log in logs for part in log.parts]
        if files != seen:
            seen = files
            yield logs
        left = deadline - clock()
        if left <= 0:
            return
        sleep(min(POLL, left))


def _split_merged(found: _Found) -> Sequence[_Found]:
    """The sources of a merged stream, split by the names its lines carry or by speaker; else the log itself."""
    why = lineless(found.part)
    if why:
        return [
            found._replace(part=found.part._replace(form=Compression.PLAIN, size=0), notes=(f"{why}: it was not read",))
        ]
    form = collector_format.format_of(first_bytes(found.part))
    said: list[str] = []
    pieces: tuple[StreamSource, ...] = ()
    if form is not None:
        pieces = split_by_name(found.part, form, said.append)
        if len(pieces) == 1 and not pieces[0].mixed:  # use the name of its file
            alone = pieces[0]._replace(name=stem(found.base))
            nameless = concatenated_logs.split_by_speaker(alone.part, said.append) if pieces[0].name == UNNAMED else ()
            pieces = nameless or (() if form.peeled else (alone,))
    elif concatenated_logs.may_hold_several(found.part):
        pieces = concatenated_logs.split_by_speaker(found.part, said.append)
    sources = [_of_stream(found, piece) for piece in pieces] or [found]
    return [sources[0]._replace(notes=tuple(said)), *sources[1:]]


def _of_stream(found: _Found, piece: StreamSource) -> _Found:
    """The source as a log of its own, beside the stream and under its own name."""
    node = f"{piece.name}.log"
    return found._replace(part=piece.part, base=node if _node(node) else piece.name, mixed=piece.mixed)


def _expand(path: str) -> list[str]:
    if path == STDIN:
        return [path]
    if not path:
        raise UsageError("a path is empty", "give the path of a log: an unset variable in quotes makes an empty one")
    if Path(path).is_dir():
        inside = _walk(Path(path))
        if not inside:
            raise UsageError(f"no logs in {path}", "a directory is read for *.log*, *.txt, *.out, *.gz and *.zst")
        return inside
    if os.path.lexists(path):
        return [path]
    if glob.has_magic(path):
        matches = [Path(match) for match in sorted(glob.glob(path, recursive=True))]  # noqa: PTH207 (absolute patterns)
        if matches:
            return [file for match in matches for file in (_walk(match) if match.is_dir() else [str(match)])]
        raise UsageError(f"no file matches {path}", "see what `ls` makes of the pattern")
    raise UsageError(f"{path}: no such file or directory", _similar_names(Path(path)))


def _walk(directory: Path) -> list[str]:
    inside: list[Path] = []
    for where, folders, files in os.walk(directory):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        inside += (Path(where) / name for name in sorted(files) if is_log(name))
    return [str(path) for path in inside if path.is_file()]


def _similar_names(wanted: Path) -> str:
    """A hint with names similar to the missing one, or to the first missing directory of its path."""
    while not wanted.parent.exists():
        wanted = wanted.parent
    beside = [entry.name for entry in wanted.parent.iterdir()] if os.access(wanted.parent, os.R_OK) else []
    near = similar(wanted.name, beside, 3)
    if near:
        return f"did you mean {' or '.join(str(wanted.parent / name) for name in near)}?"
    where = "this directory" if wanted.parent == Path() else wanted.parent
    return f"there is no `{wanted.name}` in {where}; give files, directories, globs or `-`"


def _open_given(path: str, stdin: BinaryIO | None) -> _Found:
    if path == STDIN:
        if stdin is None:
            raise UsageError("`-` means standard input, and there is none", "pipe a log into it, or give a path")
        spool = _spooled("stdin", iter(lambda: stdin.read(_COPY), b""))
        return _Found(examine("stdin", spool), Path(), "stdin", (2, "", 0))
    file = Path(path)
    try:
        if stat.S_ISREG(file.stat().st_mode):
            part = examine(path)
        else:  # a pipe such as <(kubectl logs …)
            part = examine(path, _spooled(path, user_files.chunks(path)))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "check its name and its permissions") from None
    base, order = generation(file.name)
    return _Found(part, file.parent, base, order)


def _spooled(name: str, source: Iterator[bytes]) -> Spool:
    """Copy a stream, because a log is read several times.

    Raise UsageError if it is too long or has no lines, StorageError if it cannot be stored.
    """
    import tempfile  # late: files need none

    where = user_files.temporary_directory()
    with tempfile.TemporaryFile(prefix="pdctl-", buffering=0, dir=where) as file:
        size = 0
        for chunk in source:
            if not size and len(chunk) >= _HEAD and b"\0" in chunk and b"\n" not in chunk:
                raise UsageError(f"{name} is not a log: {_HEAD >> 10} KiB without a line", "give a log, or pipe one")
            size += len(chunk)
            if size > SPOOLED:
                raise UsageError(f"more than {SPOOLED >> 30} GiB came from {name}", "write it to a file, and name that")
            try:
                file.write(chunk)
            except OSError as error:
                fix = "name a directory with more space: TMPDIR=DIR"
                raise StorageError(f"{name} cannot be kept in {where}: {error.strerror}", fix) from None
        return Spool(os.dup(file.fileno()))


def _sets(found: Iterable[_Found]) -> dict[Path, list[_Found]]:
    """Group the generations of each log, oldest first, by the path of the file that is written to now."""
    sets: dict[Path, list[_Found]] = {}
    for each in found:
        sets.setdefault(each.directory / each.base, []).append(each)
    return {path: sorted(parts, key=lambda each: each.order) for path, parts in sets.items()}


def _named(sets: Mapping[Path, list[_Found]], names: Mapping[str, str]) -> tuple[Log, ...]:
    chosen = {path: name for path, parts in sets.items() if (name := _given_name(path, parts, names))}
    wholes = {path: _log_of_node_0(path) for path in sets if path not in chosen}
    shared = {path: whole for path, whole in wholes.items() if whole is not None and whole in sets}
    unnamed = [path for path in sets if path not in chosen and path not in shared]
    depth = 0
    while unnamed:  # add a directory to names that are not unique
        spelt = {path: _spell(path, depth) for path in unnamed}
        taken = Counter((*spelt.values(), *chosen.values()))
        clear = {path: name for path, name in spelt.items() if taken[name] == 1 or name == str(path)}
        chosen.update(clear)
        unnamed = [path for path in unnamed if path not in clear]
        depth += 1
    chosen.update({path: chosen[whole] for path, whole in shared.items()})
    ordered = sorted(sets, key=lambda path: _node(path.name) is not None)
    return tuple(
        Log(
            chosen[path],
            tuple(each.part for each in sets[path]),
            tuple(note for each in sets[path] for note in each.notes),
            any(each.mixed for each in sets[path]),
        )
        for path in ordered
    )


def _log_of_node_0(path: Path) -> Path | None:
    """The path of node 0's log, if `path` is another node's log of the same instance; else None."""
    node = _node(path.name)
    return path.with_name(node["instance"] + ".log") if node is not None else None


def _node(name: str) -> re.Match[str] | None:
    return _NODE.fullmatch(name) if "-node" in name else None


def _given_name(path: Path, parts: Sequence[_Found], names: Mapping[str, str]) -> str:
    """The name the user gave the log by its own path or that of one of its generations; "" if none."""
    paths = (str(path), *(each.part.path for each in parts))
    return next((names[each] for each in paths if each in names), "")


def _spell(path: Path, depth: int) -> str:
    """`prefill0`, then with directories in front: `run2/prefill0`; finally the whole path, which is unique."""
    above = [part for part in path.parent.parts if part not in ("/", "..", ".")]
    if depth > len(above):
        return str(path)
    return "/".join((*above[len(above) - depth :], stem(path.name)))


class Generation(NamedTuple):
    """base: the name of the file that is written to now. order: sorts the generations of one base, oldest first."""

    base: str
    order: tuple[int, str, int]


def generation(name: str) -> Generation:
    """The generation of a file name without directory: `decode.log.2.gz` is the second rotated file of `decode.log`."""
    name = _uncompressed(name)
    if name.endswith(_ENDINGS) and ".g" not in name and "20" not in name:  # none of the patterns below: most names
        return Generation(name, (2, "", 0))
    later = _LATER.fullmatch(name)
    if later is not None:
        return Generation(later["stem"] + later["ending"], (3, "", int(later["number"])))
    numbered = _NUMBERED.fullmatch(name)
    if numbered is not None:
        return Generation(numbered["base"], (1, "", -int(numbered["number"])))
    inside = _DATED_INSIDE.fullmatch(name)
    if inside is not None:
        return Generation(inside["stem"] + inside["ending"], (0, _digits(inside["day"]), 0))
    behind = _DATED_BEHIND.fullmatch(name)
    if behind is not None:
        return Generation(behind["base"], (0, _digits(behind["day"]), 0))
    old = _OLD.fullmatch(name)
    if old is not None:
        return Generation(old["base"], (1, "", -1))
    return Generation(name, (2, "", 0))


def _uncompressed(name: str) -> str:
    ending = next((one for one in _COMPRESSED if name.endswith(one)), "")
    return name.removesuffix(ending)


def stem(base: str) -> str:
    """`prefill0.log` → `prefill0`: the instance's name if the user gave none."""
    for ending in _ENDINGS:
        if base.endswith(ending) and len(base) > len(ending):
            return base[: -len(ending)]
    return base


def is_log(name: str) -> bool:
    """Whether a file found in a directory is read: *.log*, *.txt, *.out, their generations, and anything compressed."""
    if name.startswith("."):
        return False
    plain = _uncompressed(name)
    if plain != name:
        return not plain.endswith(_ARCHIVES)
    return ".log" in name or generation(name).base.endswith(_ENDINGS)


def _digits(day: str) -> str:
    return "".join(filter(str.isdigit, day))
