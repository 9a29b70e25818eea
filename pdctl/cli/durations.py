"""Times on the command line, written as in a topology file: `90s`, `5m`, `1h30m`."""

from __future__ import annotations

from pdctl.errors import UsageError
from pdctl.topology.units import UnitError, parse_duration


def seconds(flag: str, text: str) -> float:
    try:
        return parse_duration(text)
    except UnitError as error:
        raise UsageError(f"{flag} {text}: {error}", error.fix) from None
