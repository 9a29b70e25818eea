"""How requests of pdctl's own are told from users': the beginning of their request ids."""

from __future__ import annotations

PREFIX = "pdctl-canary-"


def rid(room: int) -> str:
    """The id doctor gives the canary of `room`, on both legs."""
    return f"{PREFIX}{room:x}"
