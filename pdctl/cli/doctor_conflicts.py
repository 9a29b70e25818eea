"""What on the command line of `pdctl doctor` does not go together: refused, where one would else be ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection

DOCUMENTS = ("-o json", "-o sarif", "-o github", "-o junit")


class Conflict(NamedTuple):
    """`{}` in `why` is the other flag."""

    flag: str
    others: tuple[str, ...]
    why: str
    fix: str = "give one of them"


CONFLICTS = (
    Conflict("--static", ("--canary",), "--static asks nobody, {} sends requests"),
    Conflict("--static", ("--watch",), "what is written alone does not change: --static leaves {} nothing to see"),
    Conflict("--static", ("--reached",), "{} judges addresses, and --static looks at none", "leave --static out"),
    Conflict(
        "--watch",
        ("--bundle", "--reached", "--output-file"),
        "--watch prints changes until Ctrl-C, {} is for one look",
    ),
    Conflict("--watch", DOCUMENTS, "--watch prints changes, {} is one document", "use -o text or -o jsonl"),
    Conflict(
        "--from-host",
        ("--static", "--canary", "--watch", "--bundle", "--reached", "-o jsonl", *DOCUMENTS),
        "--from-host prints one command and no report: it does not go with {}",
    ),
    Conflict("--reached -", ("-",), "--reached - and the manifest {} are one standard input", "put one into a file"),
)


def check(given: Collection[str]) -> None:
    """`given`: the flags that are set; an output form as `-o FORM`, what is read from standard input with its `-`."""
    for each in CONFLICTS:
        clash = next((other for other in each.others if each.flag in given and other in given), None)
        if clash is not None:
            raise UsageError(each.why.format(clash), each.fix)
