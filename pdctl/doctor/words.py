"""Lists of names as a person reads them."""

from __future__ import annotations

SHOWN = 4  # of a list that repeats itself


def few(lines: list[str], shown: int = SHOWN) -> list[str]:
    return lines if len(lines) <= shown else [*lines[:shown], f"and {len(lines) - shown} more"]


def names(all_: list[str]) -> str:
    """a, b, c, d and 12 more"""
    shown = ", ".join(all_[:SHOWN])
    return shown if len(all_) <= SHOWN else f"{shown} and {len(all_) - SHOWN} more"
