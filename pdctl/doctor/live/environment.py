"""The environment and limits of this host, for the engines that run here: PD407, PD411, PD413, PD416, PD6xx, PD804.

The variables are those of the shell doctor runs in. The engine's own cannot be read from outside, so each finding says
where the value stands; the rules are those a topology is checked by.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Needs
from pdctl.doctor import reading
from pdctl.doctor.check import Check, Skipped, Unknown, finding
from pdctl.doctor.live.devices import NOT_HERE, here
from pdctl.doctor.static import network, settings, upkeep
from pdctl.doctor.static.servers import Server, Servers, Setting
from pdctl.doctor.words import names
from pdctl.manifests.command_lines import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pdctl.doctor.check import Verdict
    from pdctl.doctor.facts import Facts
    from pdctl.doctor.finding import Finding
    from pdctl.fleet.facts import Engine, Host

PLACE = "this shell"
PER_RANK = 8  # sockets to each rank of the other side: ZMQ both ways, bootstrap, transfer library, and some to spare
BASE = 256  # files a process has open before it talks to anybody


def judged(judge: Callable[[Servers], Verdict], facts: Facts) -> list[Finding] | Skipped | Unknown:
    """A question for a command line, asked of this shell's environment beside what runs here."""
    engines = here(facts)
    if facts.host is None:
        return Unknown("this host was not looked at")
    if not engines:
        return Skipped(NOT_HERE)
    sides = _sides(facts.host, engines)
    verdict = judge(Servers(sides, sides, ()))
    return verdict if isinstance(verdict, Skipped | Unknown) else [_at(one, facts.host) for one in verdict]


def _sides(host: Host, engines: Sequence[Engine]) -> tuple[Server, ...]:
    """One per role and backend: what differs between the others is not asked about."""
    groups: dict[tuple[str, str, bool], list[Engine]] = {}
    for engine in engines:
        groups.setdefault((engine.endpoint.role, reading.backend(engine), reading.on_cpu(engine)), []).append(engine)
    env = {name: Setting(name, value, PLACE) for name, value in host.environ.items()}
    found: list[Server] = []
    for (role, backend, cpu), some in groups.items():
        words = ["--disaggregation-transfer-backend", backend, *(["--device", "cpu"] if cpu else [])]
        found.append(
            Server(
                name=names([engine.endpoint.name for engine in some]),
                role=role,
                engine="embedded" if reading.embedded(some[0]) else "sglang",
                release=some[0].version,
                version=reading.release(some[0]),
                flags=parse((word, "") for word in words),
                env=env,
                network=host.name,
                count=len(some),
            )
        )
    return tuple(found)


def _at(found: Finding, host: Host) -> Finding:
    """An instance of its own, or else this host."""
    return found if "," not in found.instance else replace(found, instance=host.name)


def files(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD804: fewer files than an engine needs that talks to every rank while all its slots are taken."""
    host, engines = facts.host, here(facts)
    if host is None:
        return Unknown("this host was not looked at")
    if not engines:
        return Skipped(NOT_HERE)
    ranks = sum(reading.ranks(engine) or 1 for engine in facts.engines)
    slots = max((engine.number("max_running_requests") or 0 for engine in engines), default=0)
    needed = BASE + PER_RANK * ranks + 2 * slots
    if host.nofile >= needed:
        return []
    evidence = (f"ulimit -n: {host.nofile}", f"{ranks} ranks in all, {slots} requests at once on one instance")
    return [finding("PD804", host.name, observed=str(host.nofile), expected=str(needed), evidence=evidence)]


LOCAL = (Needs.ENDPOINT, Needs.HOST)
CHECKS = (
    Check("PD407", LOCAL, partial(judged, network.ucx)),
    Check("PD411", LOCAL, partial(judged, network.dead)),
    Check("PD413", LOCAL, partial(judged, network.mnnvl)),
    Check("PD416", LOCAL, partial(judged, settings.wrong)),
    Check("PD606", LOCAL, partial(judged, upkeep.neutered)),
    Check("PD617", LOCAL, partial(judged, upkeep.hasty)),
    Check("PD804", LOCAL, files),
)
