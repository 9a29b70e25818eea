"""`pdctl doctor --from-host` and `--reached FILE`: the dials of another host, out and back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pdctl import user_files
from pdctl.doctor import other_host
from pdctl.errors import NotProbedError, UsageError
from pdctl.fleet import from_host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.doctor.facts import Facts
    from pdctl.doctor.finding import Report
    from pdctl.doctor.other_host import Stake
    from pdctl.doctor.selection import Selection

STDIN = "-"
LARGEST = 16 * 1024 * 1024  # bytes; 512 instances with 64 ranks each print less than half of it


def command(facts: Facts) -> str:
    """Raises NotProbedError when no address is known that could be dialled."""
    return from_host.command(_targets(facts))


def judged(facts: Facts, report: Report, file: str, chosen: Selection) -> Report:
    _targets(facts)
    return other_host.judged(report, facts, from_host.read(_text(file)), chosen)


def _targets(facts: Facts) -> Mapping[tuple[str, int], Stake]:
    targets = other_host.stakes(facts)
    if not targets:
        raise NotProbedError(
            "no address is known that another host could dial", "name a topology, or --prefill URL,PORT"
        )
    return targets


def _text(file: str) -> str:
    hint = "give the file that holds the command's output"
    if file == STDIN and sys.stdin is None:  # closed by who started us
        raise UsageError("--reached -: there is no standard input", hint)
    try:
        data = sys.stdin.buffer.read(LARGEST) if file == STDIN else user_files.read(file, LARGEST)
    except OSError as error:
        raise UsageError(f"--reached {file}: {error.strerror}", hint) from None
    return data.decode("utf-8", errors="replace")
