"""Peers whose addresses are shell code: no fix that doctor makes of them runs it."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdctl.doctor import check_run
from tests.cases import for_each
from tests.doctor.fixtures.live import FIXTURES

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.doctor.check import Facts

CODE = "/x;touch${IFS}ran;$(touch${IFS}ran)';touch${IFS}ran;'"


def hostile(value: Any) -> Any:
    """A copy in which every address of a server ends in shell code."""
    if isinstance(value, str):
        return value.rstrip("/") + CODE if value.startswith("http://") and value.count("/") < 4 else value
    if isinstance(value, tuple):
        parts = map(hostile, value)
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {field.name: hostile(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        return dataclasses.replace(value, **changed)
    return value


@for_each("facts", [loud for loud, _ in FIXTURES.values()], ids=list(FIXTURES))
def test_an_address_runs_in_no_shell(facts: Callable[[], Facts], tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir(exist_ok=True)
    if not (tools / "touch").exists():
        (tools / "touch").symlink_to("/usr/bin/touch")
    seen = facts()
    of_servers = {
        name: hostile(getattr(seen, name)) for name in ("endpoints", "engines", "bootstraps", "router", "canaries")
    }
    slow = tuple(  # an engine that is not up yet, which some fixes wait for
        dataclasses.replace(each, health=dataclasses.replace(each.health, status=503)) if each.health else each
        for each in of_servers["engines"]
    )
    for found in (
        *check_run.run(dataclasses.replace(seen, **{**of_servers, "engines": slow})).findings,
        *check_run.run(dataclasses.replace(seen, **of_servers)).findings,
    ):
        subprocess.run(
            ["/bin/bash", "-c", found.fix],
            cwd=tmp_path,
            env={"PATH": str(tools)},
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert not (tmp_path / "ran").exists(), (found.code, found.fix)
