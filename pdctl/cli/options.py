"""What several verbs read from their words alike: times, API keys, patterns."""

from __future__ import annotations

import os
import re

from pdctl.errors import UsageError
from pdctl.topology.units import UnitError, parse_duration


def seconds(flag: str, text: str) -> float:
    try:
        return parse_duration(text)
    except UnitError as error:
        raise UsageError(f"{flag} {text}: {error}", error.fix) from None


def key_of(variable: str) -> str:
    """What `--key-env VARIABLE` names, else $PDCTL_API_KEY. Raise UsageError if the named variable is not set."""
    if not variable:
        from pdctl.http_auth import KEY_VARIABLE  # late: verbs that only read logs load no hashing

        return os.environ.get(KEY_VARIABLE, "")
    key = os.environ.get(variable, "")
    if not key:
        raise UsageError(f"--key-env {variable}: that variable is not set", f"export {variable}=…")
    return key


def pattern(text: str | None) -> re.Pattern[str] | None:
    """What `--grep` gives."""
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"--grep {text!r} is not a regular expression: {error}", "escape it: --grep 'a\\(b'") from None
