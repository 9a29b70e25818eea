"""What SGLang refuses after the model has loaded, release by release, and DP settings that do not agree."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.doctor.check import Unknown, finding
from pdctl.doctor.static.question import written
from pdctl.engines.sglang.arguments import gap
from pdctl.engines.sglang.behaviour import ONLY_ROUND_ROBIN_FOLLOWS_ROOM, RANK_OF_ROOM_CHECKED
from pdctl.engines.sglang.refusals import REFUSALS
from pdctl.engines.versions import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.doctor.check import Verdict
    from pdctl.doctor.finding import Finding
    from pdctl.doctor.static.servers import Server, Servers


TERM = re.compile(r"(?P<not>not )?(?P<env>env )?(?P<name>[\w-]+)(?: (?P<sign>=|!=|>) (?P<value>.+))?")


def holds(server: Server, term: str) -> bool:
    """Whether a term of a refusal holds on this server; a value that hangs on a variable holds nothing."""
    found = TERM.fullmatch(term)
    if found is None:
        raise ValueError(term)
    name, sign, wanted = found["name"], found["sign"], (found["value"] or "").split()
    if found["env"]:
        return server.on(name)
    if sign is None:
        return server.flags.has(name) is not bool(found["not"])
    if sign == ">":
        number = server.attn_tp if name == "attention-tp" else server.flags.number(name)
        return number is not None and number > int(wanted[0])
    text = server.backend if name == "backend" else server.flags.text(name)
    return bool(text) and (text in wanted) is (sign == "=")


def refused(servers: Servers) -> Verdict:
    """Combinations the release refuses, and flags of a manifest that it does not have (a plan finds those itself)."""
    if servers.sides and not any(side.release for side in servers.sides):
        return Unknown("nobody says which release runs, and what is refused differs by release")
    return [found for side in servers.sides for found in _refused(servers, side)]


def _refused(servers: Servers, side: Server) -> Iterator[Finding]:
    version = side.version
    if version is None:
        return
    for row in REFUSALS:
        if row.role in ("", side.role) and row.span.holds(version) and all(holds(side, term) for term in row.when):
            names = [
                term.split()[0] for term in row.when if not term.startswith(("not", "env", "backend", "attention"))
            ]
            evidence = [said.evidence for name in names if (said := side.flags.find(name)) is not None]
            observed = f"sglang {side.release} refuses {' with '.join(row.when)}"
            yield finding("PD318", side.name, observed, "", evidence or [side.name], fix=row.fix)
    if servers.plan is None and side.engine == "sglang":
        yield from _lacking(side)


def _lacking(side: Server) -> Iterator[Finding]:
    """Dynamo takes flags of its own, and of an image that is a branch nobody knows which it has."""
    release = resolve(side.release)
    for said in side.flags.given:
        missing = gap(said.name, release)
        if missing is not None and missing.sure:
            observed = f"sglang {side.release} has no --{said.name} ({missing.why})"
            fix = f"drop --{said.name}" + (f"; {missing.instead}" if missing.instead else "")
            yield finding("PD318", side.name, observed, "", [said.evidence], fix=fix)


FORCE = "SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK"
FOLLOWS = (None, "auto", "follow_bootstrap_room")


def rank_contract(servers: Servers) -> Iterator[Finding]:
    """Which DP rank of a prefill serves a room, as both sides reckon it."""
    for side in servers.sides:
        version, balance = side.version, side.flags.find("prefill-round-robin-balance")
        if balance is not None and version is not None and not ONLY_ROUND_ROBIN_FOLLOWS_ROOM.holds(version):
            observed = f"--prefill-round-robin-balance does nothing in {side.release}"
            yield _contract(side, observed, "drop --prefill-round-robin-balance", [balance.evidence])
    for prefill in servers.of("prefill"):
        method = prefill.flags.text("load-balance-method")
        said = prefill.flags.find("dp-size", "attn-dp-size")
        if prefill.version is None or prefill.dp_ranks == 1 or said is None:
            continue
        plain = not prefill.dp_attention and RANK_OF_ROOM_CHECKED.holds(prefill.version)
        if plain and method in FOLLOWS and not _forced(servers, prefill):
            observed = f"plain data parallel of {prefill.dp_ranks}: {prefill.release} checks the attention rank instead"
            fix = f"export {FORCE}=1 on both roles, or use DP attention"
            yield _contract(prefill, observed, fix, [said.evidence])


def _forced(servers: Servers, prefill: Server) -> bool:
    return all(side.on(FORCE) for side in (prefill, *servers.of("decode")))


def _contract(side: Server, observed: str, fix: str, evidence: list[str]) -> Finding:
    return finding("PD313", side.name, observed, "one rule on both sides", evidence, fix=fix)


CHECKS = (written("PD313", rank_contract, embedded=False), written("PD318", refused, embedded=False))
