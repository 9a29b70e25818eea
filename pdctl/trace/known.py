"""A statement about the room, and the lines it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdctl.logs.event import Event


@dataclass(frozen=True, slots=True)
class Known:
    """`value` is an instance's name. Every answer rests on lines that are there.

    by_elimination: no line names it; all others are ruled out.

    Lines that are missing, because a level is off, a file is cut or a collector dropped some, make an answer unknown,
    never another one.
    """

    value: str
    why: str
    events: tuple[Event, ...] = ()
    by_elimination: bool = False
