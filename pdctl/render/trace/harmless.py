"""A room, or a diagnosis, whose every text may go to a terminal: made once, so that no view of it can forget one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from pdctl.render.visible import visible

if TYPE_CHECKING:
    from pdctl.render.term import Term
    from pdctl.trace.diagnosis import Diagnosis
    from pdctl.trace.room import Room

Told = TypeVar("Told", "Room", "Diagnosis")


def harmless(room: Told, term: Term | None = None) -> Told:
    """`term`: the stream the texts are for; None takes every letter."""
    shown = _shown(room, term)
    assert isinstance(shown, type(room))
    return shown


def _shown(value: object, term: Term | None) -> object:
    if isinstance(value, str):
        return value if isinstance(value, Enum) else visible(value, term)
    if isinstance(value, tuple):
        return tuple(_shown(each, term) for each in value)
    if isinstance(value, Mapping):
        return {_shown(key, term): _shown(each, term) for key, each in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: _shown(getattr(value, each.name), term) for each in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value
