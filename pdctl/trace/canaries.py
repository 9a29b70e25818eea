"""Rooms that are no user's: the canaries doctor and pdctl's router send through every pair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.pdctl.adapter import PREFIX
from pdctl.engines.sign import Sign

if TYPE_CHECKING:
    from pdctl.trace.room import Room
    from pdctl.trace.story import Story

LEFT = "PD706"


def ours(story: Story) -> bool:
    """Its request ids begin as only those of canaries do, or the router's line calls it one."""
    named = any(rid.startswith(PREFIX) for rids in story.rids.values() for rid in rids)
    return named or any(event.proves(Sign.CANARY) for event in story.events)


def left_on_purpose(room: Room) -> bool:
    """Doctor leaves one canary of each pair half-way, to see that both sides let it go: nothing is wrong with it."""
    return room.canary and room.cause is not None and room.cause.code == LEFT
