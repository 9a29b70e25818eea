"""Do the releases that run have faults that are known? PD317, by the table a topology is checked with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Needs
from pdctl.doctor import reading
from pdctl.doctor.check import EMBEDDED, Check, Skipped, Unknown, finding
from pdctl.doctor.static.releases import of
from pdctl.doctor.words import few, names
from pdctl.engines.sglang import faults
from pdctl.engines.sglang.faults import Release
from pdctl.engines.versions import parse, unread
from pdctl.errors import UsageError

if TYPE_CHECKING:
    from pdctl.doctor.facts import Facts
    from pdctl.doctor.finding import Finding
    from pdctl.fleet.facts import Engine


def known_bad(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """Instances of one role, release and backend are one finding per fault."""
    groups: dict[Release, list[Engine]] = {}
    dark: list[str] = []
    for engine in facts.engines:
        if reading.embedded(engine):
            continue
        release = _release(engine)
        if release is None:
            dark.append(engine.endpoint.name)
        else:
            groups.setdefault(release, []).append(engine)
    found = [one for release, some in groups.items() for one in _found(release, some)]
    if found or not dark:
        return found or ([] if groups else EMBEDDED if facts.engines else Skipped("no SGLang engine was given"))
    return Unknown(f"the release of {names(dark)} could not be read")


def _release(engine: Engine) -> Release | None:
    try:
        version = parse(engine.version[: reading.LONG])
    except UsageError:
        return None
    return Release(version, engine.endpoint.role, reading.backend(engine), _features(engine))


def _features(engine: Engine) -> frozenset[str]:
    found: set[str] = set()
    if (reading.width(engine) or 1) > 1:
        found.add(faults.ATTENTION_DP)
    if engine.text("speculative_algorithm"):
        found.add(faults.SPECULATION)
    balance = engine.text("load_balance_method")
    if reading.dp_ranks(engine) == 1 and balance not in (None, "auto", "follow_bootstrap_room"):
        found.add(faults.ONE_RANK_BALANCE)
    return frozenset(found)


def _found(release: Release, engines: list[Engine]) -> list[Finding]:
    who = [engine.endpoint.name for engine in engines]
    evidence = few([f"{one.endpoint.url}/server_info: version {one.version}" for one in engines])
    instance = who[0] if len(who) == 1 else ""
    return [replace(one, instance=instance) for one in of("PD317", names(who), release, evidence)]


def not_read(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD323: releases that no table has; each once, with the instances that run it."""
    if not facts.engines:
        return Skipped("no SGLang engine was given")
    engines = [engine for engine in facts.engines if not reading.embedded(engine)]
    if not engines:
        return EMBEDDED
    groups: dict[str, list[Engine]] = {}
    for engine in engines:
        release = _release(engine)
        if release is not None:
            groups.setdefault(unread(release.version), []).append(engine)
    if not groups:
        return Unknown(f"the release of {names([engine.endpoint.name for engine in engines])} could not be read")
    found = []
    for observed, some in groups.items():
        if observed:
            who = [one.endpoint.name for one in some]
            evidence = few([f"{one.endpoint.url}/server_info: version {one.version}" for one in some])
            found.append(finding("PD323", who[0] if len(who) == 1 else names(who), observed, "", evidence))
    return found


CHECKS = (Check("PD317", (Needs.ENDPOINT,), known_bad), Check("PD323", (Needs.ENDPOINT,), not_read))
