"""What SGLang refuses after loading the model, release by release, and DP settings that do not agree."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Severity
from pdctl.doctor.check import Unknown, finding, names
from pdctl.doctor.static.server_sources import written
from pdctl.engines.kinds import MINI_LB_FLAG, RELEASED, router_kind
from pdctl.engines.routers import router_flags as routers
from pdctl.engines.sglang.arguments import any_choices, choices, gap
from pdctl.engines.sglang.behaviour import ONLY_ROUND_ROBIN_FOLLOWS_ROOM, RANK_OF_ROOM_CHECKED
from pdctl.engines.sglang.refusals import REFUSALS
from pdctl.engines.versions import NEWEST, OLDEST, resolve, spell
from pdctl.shell_quoting import pasteable
from pdctl.suggestions import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdctl.doctor.check import Finding, Verdict
    from pdctl.doctor.static.servers import RouterLine, Server, Servers
    from pdctl.engines.sglang.arguments import Gap
    from pdctl.manifests.command_lines import Flag

TERM = re.compile(r"(?P<not>not )?(?P<env>env )?(?P<name>[\w-]+)(?: (?P<sign>=|!=|>) (?P<value>.+))?")


def holds(server: Server, term: str) -> bool:
    """Whether a term of a refusal is true of this server; with a value that depends on a variable it is not."""
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
    """Combinations the release refuses, and flags no parser accepts (for a topology, the plan finds those itself)."""
    found = [*_combinations(servers), *_unknown_flags(servers), *_unknown_to_routers(servers)]
    if not found and servers.sides and not any(side.release for side in servers.sides):
        return Unknown("nobody says which release runs, and what is refused differs by release")
    return found


def _combinations(servers: Servers) -> Iterator[Finding]:
    for side in servers.sides:
        version = side.version
        if version is None:
            continue
        for row in REFUSALS:
            if row.role in ("", side.role) and row.span.holds(version) and all(holds(side, term) for term in row.when):
                terms = [term for term in row.when if not term.startswith(("not", "env", "backend", "attention"))]
                said = [side.flags.find(term.split()[0]) for term in terms]
                evidence = [each.evidence for each in said if each is not None] or [side.name]
                observed = f"sglang {side.release} refuses {in_words(row.when)}"
                yield finding("PD318", side.name, observed, "a combination it takes", evidence, fix=row.fix)


def in_words(terms: Sequence[str]) -> str:
    """The terms of a refusal as they are read aloud."""
    first, *others = map(_term_in_words, terms)
    return f"{first} with {names(others)}" if others else first


def _term_in_words(term: str) -> str:
    name, sign, wanted = (*term.split(" ", 2), "", "")[:3]
    if name == "env":
        return sign
    if name == "not":
        return f"no --{sign}"
    written = {"backend": "transfer backend", "attention-tp": "attention TP"}.get(name, f"--{name}")
    words = {"=": wanted, "!=": f"other than {' or '.join(wanted.split())}", ">": f"above {wanted}"}
    return f"{written} {words[sign]}" if sign else written


FLAG = re.compile(r"[a-z0-9][a-z0-9_-]*")  # a word that depends on a variable or a template is not a flag yet
READ = f"from {spell(OLDEST)} to {spell(NEWEST)}"
SERVE = ("model-type",)  # flags of `sglang serve` only, besides the engine's own


def _unknown_flags(servers: Servers) -> Iterator[Finding]:
    """Flags the release does not have; if the release is not known, those that none has.

    Every engine is checked, because a worker may have flags its leader has not. Dynamo accepts flags of its own, and
    the flags of an image built from a branch are unknown.
    """
    if servers.plan is not None:
        return
    for side in servers.engines:
        if side.engine != RELEASED or (side.release and side.version is None):
            continue
        release = resolve(side.release) if side.release else None
        for said in side.flags.given:
            if FLAG.fullmatch(said.written or said.name) is None or said.name in SERVE:
                continue
            missing = gap(said.name, release)
            if missing is None:
                yield from _underscores(side.name, said)
                allowed = choices(said.name, release.known) if release is not None else any_choices(said.name)
                unread = release is not None and bool(release.note)
                yield from _values(side.name, said, allowed, Severity.WARNING if unread else Severity.ERROR)
            elif missing.sure or missing.write:
                yield _missing(side, said, missing)


def _missing(side: Server, said: Flag, missing: Gap) -> Finding:
    """PD318: certain if this release was read; for another release, a typing error is a guess."""
    written = f"--{said.written or said.name}"
    since = missing.why.removeprefix("since ")
    if missing.ever and since != missing.why and not missing.write:
        observed, fix = f"sglang {side.release} has no {written} ({missing.why})", f"update SGLang to {since}"
        fix = f"{fix}, or drop {written}"
        return finding("PD318", side.name, observed, f"SGLang {since} or newer", [said.evidence], fix=fix)
    if missing.ever:
        observed, severity = f"sglang {side.release} has no {written} ({missing.why})", None
    else:
        whose = f"sglang {side.release} has no {written}" if side.release else f"no sglang release {READ} has {written}"
        several = "" if missing.why.startswith("no release") else f": {missing.why}"
        sure = missing.sure and bool(missing.write)
        observed, severity = f"{whose}{several}", Severity.ERROR if sure else Severity.WARNING
    return _refused(side.name, said, observed, missing.write, severity)


def _underscores(name: str, said: Flag) -> Iterator[Finding]:
    """All SGLang's parsers accept only dashes; vLLM's accepts both."""
    if "_" in said.written:
        right = said.written.replace("_", "-")
        yield _refused(name, said, f"its parser does not take --{said.written} for --{right}", right, Severity.ERROR)


def _values(name: str, said: Flag, allowed: tuple[str, ...], severity: Severity) -> Iterator[Finding]:
    """Values that are not among those the parser lists."""
    for value in said.values if allowed else ():
        if FLAG.fullmatch(value) is None or value in allowed:
            continue
        near = nearest(value, allowed)
        flag = pasteable(f"--{said.written or said.name}")
        fix = (
            f"write {flag} {near} instead of {flag} {pasteable(value)}" if near else f"write one of them behind {flag}"
        )
        observed, expected = f"{flag} takes no {value}", f"one of {', '.join(allowed)}"
        yield finding("PD318", name, observed, expected, [said.evidence], severity, fix=fix)


def _refused(name: str, said: Flag, observed: str, write: str, severity: Severity | None) -> Finding:
    written = f"--{said.written or said.name}"
    expected = f"--{write}" if write else "a flag that its parser takes"
    fix = f"write --{write} instead of {pasteable(written)}" if write else f"drop {pasteable(written)}"
    return finding("PD318", name, observed, expected, [said.evidence], severity, fix=fix)


def _unknown_to_routers(servers: Servers) -> Iterator[Finding]:
    """Flags that no release of the router ever had, because nothing says which release it is."""
    for router in servers.routers:
        if servers.plan is not None and router.kind == "pdctl":
            continue  # the plan already refuses it
        for said in router.flags.given:
            if FLAG.fullmatch(said.written or said.name) is None or _old_mini_lb(router):
                continue
            if said.name in routers.ever(router.kind) or said.name == "help":
                yield from _underscores(router.name, said)
                yield from _values(router.name, said, routers.any_choices(said.name, router.kind), Severity.ERROR)
                continue
            several, near = routers.beginning_so(said.name, router.kind), routers.similar_flag(said.name, router.kind)
            package = routers.PACKAGES.get(router.kind)
            written = f"--{said.written or said.name}"
            observed = f"no release of {package} has {written}" if package else f"pdctl's router has no {written}"
            if several:
                observed += f": {len(several)} flags begin so: {', '.join(f'--{each}' for each in several[:4])}"
            write = several[0] if several else near
            yield _refused(router.name, said, observed, write, Severity.ERROR if write else Severity.WARNING)


def _old_mini_lb(router: RouterLine) -> bool:
    """Whether it is `python -m sglang.srt.disaggregation.mini_lb`, which before 0.5.3 had its own flags."""
    known = router_kind(router.kind)
    wants_flag = known is not None and f"--{MINI_LB_FLAG}" in known.flags
    return wants_flag and not router.flags.has(MINI_LB_FLAG)


FORCE = "SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK"
FOLLOWS = (None, "auto", "follow_bootstrap_room")


def rank_contract(servers: Servers) -> Iterator[Finding]:
    """Whether both sides compute the same DP rank of a prefill for a room."""
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
            observed = (
                f"dp-size {prefill.dp_ranks} without DP attention, and {prefill.release} checks the attention rank"
            )
            fix = f"export {FORCE}=1 on both roles, or use DP attention"
            yield _contract(prefill, observed, fix, [said.evidence])


def _forced(servers: Servers, prefill: Server) -> bool:
    return all(side.on(FORCE) for side in (prefill, *servers.of("decode")))


def _contract(side: Server, observed: str, fix: str, evidence: list[str]) -> Finding:
    return finding("PD313", side.name, observed, "one rule on both sides", evidence, fix=fix)


CHECKS = (written("PD313", rank_contract, embedded=False), written("PD318", refused, embedded=False))
