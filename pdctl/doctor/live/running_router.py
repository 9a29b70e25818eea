"""The router's list and its own state: PD216, PD301, PD601 to PD604 and PD902 to PD904."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Needs
from pdctl.doctor.bootstrap_ports import (
    at_run_time,
    endpoint_key,
    plain,
    port_claims,
    router_command,
    worker_body,
    workers,
)
from pdctl.doctor.check import Check, Skipped, Unknown, finding, names, shorten_lines
from pdctl.doctor.live.router_ports import unread
from pdctl.doctor.live.running_engines import ended_instance, held_up, refused_between, stopped_processes
from pdctl.engines.kinds import COMMAND_LINES
from pdctl.fleet.engine_probe import PATHS as INFO_PATHS
from pdctl.fleet.prober import FORBIDDEN, UNAUTHORIZED
from pdctl.shell_quoting import pasteable

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.doctor.check import Facts, Finding
    from pdctl.fleet.observations import ObservedEngine, ObservedRouter, RouterWorker


STATES = {1: "open", 2: "half open"}
ROLES = ("prefill", "decode")
ROUTER = "router"


def misses(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD216: the router lists fewer addresses of a role than the topology has instances."""
    problem = unread(facts)
    if problem is not None:
        return problem
    if facts.topology is None:
        return Skipped("no topology says how many instances there should be")
    listed = [worker.role for worker in workers(facts.router)]
    wanted = {role.name: role.instances for role in facts.topology.roles}
    return [
        finding(
            "PD216",
            observed=str(listed.count(role)),
            expected=str(wanted[role]),
            evidence=shorten_lines([worker.url for worker in workers(facts.router) if worker.role == role]),
            role=role,
        )
        for role in ROLES
        if listed.count(role) < wanted[role]
    ]


def missing(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD603: an engine that answers is missing from the router's list, or marked unhealthy there."""
    problem = unread(facts)
    if problem is not None:
        return problem
    assert facts.router is not None
    listed = {endpoint_key(worker.url): worker for worker in workers(facts.router)}
    truth = {claim.prefill: claim.truth for claim in port_claims(facts).claims}
    found: list[Finding] = []
    for engine in facts.engines:
        worker = listed.get(endpoint_key(engine.endpoint.url))
        if engine.reached and (worker is None or not worker.healthy):
            found.append(_missing(facts.router, engine, worker, truth.get(engine.endpoint.name)))
    return found


def _missing(router: ObservedRouter, engine: ObservedEngine, worker: RouterWorker | None, port: int | None) -> Finding:
    name, url, role = engine.endpoint.name, plain(engine.endpoint.url), engine.endpoint.role
    state = "not listed" if worker is None else worker.health
    found = finding(
        "PD603",
        name,
        observed=state,
        expected="listed and healthy",
        evidence=(f"GET {router.url}/workers: {url} is {state}", f"{url} answers"),
        router=plain(router.url),
        url=url,
        role=role,
        port=port if port is not None else "PORT",
    )
    if worker is None:
        base, body = pasteable(plain(router.url)), worker_body(url, role, port)
        return replace(found, fix=f"curl {base}/workers -H 'content-type: application/json' -d {pasteable(body)}")
    if engine.health is not None and engine.health.status and not engine.health.ok:
        said = f"{engine.health.path} answers {engine.health.status}"
        return replace(
            found,
            headline=f"{name} is not ready, so the router sends it nothing: {said}",
            evidence=(*found.evidence, f"{url}{said}"),
            fix=f"curl -sS {pasteable(url + engine.health.path)}   # until it answers 200: the router looks again "
            "by itself",
        )
    return replace(
        found,
        headline=f"{name} answers, but the router holds it unhealthy",
        fix=at_run_time(router, url, role, port) or found.fix,
    )


def down(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD604: the router's process has ended, and how; its supervisor recorded it."""
    router = facts.router
    if router is None:
        return Skipped("no router was given")
    ended = [one for one in facts.ended if one.instance == ROUTER]
    return [] if router.reached else [ended_instance(one) for one in ended]


def stopped(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD604: the router does not answer because its process is stopped (SIGSTOP, Ctrl-Z, a debugger)."""
    router = facts.router
    if router is None:
        return Skipped("no router was given")
    if facts.host is None:
        return Unknown("this host was not looked at")
    who = [] if router.reached else stopped_processes(facts.host, ROUTER, router.url)
    return [held_up(ROUTER, router.reason, who, "/readiness")] if who else []


def not_ready(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD602: the router does not answer, or says that it cannot serve."""
    router = facts.router
    if router is None:
        return Skipped("no router was given")
    if router.reached and router.ready:
        return []
    if not router.asked:
        return Unknown(f"{router.url} was not reached: {router.reason}")
    if router.reached and router.ready is None and router.kind:
        return Unknown(f"{router.url} does not say whether it is ready")
    if _foreign(router, facts.proxy_variable) or _locked(router):
        return Unknown(f"{router.url} is not a router that can be read: {router.reason}")
    said = (router.reason if not router.reached else _describe_router(router)) or "no answer"
    found = finding(
        "PD602",
        "router",
        observed=said,
        expected="ready, with a healthy worker of each role",
        evidence=(f"GET {router.url}/readiness: {said}",),
        url=plain(router.url),
    )
    if router.reached:
        return [found]
    return [replace(found, headline=f"the router at {router.url} does not answer: {said}",
                    fix=f"curl -sS {pasteable(plain(router.url))}/readiness")]  # fmt: skip


def foreign(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD903: something answers at the address, but it is not a router that pdctl knows."""
    return _strange(facts, lambda router: _foreign(router, facts.proxy_variable))


def locked(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD904: the router requires an API key and was given none or a wrong one."""
    return _strange(facts, _locked)


def _strange(facts: Facts, judge: Callable[[ObservedRouter], list[Finding]]) -> list[Finding] | Skipped | Unknown:
    """What `judge` finds; no findings count only for a router that was recognised."""
    router = facts.router
    if router is None:
        return Skipped("no router was given")
    found = judge(router)
    if found or router.kind:
        return found
    return Unknown(f"{router.url} was not recognised as a router: {router.reason or 'no answer'}")


def _foreign(router: ObservedRouter, proxy_variable: str) -> list[Finding]:
    if not router.reached or router.kind or _wants_key(router):
        return []
    if router.mode:
        return [_engine(router)]
    found = finding(
        "PD903",
        "router",
        observed=router.reason,
        expected="a list of workers at /workers",
        evidence=(f"GET {router.url}/workers: {router.status or 'no answer'}",),
        url=router.url,
        what="SGLang router",
    )
    return [refused_between(found, router.url, proxy_variable) if router.status == FORBIDDEN else found]


def _wants_key(router: ObservedRouter) -> bool:
    return router.wants_key or router.status == UNAUTHORIZED


def _way_to_router() -> str:
    """How to find the address that was meant: an engine does not know its router."""
    starts = dict.fromkeys(" ".join(row.words).removeprefix("-m ") for row in COMMAND_LINES if row.role == ROUTER)
    return f"to find the router, on the host that may run it: pgrep -af '{'|'.join(starts)}'"


def _engine(router: ObservedRouter) -> Finding:
    """PD903 for an engine's address given as a router's, with the right way to give it."""
    url = plain(router.url)
    role = f"a {router.mode}" if router.mode in ROLES else "an engine without disaggregation"
    found = finding(
        "PD903",
        "router",
        observed=f"disaggregation_mode {router.mode}",
        expected="a list of workers at /workers",
        evidence=(
            f"GET {router.url}/workers: {router.status or 'no answer'}",
            f"GET {router.url}{INFO_PATHS[0]}: disaggregation_mode {router.mode}",
            *([_way_to_router()] if router.mode in ROLES else []),
        ),
        url=router.url,
        what="SGLang router",
    )
    port = f",{router.bootstrap_port}" if router.mode == "prefill" and router.bootstrap_port else ""
    fix = (
        f"pdctl doctor --router http://ROUTER:PORT --{router.mode} {pasteable(url)}{port}"
        if router.mode in ROLES
        else f"give --router the address of the router, and start the engine at {pasteable(url)} with "
        "--disaggregation-mode"
    )
    return replace(found, headline=f"{router.url} is {role}, not a router", fix=fix)


def _locked(router: ObservedRouter) -> list[Finding]:
    if not router.reached or not _wants_key(router):
        return []
    return [
        finding(
            "PD904",
            "router",
            observed=f"{router.status} on /workers",
            expected="200",
            evidence=(f"GET {router.url}/workers: {router.status}",),
            url=router.url,
        )
    ]


def _describe_router(router: ObservedRouter) -> str:
    reply = router.readiness
    if reply is None:
        return ""
    body = reply.body if isinstance(reply.body, dict) else {}
    counts = [body.get(key) for key in ("healthy_workers", "total_workers")]
    if all(isinstance(count, int) for count in counts):
        return f"{reply.status}, {counts[0]} of {counts[1]} workers healthy"
    return f"{reply.status} {reply.reason}".strip()


def breakers(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD601: a worker is cut off by its circuit breaker, which neither /workers nor /readiness shows."""
    router = facts.router
    if router is None:
        return Skipped("no router was given")
    if not router.reached:
        return Unknown(f"{router.url} was not reached: {router.reason}")
    if not router.breakers_known:
        return Unknown(f"the breakers of {router.url} could not be read: they stand in its Prometheus metrics only")
    cut_off = {urls: STATES[state] for urls, state in router.breakers.items() if state in STATES}
    if not cut_off:
        return []
    named = {endpoint_key(engine.endpoint.url): engine.endpoint.name for engine in facts.engines}
    # `urls`: of one worker, or with pdctl's own router of a pair.
    who = [" → ".join(named.get(endpoint_key(url), url) for url in urls.split()) for urls in cut_off]
    metrics = [f"the breaker metric of {urls} is {router.breakers[urls]}" for urls in cut_off]
    return [
        finding(
            "PD601",
            ROUTER,
            observed=names(list(dict.fromkeys(cut_off.values()))),
            expected="closed",
            evidence=(*shorten_lines(metrics), *_says_ready(router)),
            worker=names(who),
        )
    ]


def _says_ready(router: ObservedRouter) -> list[str]:
    return [f"GET {router.url}/readiness says ready all the same"] if router.ready else []


def roles(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD301: the router's own list shows a worker of one role that reports the other."""
    problem = unread(facts)
    if problem is not None:
        return problem
    assert facts.router is not None
    wrong = [worker for worker in workers(facts.router) if worker.mode in ROLES and worker.mode != worker.role]
    named = {endpoint_key(engine.endpoint.url): engine.endpoint.name for engine in facts.engines}
    found = [
        finding(
            "PD301",
            named.get(endpoint_key(worker.url), worker.url),
            observed=worker.mode,
            expected=worker.role,
            evidence=(f"GET {facts.router.url}/workers: worker_type {worker.role}, disaggregation_mode {worker.mode}",),
            url=worker.url,
        )
        for worker in wrong
    ]
    return [replace(one, fix=router_command(facts)) for one in found]


def one_sided(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD902: the router lists no worker of a role, so no pair can be formed."""
    problem = unread(facts)
    if problem is not None:
        return problem
    have = {worker.role for worker in workers(facts.router)}
    lacking = [role for role in ROLES if role not in have]
    if not lacking:
        return []
    assert facts.router is not None
    observed = f"{facts.router.url} lists no {names(lacking)}"
    fix = f"start the router with {' '.join(f'--{role} http://HOST:PORT' for role in lacking)} as well"
    return [finding("PD902", observed=observed, expected="both roles", fix=fix)]


ROUTED = (Needs.ENDPOINT, Needs.ROUTER)
CHECKS = (
    Check("PD216", (Needs.TOPOLOGY, Needs.ROUTER), misses),
    Check("PD301", ROUTED, roles),
    Check("PD601", ROUTED, breakers),
    Check("PD602", (Needs.ROUTER,), not_ready),
    Check("PD604", ROUTED, down),
    Check("PD604", (Needs.ROUTER, Needs.HOST), stopped),
    Check("PD603", ROUTED, missing),
    Check("PD902", (Needs.ROUTER,), one_sided),
    Check("PD903", (Needs.ROUTER,), foreign),
    Check("PD904", (Needs.ROUTER,), locked),
)
