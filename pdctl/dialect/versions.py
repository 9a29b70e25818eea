"""Which releases of an engine the tables know, and which of them answers for any other release."""

from __future__ import annotations

from typing import NamedTuple

from pdctl.errors import UsageError

Version = tuple[int, int, int]

V0_5_3: Version = (0, 5, 3)
V0_5_8: Version = (0, 5, 8)
V0_5_13: Version = (0, 5, 13)
V0_5_18: Version = (0, 5, 18)
V0_5_23: Version = (0, 5, 23)

# The releases whose sources were read and executed; a change between two of them may have come in any release between.
SGLANG: tuple[Version, ...] = (V0_5_3, V0_5_8, V0_5_13, V0_5_18, V0_5_23)
NEWEST = V0_5_23


class Release(NamedTuple):
    """`known` is the release whose rows are used; `note` says why when that is not the one asked for."""

    asked: str
    known: Version
    note: str = ""


class Span(NamedTuple):
    """The releases a row holds for: `since` inclusive, `until` exclusive (None: still true in the newest)."""

    since: Version = V0_5_3
    until: Version | None = None

    def holds(self, version: Version) -> bool:
        return self.since <= version and (self.until is None or version < self.until)


def spell(version: Version) -> str:
    return ".".join(map(str, version))


def resolve(text: str | None) -> Release:
    """The rows that answer for SGLang `text` (None: the newest known); UsageError for older than the oldest known."""
    if text is None:
        return Release(spell(NEWEST), NEWEST)
    version = parse(text)
    if version < SGLANG[0]:
        raise UsageError(
            f"sglang {text} is older than {spell(SGLANG[0])}, the oldest release pdctl knows",
            f"give one of {', '.join(map(spell, SGLANG))}, or a newer one",
        )
    known = max(candidate for candidate in SGLANG if candidate <= version)
    if known == version:
        return Release(spell(version), known)
    what = "newer than any release pdctl knows" if known == NEWEST else "between two releases pdctl knows"
    return Release(spell(version), known, f"sglang {text} is {what}: the rules of {spell(known)} are used")


DIGITS = 6  # of one number of a version; more are somebody's build number or garbage


def parse(text: str) -> Version:
    """`0.5.18`, `v0.5.18`, `0.5.18.post1` and `0.5.18rc1` alike: the three leading numbers."""
    numbers: list[int] = []
    for part in text.strip().removeprefix("v").split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not 0 < len(digits) <= DIGITS:
            break
        numbers.append(int(digits))
    if len(numbers) != 3:
        raise UsageError(f"`{text}` is not an sglang version", f"write it as {spell(NEWEST)}")
    return numbers[0], numbers[1], numbers[2]
