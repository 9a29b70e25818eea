"""Checks of shapes: widths that do not match, and everything in the plan that cannot run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Needs, Severity
from pdctl.doctor.check import Check, Skipped, Unknown, finding
from pdctl.doctor.server_info import NO_CONFIG, Family, model
from pdctl.doctor.static.server_sources import NO_TEXT, written
from pdctl.engines.sglang import behaviour
from pdctl.engines.sglang.refusals import STAGING_ENV, STAGING_SPAN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pdctl.doctor.check import Facts, Finding, Verdict
    from pdctl.doctor.server_info import CheckpointModel
    from pdctl.doctor.static.servers import Server, Servers
    from pdctl.layout.shape import Problem

# A plan's problems → the catalogue's codes. Pairs of roles and router addresses are judged by the command lines.
PROBLEMS: Mapping[str, str] = {
    "port-collision": "PD218",
    "pair-tp-divides": "PD316",
    "attn-dp-divides-tp": "PD316",
    "attn-dp-or-replicas": "PD316",
    "attn-cp-divides-tp": "PD316",
    "ep-divides-tp": "PD316",
    "moe-dp-divides-tp": "PD316",
    "moe-dp-with-ep": "PD316",
    "heads-divide": "PD316",
    "kv-heads-divide": "PD316",
    "intermediate-divides": "PD316",
    "experts-divide": "PD316",
    "layers-for-stages": "PD504",
    "flag-not-in-release": "PD318",
    "backend-not-in-release": "PD318",
    "flag-value": "PD318",
    "served-name": "PD318",
    "router-flag": "PD318",
    "moe-dense-tp": "PD318",
    "attn-cp-needs-release": "PD318",
    "moe-dp-needs-release": "PD318",
    "moe-dp-without-pp": "PD318",
    "attn-cp-is-moe-dp": "PD318",
    "pair-decode-cp": "PD318",
    "sizes-positive": "PD504",
    "gpu-ids": "PD504",
    "nodes-divide-gpus": "PD504",
    "replicas-on-one-node": "PD504",
    "pp-and-nodes": "PD504",
    "gpus-per-host": "PD504",
    "gpu-ids-distinct": "PD504",
    "gpus-of-this-machine": "PD504",
    "port-range": "PD504",
    "memory": "PD504",
}
ELSEWHERE = ("pair-attn-tp-divides", "pair-pp", "pair-page-size", "chunk-is-pages")
SLICING = ("nixl", "mooncake", "mooncake_tcp")  # backends that slice a sliding window by heads (sglang 0.5.23 source)
MET = re.compile(
    r"(?P<owner>\S+)'s (?P<kind>.+) port (?P<port>\d+) on \S+ is also (?P<other>\S+)'s (?P<other_kind>.+) port"
)


DEMAND = re.compile(
    r"(?P<what>.+) \((?:sglang \S+|the embedded engine) (?:asserts|raises ValueError:|says:|needs|does not check that|"
    r"fails after start-up unless) (?P<demand>.+?)(?:, and goes wrong silently)?\)"
)
# What is expected if the plan names neither a rule nor a remedy.
TAKEN = {"PD318": "flags and values that the release takes", "PD504": "ranks that the hosts and their GPUs can hold"}


def planned(code: str) -> Check:
    """A check that reports the plan's problems with this code; they are known even if the plan places nothing."""

    def judge(facts: Facts) -> Verdict:
        if facts.plan is None:
            return Skipped("no plan: only a topology has one") if facts.manifest is not None else NO_TEXT
        return [_problem(code, each) for each in facts.plan.problems if _code(each) == code]

    return Check(code, (Needs.TOPOLOGY,), judge)


def _code(problem: Problem) -> str:
    """The catalogue's code of a problem. Colliding bootstrap ports have their own; an unknown rule is a shape's."""
    met = MET.match(problem.message)
    if met is not None and met["kind"] == met["other_kind"] == "bootstrap":
        return "PD204"
    return PROBLEMS.get(problem.code, "" if problem.code in ELSEWHERE else "PD504")


def _problem(code: str, problem: Problem) -> Finding:
    fix = f"use {problem.nearest[0]}" if problem.nearest else "pdctl plan"
    evidence = [f"plan: {problem.message}"]
    met = MET.match(problem.message)
    if met is not None:
        expected = "a port of its own"
        return finding(code, met["owner"], met["port"], expected, evidence, other=met["other"], fix=fix, port="PORT")
    lead, _, rest = problem.message.partition(": ")
    role, what = (lead, rest) if lead in ("prefill", "decode") else ("the plan", problem.message)
    if problem.code == "router-flag":
        role, what = "router", problem.message
    observed, expected = _rule(what)
    expected = expected or next(iter(problem.nearest), "") or TAKEN.get(code, "a shape that can run")
    return finding(code, role, observed, expected, evidence, fix=fix)


def _rule(message: str) -> tuple[str, str]:
    """What the plan found, and what the engine demands, "" if the plan does not say (feasibility.explain)."""
    found = DEMAND.fullmatch(message)
    return (found["what"], found["demand"]) if found is not None else (message, "")


def widths(servers: Servers, prefill: Server, decode: Server) -> tuple[int, int] | None:
    """Attention TP of both sides if it differs; None if it is equal or depends on a variable."""
    one, other = prefill.attn_tp, decode.attn_tp
    return None if one is None or other is None or one == other else (one, other)


def unequal(
    judge: Callable[[CheckpointModel, Server, Server, tuple[int, int]], Finding | None],
) -> Callable[[Servers], Verdict]:
    """A check that calls `judge` for each pair of different widths, if the model's family is known."""

    def ask(servers: Servers) -> Verdict:
        pairs = [(pair, found) for pair in servers.pairs() if (found := widths(servers, *pair)) is not None]
        if not pairs:
            return []
        known = model(servers)
        if known is None:
            sizes = " and ".join(map(str, pairs[0][1]))
            return Unknown(f"attention TP differs ({sizes}), which matters by model family, and {NO_CONFIG}")
        judged = (judge(known, *pair, found) for pair, found in pairs)
        return [each for each in judged if each is not None]

    return ask


def heads(known: CheckpointModel, prefill: Server, decode: Server, sizes: tuple[int, int]) -> Finding | None:
    if known.family is not Family.GQA:
        return None
    staged = prefill.on(STAGING_ENV) and decode.on(STAGING_ENV)
    able = decode.version is None or STAGING_SPAN.holds(decode.version)
    return _unequal("PD305", prefill, decode, sizes, Severity.INFO if staged and able else None)


def hybrid(known: CheckpointModel, prefill: Server, decode: Server, sizes: tuple[int, int]) -> Finding | None:
    """Some releases reslice the state: Mamba's depending on the backend, sliding windows without pipeline stages."""
    if known.family is not Family.HYBRID:
        return None
    nixl = decode.backend == "nixl"
    recurrent = behaviour.RECURRENT_STATE_CUT_BY_NIXL if nixl else behaviour.RECURRENT_STATE_CUT_BY_MOONCAKE
    cut = recurrent if known.recurrent else behaviour.WINDOW_STATE_CUT
    one_stage = (prefill.flags.number("pp-size") or 1) == 1 and decode.backend in SLICING
    version = decode.version
    sliced = version is not None and cut.holds(version) and (known.recurrent or one_stage)
    said = _unequal("PD306", prefill, decode, sizes, Severity.WARNING if sliced else None, known.architecture)
    return said


def _unequal(
    code: str,
    prefill: Server,
    decode: Server,
    sizes: tuple[int, int],
    severity: Severity | None,
    architecture: str = "",
) -> Finding:
    evidence = [each for side in (prefill, decode) for each in _shape(side)]
    return finding(
        code, decode.name, str(sizes[1]), str(sizes[0]), evidence, severity, other=prefill.name, model=architecture
    )


def _shape(side: Server) -> Iterator[str]:
    for name in ("tp-size", "dp-size", "attn-dp-size", "enable-dp-attention", "attn-cp-size"):
        said = side.flags.find(name)
        if said is not None:
            yield f"{side.name}: {said.evidence}"


def uneven(servers: Servers) -> Iterator[Finding]:
    """The larger width must be a multiple of the smaller, because ranks are paired by integer division."""
    for prefill, decode in servers.pairs():
        found = widths(servers, prefill, decode)
        if found is not None and max(found) % min(found):
            observed = f"attention TP {found[0]} (prefill) and {found[1]} (decode)"
            expected = "the larger must be a multiple of the smaller"
            fix = f"set attention TP (tp / dp) of decode to {found[0]}"
            evidence = [*_shape(prefill), *_shape(decode)]
            yield finding("PD316", decode.name, observed, expected, evidence, fix=fix)


def stages(servers: Servers) -> Iterator[Finding]:
    for prefill, decode in servers.pairs():
        one, other = (side.flags.number("pp-size") or 1 for side in (prefill, decode))
        if any(side.flags.unclear("pp-size") for side in (prefill, decode)) or other in (1, one):
            continue
        evidence = [said.evidence for side in (prefill, decode) if (said := side.flags.find("pp-size")) is not None]
        yield finding("PD315", decode.name, str(other), str(one), evidence)


def chunks(servers: Servers) -> Iterator[Finding]:
    """sglang divides the chunk by the attention DP width; a rank's share must be a whole number of pages."""
    for side in servers.of("prefill"):
        chunk, page = side.flags.number("chunked-prefill-size"), side.flags.number("page-size")
        width = side.dp_ranks if side.dp_attention else 1
        said = side.flags.find("chunked-prefill-size")
        if chunk is None or not page or page < 1 or said is None or chunk <= 0 or not (chunk // width) % page:
            continue
        share = f"{chunk} ({chunk // width} for each of {width} DP ranks)" if width > 1 else str(chunk)
        fix = max(1, chunk // width // page) * page * width
        yield finding("PD314", side.name, share, str(page), [said.evidence], fix=fix)


CHECKS = (
    *(planned(code) for code in ("PD204", *sorted(set(PROBLEMS.values())))),
    written("PD305", unequal(heads), embedded=False),
    written("PD306", unequal(hybrid), embedded=False),
    written("PD314", chunks, embedded=False),
    written("PD315", stages),
    written("PD316", uneven),
)
