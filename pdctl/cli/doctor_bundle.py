"""`pdctl doctor --bundle`: what goes into the archive."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import platform
from enum import Enum
from io import StringIO
from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl import __version__
from pdctl.deployment_secret import DeploymentSecret
from pdctl.doctor import bundle
from pdctl.errors import UsageError
from pdctl.launch import credentials
from pdctl.launch.state import RunDir, home
from pdctl.render.findings import report_forms, report_text
from pdctl.render.term import Term

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pdctl.cli.doctor_request import Subject
    from pdctl.doctor.facts import Facts
    from pdctl.doctor.finding import Report

KEPT = ("run.json", "plan.json", "topology.yaml")  # of a run's directory


def pack(path: Path, found: Subject, facts: Facts, report: Report, notice: Term) -> None:
    """Write the archive and say on `notice` where it is and what was taken out."""
    shown = StringIO()
    report_text.show(report, Term(shown), verbose=True)
    files = {
        "report.json": report_forms.to_json(report),
        "report.txt": shown.getvalue(),
        "facts.json": seen(facts),
        "versions.txt": f"pdctl {__version__}\npython {platform.python_version()}\n{platform.platform()}\n",
        "log-lines.txt": "".join(f"{line.code} {line.place} ×{line.count}: {line.text}\n" for line in facts.logs),
        **_of_run(found),
    }
    taken = bundle.write(path, files, _known(found))
    gone = ", ".join(f"{count} × {name}" for name, count in sorted(taken.items())) or "nothing"
    notice.write(f"wrote {path} ({path.stat().st_size} bytes; taken out: {gone})")


def _known(found: Subject) -> Iterator[str]:
    """Secrets that this process holds itself: they go wherever they stand, whatever their look."""
    if found.request.key:
        yield found.request.key
    yield from (value for name, value in os.environ.items() if bundle.is_secret(name, value))
    secret = _run_directory(found)
    if secret is not None:
        with contextlib.suppress(OSError, UsageError):
            yield DeploymentSecret.read(secret / credentials.FILE).key.decode("ascii", "replace")


def seen(facts: Facts) -> str:
    """Everything that was looked at, as JSON."""
    names = ("endpoints", "engines", "bootstraps", "router", "host", "canaries", "queues")
    return json.dumps(_plain({name: getattr(facts, name) for name in names}), indent=1, ensure_ascii=False)


def _of_run(found: Subject) -> dict[str, str]:
    directory = _run_directory(found)
    if directory is None:
        return {}
    there = {name: directory / name for name in KEPT if (directory / name).is_file()}
    return {f"run/{name}": file.read_text("utf-8", errors="replace") for name, file in there.items()}


def _run_directory(found: Subject) -> Path | None:
    return RunDir.of(home(os.environ), found.run.name).path if found.run is not None else None


def _plain(value: object) -> object:
    """Facts as JSON knows them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (dict, MappingProxyType)):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # Python writes NaN, which is no JSON
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
