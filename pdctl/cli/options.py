"""What several verbs read from their words alike: times, API keys, names of which one is meant."""

from __future__ import annotations

import difflib
import os
from typing import TYPE_CHECKING

from pdctl.errors import UsageError
from pdctl.http_auth import KEY_VARIABLE
from pdctl.topology.units import UnitError, parse_duration

if TYPE_CHECKING:
    from collections.abc import Sequence


def seconds(flag: str, text: str) -> float:
    try:
        return parse_duration(text)
    except UnitError as error:
        raise UsageError(f"{flag} {text}: {error}", error.fix) from None


def key_of(variable: str) -> str:
    """What `--key-env VARIABLE` names, else $PDCTL_API_KEY. Raise UsageError if the named variable is not set."""
    if not variable:
        return os.environ.get(KEY_VARIABLE, "")
    key = os.environ.get(variable, "")
    if not key:
        raise UsageError(f"--key-env {variable}: that variable is not set", f"export {variable}=…")
    return key


def suggest_one_of(name: str, known: Sequence[str]) -> str:
    """A fix: the nearest of the names there are, and all of them."""
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
    names = ", ".join(known)
    return f"did you mean {' or '.join(near)}? There are {names}" if near else f"one of {names}"
