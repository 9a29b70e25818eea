"""Options that several verbs parse alike: durations, API keys, patterns."""

from __future__ import annotations

import os
import re

from pdctl.errors import UsageError


def key_of(variable: str) -> str:
    """The API key from `--key-env VARIABLE`, else from $PDCTL_API_KEY. Raise UsageError if VARIABLE is not set."""
    if not variable:
        from pdctl.http_auth import KEY_VARIABLE  # imported late: verbs that only read logs do not load hashing

        return os.environ.get(KEY_VARIABLE, "")
    key = os.environ.get(variable, "")
    if not key:
        raise UsageError(f"--key-env {variable}: that variable is not set", f"export {variable}=…")
    return key


def pattern(text: str | None) -> re.Pattern[str] | None:
    """The compiled `--grep`; None if it is not given. Raise UsageError if it is not a regular expression."""
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"--grep {text!r} is not a regular expression: {error}", "escape it: --grep 'a\\(b'") from None
