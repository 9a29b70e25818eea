"""Is each engine up, in its role and observable? PD301, PD604, PD605, PD614, PD801 to PD803, PD901 to PD904."""

from __future__ import annotations

import ipaddress
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Needs, Severity
from pdctl.doctor import server_info
from pdctl.doctor.bootstrap_ports import WILDCARD, address, host_key, port_claims
from pdctl.doctor.check import Check, Depth, Skipped, Unknown, finding, names, shorten_lines
from pdctl.fleet.address import URL
from pdctl.fleet.engine_probe import PATHS as INFO_PATHS
from pdctl.fleet.observations import PAIR, UNASKED
from pdctl.fleet.prober import FORBIDDEN, UNAUTHORIZED
from pdctl.shell_quoting import pasteable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.doctor.check import Facts, Finding
    from pdctl.fleet.observations import Ended, Holder, Host, ObservedEngine, Reply

ELSEWHERE = ("not resolved", "no connection within", "unreachable", "no route", "name or service", "resolution")
BROKEN = 500  # statuses from here on are the server's own failure
SKEW = 2.0  # seconds of clock difference from which on logs with one-second timestamps mislead
TALKATIVE = ("log_requests", "enable_request_time_stats_logging")


def roles(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD301: an engine runs in another role than the one it was given in."""
    found = [
        finding(
            "PD301",
            engine.endpoint.name,
            observed=_mode(engine),
            expected=engine.endpoint.role,
            evidence=(f"{engine.endpoint.url}/server_info: disaggregation_mode {engine.mode}",),
            fix=_own_role(engine),
        )
        for engine in facts.engines
        if engine.mode and engine.endpoint.role in ("prefill", "decode") and engine.mode != engine.endpoint.role
    ]
    silent = [engine.endpoint.name for engine in facts.engines if not engine.mode]
    return found or (Unknown(f"the role of {names(silent)} could not be read") if silent else [])


def _own_role(engine: ObservedEngine) -> str:
    if engine.mode in ("prefill", "decode"):
        return f"give the router {pasteable(engine.endpoint.url)} under --{engine.mode}"
    return f"start {pasteable(engine.endpoint.name)} with --disaggregation-mode {engine.endpoint.role}"


def _mode(engine: ObservedEngine) -> str:
    return "unified (no disaggregation)" if engine.mode == "null" else engine.mode


def down(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD604: its host answers but it does not, or it listens but is silent; and how it ended, if that is known."""
    ended = {one.instance: one for one in facts.ended}
    return [
        ended_instance(ended[engine.endpoint.name]) if engine.endpoint.name in ended else _down(engine)
        for engine in facts.engines
        if not engine.reached and engine.asked and not _elsewhere(engine) and not _in_other_network(facts, engine)
    ] or _read_each(facts)


def recorded(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD604: the run has ended, and its supervisor recorded how each process ended. Nothing is left to probe."""
    if facts.depth is not Depth.STATIC or not facts.ended:
        return Skipped("no run that ended")
    return [ended_instance(one) for one in facts.ended]


def _down(engine: ObservedEngine) -> Finding:
    url = engine.endpoint.url
    look = f"curl -sS {pasteable(url)}/health"
    if not URL.fullmatch(url):  # curl would read a file:// URL
        name = pasteable(engine.endpoint.name)
        look = f"register {name} under its own http:// or https:// URL in place of {pasteable(url)}"
    return finding(
        "PD604",
        engine.endpoint.name,
        observed=engine.reason or "no answer",
        expected="an answer on /server_info",
        look=look,
        evidence=shorten_lines([_line(engine, one) for one in engine.replies if not one.reason.startswith(UNASKED)]),
    )


def ended_instance(ended: Ended) -> Finding:
    """The end that its supervisor recorded. If pdctl ended the process, that is no fault of the process."""
    name = ended.instance
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ended.at))
    tail = [f"{name} | {line}" for line in ended.lines]
    told = [ended.untold] if ended.untold else []
    found = finding(
        "PD604",
        name,
        observed=f"{ended.words}, {f'at {when}' if ended.exact else f'after {when}, its last sign of life'}",
        expected="a process that answers",
        evidence=() if ended.ours else [f"what may tell why, in {ended.log}:", *tail] if tail else told,
        severity=Severity.INFO if ended.ours else None,
        look=ended.fix or f"tail -n 50 {pasteable(ended.log)}",
    )
    headline = f"{name} is not running: it {ended.words}{ended.next}"
    return replace(found, headline=headline, seen=(ended.at, math.inf))


def stopped(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD604: an engine does not answer because its process is stopped (SIGSTOP, Ctrl-Z, a debugger)."""
    if facts.host is None:
        return Unknown("this host was not looked at")
    return [
        held_up(engine.endpoint.name, engine.reason, who)
        for engine in facts.engines
        if not engine.info and (who := stopped_processes(facts.host, engine.endpoint.name, engine.endpoint.url))
    ] or _read_each(facts)


def stopped_processes(host: Host, name: str, url: str) -> list[Holder]:
    """The stopped processes of the run's instance `name`, or that which listens at `url` on this host."""
    where, port = address(url)
    own = [one for one in host.stopped if one.instance == name]
    holder = host.busy.get(port) if host_key(where) == "127.0.0.1" else None
    return own or ([holder] if holder is not None and holder.stopped else [])


def held_up(name: str, reason: str, who: list[Holder], asked: str = "/server_info") -> Finding:
    """PD604: `name` does not answer `asked`, because the processes `who` are stopped."""
    pids = [str(one.pid) for one in who]
    several = len(pids) > 1
    found = finding(
        "PD604",
        name,
        observed=reason or "no answer",
        expected=f"an answer on {asked}",
        evidence=shorten_lines([f"/proc/{one.pid}/stat: state T (stopped); {one}" for one in who]),
        look=f"kill -CONT {' '.join(pids)}",
    )
    subject = f"its processes (pids {names(pids)}) are" if several else f"its process (pid {pids[0]}) is"
    return replace(found, headline=f"{name} does not answer: {subject} stopped")


def foreign(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD903: something answers at the address, but it is not an SGLang engine."""
    return [
        _foreign(engine, facts.proxy_variable) for engine in facts.engines if _answers(engine) and not _locked(engine)
    ] or _read_each(facts)


def _foreign(engine: ObservedEngine, proxy_variable: str) -> Finding:
    found = finding(
        "PD903",
        engine.endpoint.name,
        observed=_no_info(engine),
        expected="a JSON object at /server_info",
        evidence=shorten_lines([_line(engine, one) for one in engine.replies if not one.ok]),
        url=engine.endpoint.url,
        what="SGLang engine",
    )
    refused = any(one.status == FORBIDDEN for one in engine.replies if one.path in INFO_PATHS)
    return refused_between(found, engine.endpoint.url, proxy_variable) if refused else found


def refused_between(found: Finding, url: str, proxy_variable: str) -> Finding:
    """PD903 for a 403 that asks for no API key: a proxy or a firewall refuses the request, as SGLang never does."""
    host, _ = address(url)
    fix = f"allow {pasteable(url)} in that proxy or firewall, or ask from a host that may reach it"
    if proxy_variable:
        fix += f"; {proxy_variable} is set here: add {host} to NO_PROXY"
    return replace(found, headline=f"a proxy or firewall refuses requests to {url}: {found.observed}", fix=fix)


def locked(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD904: an engine requires an API key and was given none or a wrong one."""
    return [
        finding(
            "PD904",
            engine.endpoint.name,
            observed=f"{engine.replies[0].status} on {engine.replies[0].path}",
            expected="200",
            evidence=shorten_lines([_line(engine, one) for one in engine.replies if _wants_key(one)]),
            url=engine.endpoint.url,
        )
        for engine in facts.engines
        if _answers(engine) and _locked(engine)
    ] or _read_each(facts)


def _answers(engine: ObservedEngine) -> bool:
    """Whether /server_info answered with something else. A 5xx is an engine in trouble, or a proxy."""
    statuses = [one.status for one in engine.replies if one.path in INFO_PATHS]
    return not engine.info and bool(statuses) and all(0 < status < BROKEN for status in statuses)


def _no_info(engine: ObservedEngine) -> str:
    """What came instead of server info, without the body, which is in the evidence."""
    last = next(one for one in reversed(engine.replies) if one.path in INFO_PATHS)
    return f"no server info at {last.path}" if last.ok else f"{last.status} on {INFO_PATHS[0]}"


def _locked(engine: ObservedEngine) -> bool:
    return any(_wants_key(one) for one in engine.replies if one.path in INFO_PATHS)


def _wants_key(reply: Reply) -> bool:
    return reply.wants_key or reply.status == UNAUTHORIZED


def _line(engine: ObservedEngine, reply: Reply) -> str:
    return f"{engine.endpoint.url}{reply.path}: {' '.join(filter(None, (str(reply.status or ''), reply.reason)))}"


def not_reachable(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD901: not even the host answers, which may be because of where doctor runs."""
    given = " ".join(_argument(engine) for engine in facts.engines)
    return [
        finding(
            "PD901",
            engine.endpoint.name,
            observed=engine.reason,
            expected="an answer, or a host that refuses",
            evidence=(f"{engine.endpoint.url}: {engine.reason}",),
            fix=f"pdctl doctor {given}" if len(facts.engines) <= FEW else "the same command",
        )
        for engine in facts.engines
        if not engine.reached and _elsewhere(engine) and not _in_other_network(facts, engine)
    ] or _read_each(facts)


def other_network(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD901: its process lives in another network namespace of this host, where its address is another."""
    return [
        _other_network(facts, engine, pid)
        for engine in facts.engines
        if not engine.reached and (pid := _in_other_network(facts, engine))
    ] or _read_each(facts)


def _other_network(facts: Facts, engine: ObservedEngine, pid: int) -> Finding:
    name = engine.endpoint.name
    found = finding(
        "PD901",
        name,
        observed="the run is in another network namespace",
        expected="doctor in the network namespace of the run",
        evidence=(f"/proc/{pid}/ns/net is not doctor's", f"{engine.endpoint.url}: {engine.reason}"),
    )
    headline = f"{name} is not reachable from here: the run is in another network namespace (pid {pid} lives)"
    fix = f"nsenter -t {pid} -n pdctl doctor --run {pasteable(facts.run)}".rstrip()
    return replace(found, headline=headline, fix=fix)


def _in_other_network(facts: Facts, engine: ObservedEngine) -> int:
    """The pid of its process in another network namespace than doctor's; 0 if there is none."""
    return facts.elsewhere.get(engine.endpoint.name, 0)


def too_late(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD901: time ran out before all engines were asked, which says nothing about those that were not."""
    missed = [engine for engine in facts.engines if not engine.asked]
    if not missed:
        return _read_each(facts)
    who, many = names([engine.endpoint.name for engine in missed]), len(facts.engines)
    found = finding(
        "PD901",
        observed=missed[0].reason,
        expected="an answer of each",
        evidence=(f"{len(missed)} of {many} were not asked: {who}",),
    )
    headline = f"{len(missed)} of {many} instances were {missed[0].reason}"
    return [replace(found, headline=headline, fix="give the same command more time, with --timeout 60s or more")]


FEW = 16  # endpoints up to which a command line stays readable


def _argument(engine: ObservedEngine) -> str:
    port = f",{engine.endpoint.bootstrap_port}" if engine.endpoint.bootstrap_port is not None else ""
    return f"--{engine.endpoint.role} {pasteable(engine.endpoint.url + port)}"


def _elsewhere(engine: ObservedEngine) -> bool:
    said = engine.reason.lower()
    return any(words in said for words in ELSEWHERE)


def nobody(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD902: there is no pair to look at."""
    if not facts.engines and Needs.ROUTER in facts.asked:
        return Skipped("no instance was given, and what the router lists is another check")
    have = {engine.endpoint.role for engine in facts.engines}
    missing = [role for role in ("prefill", "decode") if role not in have]
    if not missing:
        return []
    what = "no instance was given" if not have else f"no {missing[0]} among the {len(facts.engines)} instances given"
    found = finding("PD902", observed=what, expected="at least one prefill and one decode")
    return (
        [replace(found, fix=f"run the same command with --{missing[0]} http://HOST:PORT as well")] if have else [found]
    )


def health_lies(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD605: the health check passes on a prefill whose bootstrap server is unusable."""
    ports = port_claims(facts)
    broken = {
        claim.prefill: f"its bootstrap port {claim.truth} does not answer"
        for claim in ports.claims
        if claim.truth is not None
        and (seen := ports.seen.get((host_key(claim.host), claim.truth))) is not None
        and seen.asked
        and not seen.style
    }
    return _lies(facts, broken, {})


def health_lies_canary(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD605: the health check passes on both sides of a pair that cannot serve a single request."""
    broken: dict[str, str] = {}
    rooms: dict[str, int] = {}
    for one in facts.canaries:
        if one.kind == PAIR and one.ok is False:
            pair = f"a real request through {one.prefill} → {one.decode} failed"
            broken.setdefault(one.prefill, pair)
            broken.setdefault(one.decode, pair)
            rooms = {one.prefill: one.room, one.decode: one.room, **rooms}
    return _lies(facts, broken, rooms)


def _lies(facts: Facts, broken: dict[str, str], rooms: Mapping[str, int]) -> list[Finding]:
    """`rooms`: instance → room of a canary that failed there, so that the user need not send another."""
    found: list[Finding] = []
    for engine in facts.engines:
        green = [one.path for one in (engine.health, engine.health_generate) if one is not None and one.ok]
        name = engine.endpoint.name
        if green and name in broken:
            known: dict[str, object] = {"next": f"pdctl trace-room {rooms[name]}"} if rooms.get(name) else {}
            said = finding(
                "PD605",
                name,
                observed=f"{' and '.join(green)} with 200",
                expected="a real request through every pair",
                evidence=(broken[name],),
                severity=None,
                **known,
            )
            found.append(said)
    return found


def public(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD614: an engine is reached at a public address."""
    return [
        _public(engine, address(engine.endpoint.url)[0])
        for engine in facts.engines
        if engine.reached and _global(address(engine.endpoint.url)[0])
    ] or _read_each(facts)


def public_here(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD614: an engine listens on every address of this host, one of which is public."""
    if facts.host is None:
        return Unknown("this host was not looked at")
    opened = [one for one in facts.host.addresses if _global(one)]
    if not opened:
        return []
    here = {host_key(one) for one in facts.host.addresses} | {"127.0.0.1", facts.host.name}
    return [
        _public(engine, f"{engine.text('host')}, which includes {opened[0]}")
        for engine in facts.engines
        if engine.text("host") in WILDCARD and host_key(address(engine.endpoint.url)[0]) in here
    ]


def _public(engine: ObservedEngine, where: str) -> Finding:
    return finding(
        "PD614",
        engine.endpoint.name,
        observed=where,
        expected="an address of a private network",
        evidence=(f"{engine.endpoint.url}/server_info: host {engine.text('host')}, port {engine.number('port')}",),
    )


def _global(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return False


def trace_blind(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD801: a healthy room would leave no line in the logs. pdctl's own engine always logs every step."""
    silent = [engine for engine in facts.engines if engine.info and not _logs_rooms(engine)]
    blind = [engine for engine in silent if any(key in engine.info for key in TALKATIVE)]
    evidence = [f"{one.endpoint.url}/server_info: {', '.join(f'{key} false' for key in TALKATIVE)}" for one in blind]
    found = _together("PD801", blind, f"{' and '.join(TALKATIVE)} false", "one of them true on every engine", evidence)
    if not found and silent:
        return Unknown(f"{names([one.endpoint.name for one in silent])}: its /server_info does not tell what it logs")
    return found or _read_each(facts)


def _logs_rooms(engine: ObservedEngine) -> bool:
    """Whether it is configured so that a room leaves lines in its log."""
    loud = server_info.embedded(engine) or engine.text("log_level") == "debug"
    return loud or any(engine.info.get(key) for key in TALKATIVE)


def metrics_off(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD802: /metrics is not served."""
    off = [engine for engine in facts.engines if engine.info and engine.info.get("enable_metrics") is False]
    evidence = [f"{one.endpoint.url}/server_info: enable_metrics false" for one in off]
    return _together("PD802", off, "enable_metrics false", "enable_metrics true", evidence) or _read_each(facts)


def clocks(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD803: the Date header of an engine's answers differs from this host's clock."""
    found = [
        finding(
            "PD803",
            engine.endpoint.name,
            observed=f"{engine.clock_offset:+.0f} s against this host",
            expected=f"within {SKEW:g} s",
            evidence=(f"the Date header of {engine.endpoint.url}",),
        )
        for engine in facts.engines
        if engine.clock_offset is not None and abs(engine.clock_offset) > SKEW
    ]
    silent = [engine.endpoint.name for engine in facts.engines if engine.clock_offset is None]
    return found or (Unknown(f"{names(silent)} told no time") if silent else [])


def _together(
    code: str, engines: list[ObservedEngine], observed: str, expected: str, evidence: list[str]
) -> list[Finding]:
    """One finding for all of the engines, because they are repaired in one place."""
    if not engines:
        return []
    who = [engine.endpoint.name for engine in engines]
    found = finding(code, names(who), observed=observed, expected=expected, evidence=shorten_lines(evidence))
    return [replace(found, instance=who[0] if len(who) == 1 else "")]


def _read_each(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """No findings, if each engine could be read; else Unknown or Skipped."""
    if not facts.engines:
        return Skipped("no instance was given")
    silent = [
        engine.endpoint.name for engine in facts.engines if not engine.info and (engine.reached or not engine.asked)
    ]
    return Unknown(f"{names(silent)}: no /server_info that can be read") if silent else []


LIVE = (Needs.ENDPOINT,)
CHECKS = (
    Check("PD301", LIVE, roles),
    Check("PD604", LIVE, down),
    Check("PD604", (Needs.LOG,), recorded),
    Check("PD604", (Needs.ENDPOINT, Needs.HOST), stopped),
    Check("PD605", LIVE, health_lies),
    Check("PD605", (Needs.ENDPOINT, Needs.CANARY), health_lies_canary),
    Check("PD614", LIVE, public),
    Check("PD614", (Needs.ENDPOINT, Needs.HOST), public_here),
    Check("PD801", LIVE, trace_blind),
    Check("PD802", LIVE, metrics_off),
    Check("PD803", LIVE, clocks),
    Check("PD901", LIVE, not_reachable),
    Check("PD901", LIVE, too_late),
    Check("PD901", LIVE, other_network),
    Check("PD902", LIVE, nobody),
    Check("PD903", LIVE, foreign),
    Check("PD904", LIVE, locked),
)
