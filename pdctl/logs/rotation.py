"""Which files are generations of one log, oldest first: names of logrotate, Python, Kubernetes, loguru and pdctl."""

from __future__ import annotations

import re
from typing import NamedTuple

_COMPRESSED = re.compile(r"\.(?:gz|zst|zstd)$")
_DAY = r"20\d\d-?(?:0[1-9]|1[0-2])-?(?:0[1-9]|[12]\d|3[01])(?:[-_T.]?\d[\d._-]*)?"
_NUMBERED = re.compile(r"(?P<base>.+\.[A-Za-z][\w-]*)\.(?P<number>\d{1,4})")  # x.log.2
_DATED_BEHIND = re.compile(
    rf"(?P<base>.+?)[.-](?P<day>{_DAY})"
)  # x.log-20261121, x.log.2026-11-21_04, 0.log.20261121-044619
_DATED_INSIDE = re.compile(rf"(?P<stem>.+?)[._-](?P<day>{_DAY})(?P<ending>\.[A-Za-z]+)")  # x-20261121.log
_LATER = re.compile(r"(?P<stem>.+)\.g(?P<number>\d{1,4})(?P<ending>\.log)")  # x.g2.log: the second start (pdctl launch)
_OLD = re.compile(r"(?P<base>.+\.[A-Za-z][\w-]*)\.old")
_ENDINGS = (".log", ".txt", ".out")
_ARCHIVES = (".tar", ".cpio")


class Generation(NamedTuple):
    """`base`: the name of the file that is written to now. `order` sorts the generations of one base, oldest first."""

    base: str
    order: tuple[int, str, int]


def generation(name: str) -> Generation:
    """Of a file name without its directory: `decode.log.2.gz` is the second last of `decode.log`."""
    name = _COMPRESSED.sub("", name)
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


def stem(base: str) -> str:
    """`prefill0.log` → `prefill0`: the instance when nobody names it."""
    for ending in _ENDINGS:
        if base.endswith(ending) and len(base) > len(ending):
            return base[: -len(ending)]
    return base


def is_log(name: str) -> bool:
    """Whether a file found in a directory is read: *.log*, *.txt, *.out, their generations, and anything compressed."""
    if name.startswith("."):
        return False
    plain = _COMPRESSED.sub("", name)
    if plain != name:
        return not plain.endswith(_ARCHIVES)
    return ".log" in name or generation(name).base.endswith(_ENDINGS)


def _digits(day: str) -> str:
    return "".join(filter(str.isdigit, day))
