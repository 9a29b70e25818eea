"""The modules $PDCTL_ENGINES names: what they bring for engines pdctl does not know (docs/new-engine.md)."""

from __future__ import annotations

import importlib

from pdctl.errors import UsageError

VARIABLE = "PDCTL_ENGINES"
BRINGS = ("ADAPTER", "SURFACE")  # its logs (engines/base.py), what it serves over HTTP (engines/surface.py)


def brought(modules: str, what: str) -> tuple[object, ...]:
    """`what` of every module that has it. Raises UsageError for one that cannot be imported or brings nothing."""
    found = []
    for name in filter(None, (word.strip() for word in modules.split(","))):
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            fix = f"install the package it is in, or take it out of ${VARIABLE}"
            raise UsageError(f"${VARIABLE} names {name}, which cannot be imported: {error}", fix) from None
        if not any(hasattr(module, one) for one in BRINGS):
            missing = " and no ".join(BRINGS)
            raise UsageError(f"${VARIABLE} names {name}, which has no {missing}", "see docs/new-engine.md for the form")
        if hasattr(module, what):
            found.append(getattr(module, what))
    return tuple(found)
