"""What somebody may have meant by a name that does not exist."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def one_of(name: str, known: Sequence[str]) -> str:
    """A fix: the nearest of the names there are, and all of them."""
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
    names = ", ".join(known)
    return f"did you mean {' or '.join(near)}? There are {names}" if near else f"one of {names}"
