"""Time limits, heartbeats, logs, metrics, and what the router will and will not try."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, NamedTuple

from pdctl.catalogue.entry import Severity
from pdctl.doctor.check import Skipped, finding
from pdctl.doctor.static.question import written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.doctor.check import Verdict
    from pdctl.doctor.finding import Finding
    from pdctl.doctor.static.servers import RouterLine, Servers


class Limit(NamedTuple):
    """`most`: beyond it the limit limits nothing. Values in seconds, or counts."""

    name: str
    default: str
    most: float


LIMITS: tuple[Limit, ...] = (
    Limit("SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", "300 s", 3600),
    Limit("SGLANG_DISAGGREGATION_WAITING_TIMEOUT", "300 s", 3600),
    Limit("SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL", "5 s", 120),
    Limit("SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE", "2", 100),
    Limit("SGLANG_DISAGGREGATION_ENGINE_INIT_TIMEOUT", "60 s", 3600),
    Limit("SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT", "30 s", 3600),
)
FLAG_LIMITS: tuple[Limit, ...] = (Limit("watchdog-timeout", "300 s", 3600),)
INTERVAL, FAILURES = "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL", "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE"
SHORTEST = 10.0  # seconds of silence after which SGLang's defaults take a prefill for dead: 2 misses, 5 s apart


def neutered(servers: Servers) -> Iterator[Finding]:
    for side in servers.sides:
        for limit in LIMITS:
            value = side.quantity(limit.name)
            if value is not None and value > limit.most:
                said = side.env[limit.name]
                observed = f"{limit.name}={said.value}"
                yield finding("PD606", side.name, observed, limit.default, [said.evidence], name=limit.name)
        for limit in FLAG_LIMITS:
            number, flag = side.flags.number(limit.name), side.flags.find(limit.name)
            if number is not None and flag is not None and number > limit.most:
                yield finding("PD606", side.name, str(flag), limit.default, [flag.evidence], name=f"--{limit.name}")


def hasty(servers: Servers) -> Iterator[Finding]:
    """SGLang takes at least 2 s and at least one failure, whatever is set."""
    for side in servers.of("decode"):
        interval, failures = side.quantity(INTERVAL), side.quantity(FAILURES)
        said = [side.env[name].evidence for name in (INTERVAL, FAILURES) if name in side.env]
        silence = max(interval if interval is not None else 5.0, 2.0) * max(failures if failures is not None else 2, 1)
        if said and silence < SHORTEST:
            observed = f"a prefill is given up after {silence:g} s without an answer"
            yield finding("PD617", side.name, observed, f"{SHORTEST:g} s or more", said)


def blind(servers: Servers) -> Iterator[Finding]:
    return _without(servers, "PD801", "enable-request-time-stats-logging")


def unmeasured(servers: Servers) -> Iterator[Finding]:
    return _without(servers, "PD802", "enable-metrics")


def _without(servers: Servers, code: str, flag: str) -> Iterator[Finding]:
    for side in servers.sides:
        if side.role and not side.flags.has(flag):
            if side.container is not None and side.container.argv:
                where = f"{side.place(side.container.argv[0].line)}: no --{flag}"
            else:
                where = f"{flag} stands neither in engine.args nor in roles.{side.role}.args"
            yield finding(code, side.name, f"no --{flag}", f"--{flag}", [where])


def gap(servers: Servers) -> Verdict:
    """Measured with sglang-router and smg; pdctl's own router walks all pairs in one cycle, mini_lb draws them."""
    routers = [router for router in servers.routers if router.kind in ("sglang-router", "smg")]
    if not routers:
        return Skipped("no sglang-router and no smg")
    found = []
    for router in routers:
        sizes = len(router.prefills), len(router.decodes)
        policies = router.policy("prefill"), router.policy("decode")
        pairs = sizes[0] * sizes[1]
        used = lcm(*sizes) if pairs else 0
        if policies == ("round_robin", "round_robin") and used < pairs:
            said = [flag.evidence for flag in router.flags.given if flag.name.endswith("policy")]
            values: dict[str, object] = {"unused": pairs - used, "pairs": pairs}
            found.append(finding("PD615", router.name, f"{used} pairs", f"{pairs} pairs", said, None, **values))
    return found


def unservable(servers: Servers) -> Iterator[Finding]:
    for router in servers.routers:
        for observed, expected, fix, severity in _unservable(router):
            place = f"{_place(router)}: " if router.pod is not None else ""
            yield finding("PD618", router.name, observed, expected, [f"{place}{router.name}"], severity, fix=fix)


def _place(router: RouterLine) -> str:
    """Where its command begins, which in a script is not where its pod does."""
    argv = router.container.argv if router.container is not None else ()
    return router.pod.at(argv[0].line if argv else 0) if router.pod is not None else ""


def _unservable(router: RouterLine) -> Iterator[tuple[str, str, str, Severity | None]]:
    if router.kind == "pdctl" or router.flags.has("mini-lb"):
        return
    if not router.flags.has("pd-disaggregation"):
        if router.prefills:
            yield "it lists --prefill but is not in PD mode", "--pd-disaggregation", "add --pd-disaggregation", None
        return
    if router.discovers:
        missing = [name for name in ("prefill-selector", "decode-selector") if not router.flags.has(name)]
        if missing:
            observed = f"it discovers pods without {' and '.join(f'--{name}' for name in missing)}"
            expected = "a selector for the pods of each role"
            yield observed, expected, f"add {' and '.join(f'--{name} key=value' for name in missing)}", None
        if router.kind == "smg":
            observed = "smg with discovery: builds after 2026-08-30 leave PD mode for it"
            fix = "pin smg 1.13.0, or check that its start line says PrefillDecode"
            yield observed, "PD mode", fix, Severity.INFO
        return
    if not router.prefills:
        yield "PD mode without --prefill", "every prefill", "add --prefill http://HOST:PORT BOOTSTRAP-PORT", None
    if not router.decodes:
        observed = "PD mode without --decode: every request is answered 503"
        yield observed, "every decode", "add --decode http://HOST:PORT", None


CHECKS = (
    written("PD606", neutered),
    written("PD615", gap),
    written("PD617", hasty),
    written("PD618", unservable),
    written("PD801", blind, embedded=False),
    written("PD802", unmeasured, embedded=False),
)
