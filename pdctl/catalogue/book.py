"""Look up catalogue entries: by code, or by the words that people type for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.catalogue import (
    bootstrap_codes,
    capacity_codes,
    lifecycle_codes,
    observability_codes,
    pairing_codes,
    probing_codes,
    room_codes,
    transfer_codes,
)
from pdctl.errors import UsageError
from pdctl.quick_definitions import NamedTuple
from pdctl.suggestions import similar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.catalogue.entry import Entry


class CodeFamily(NamedTuple):
    """The codes that begin with `prefix`."""

    prefix: str
    title: str
    entries: tuple[Entry, ...]


FAMILIES = (
    CodeFamily("PD2", "Bootstrap servers, ports and addresses", bootstrap_codes.ENTRIES),
    CodeFamily("PD3", "What prefill and decode must share", pairing_codes.ENTRIES),
    CodeFamily("PD4", "The network under the KV cache", transfer_codes.ENTRIES),
    CodeFamily("PD5", "Capacity", capacity_codes.ENTRIES),
    CodeFamily("PD6", "Routers, probes and upkeep", lifecycle_codes.ENTRIES),
    CodeFamily("PD7", "Causes of one room's failure", room_codes.ENTRIES),
    CodeFamily("PD8", "Logs, metrics and clocks", observability_codes.ENTRIES),
    CodeFamily("PD9", "What prevented a check", probing_codes.ENTRIES),
)
ENTRIES: tuple[Entry, ...] = tuple(entry for family in FAMILIES for entry in family.entries)
_BY_CODE = {entry.code: entry for entry in ENTRIES}
_BY_SLUG = {entry.slug: entry for entry in ENTRIES}
SUGGESTED = 3
SAME_WORDS = 0.85
LINE_FIX = "for a line of a log: pdctl diagnose LOG; `pdctl explain --all` lists the codes"
LOOKALIKES = str.maketrans("OIL", "011")  # letters typed in place of digits


def entry(code: str) -> Entry:
    """The entry of a code that is known to exist; a KeyError is a bug in the caller."""
    return _BY_CODE[code]


def find_entry(word: str) -> Entry:
    """The entry of a code or slug, case-insensitive. Raise UsageError with the nearest ones if there is none."""
    found = _BY_CODE.get(_code(word)) or _BY_SLUG.get(word.strip().lower().replace("_", "-"))
    if found is None:
        raise _unknown(word)
    return found


def select(patterns: Iterable[str]) -> tuple[Entry, ...]:
    """The entries that match any of the patterns: a code, the beginning of one (`PD2`), a slug, or a glob of either.

    In the order of the catalogue, each once. Raise UsageError for a pattern that matches none.
    """
    wanted: set[str] = set()
    for pattern in patterns:
        found = {each.code for each in ENTRIES if _means(pattern.strip(), each)}
        if not found:
            raise _unknown(pattern)
        wanted |= found
    return tuple(each for each in ENTRIES if each.code in wanted)


def _code(word: str) -> str:
    """A typed code in its normal form: in capitals and with the prefix PD."""
    code = word.strip().upper()
    number = code.removeprefix("PD").lstrip("-_ ")
    return f"PD{number}" if number[:1].isdigit() else code


def _means(pattern: str, each: Entry) -> bool:
    code, slug = _code(pattern), pattern.lower().replace("_", "-")
    if any(sign in pattern for sign in "*?["):
        import fnmatch  # imported late: few patterns are globs

        return fnmatch.fnmatchcase(each.code, code) or fnmatch.fnmatchcase(each.slug, slug)
    return each.slug == slug or (code.startswith("PD") and code[2:].isdigit() and each.code.startswith(code))


def _unknown(word: str) -> UsageError:
    """The error for a word that names no entry. A sentence suggests only a slug of the same words."""
    if " " in word.strip():
        same = [_BY_SLUG[name] for name in similar("-".join(word.lower().split()), _BY_SLUG, cutoff=SAME_WORDS)]
        meant = f"did you mean {same[0].code} ({same[0].slug})?" if same else LINE_FIX
        return UsageError(f"no code or slug `{word}`", meant)
    near = [f"{each.code} ({each.slug})" for each in _similar_entries(word.strip())]
    meant = f"did you mean {' or '.join(near)}?" if near else "`pdctl explain --all` lists them"
    return UsageError(f"no code or slug `{word}`", meant)


def _similar_entries(typed: str) -> list[Entry]:
    """The entries whose slug contains the word; if there are none, those whose code or slug is similar."""
    slug = typed.lower().replace("_", "-").strip("*?-")
    within = [each for each in ENTRIES if len(slug) > 2 and slug in each.slug]
    if within:
        return within[:SUGGESTED]
    if typed[:2].upper() == "PD":
        read = typed.upper().translate(LOOKALIKES)
        if read in _BY_CODE:
            return [_BY_CODE[read]]
        return [_BY_CODE[code] for code in similar(typed.upper(), _BY_CODE, cutoff=0.75)]
    return [_BY_SLUG[name] for name in similar(slug, _BY_SLUG, cutoff=0.5)]
