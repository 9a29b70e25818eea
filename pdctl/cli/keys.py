"""The API key that a verb sends, from the environment: a command line can be read by everybody on the host."""

from __future__ import annotations

import os

from pdctl.errors import UsageError
from pdctl.http_auth import KEY_VARIABLE


def key_of(variable: str) -> str:
    """What `--key-env VARIABLE` names, else $PDCTL_API_KEY. Raise UsageError if the named variable is not set."""
    if not variable:
        return os.environ.get(KEY_VARIABLE, "")
    key = os.environ.get(variable, "")
    if not key:
        raise UsageError(f"--key-env {variable}: that variable is not set", f"export {variable}=…")
    return key
