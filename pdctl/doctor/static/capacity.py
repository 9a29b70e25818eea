"""Whether the planned numbers suffice: instances for the load, tokens for the slots, buffers for the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Severity
from pdctl.doctor.check import Skipped, Unknown, finding
from pdctl.doctor.server_info import model
from pdctl.doctor.static.server_sources import written
from pdctl.layout.kv_pages import RESERVED_DECODE_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pdctl.doctor.check import Finding, Verdict
    from pdctl.doctor.static.servers import Server, Servers

NO_LOAD = Skipped("no load is given (workload.rate of a topology)")
DISPATCH = 128  # default of SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK
DISPATCH_ENV = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
DISPATCH_MOST = 1024  # upper bound asserted by every release that was read
FITS = "slots whose reserve fits into the KV pool"
WORDS = {"prefill": 0, "decode": 1}


def short(code: str, role: str, missing: str) -> Callable[[Servers], Verdict]:
    """A check of the instances planned against those the workload needs, by the plan's own arithmetic."""

    def judge(servers: Servers) -> Verdict:
        plan, topology = servers.plan, servers.topology
        if plan is None or topology is None or plan.ratio is None:
            return NO_LOAD
        needed = plan.ratio.instances[WORDS[role]]
        have = sum(one.role == role for one in plan.instances)
        found = list(_network(servers)) if role == "prefill" else []
        if needed is None:
            return found or Unknown(missing)
        if needed <= have:
            return found
        load = f"{topology.workload.rate:g} requests/s" if topology.workload and topology.workload.rate else "the load"
        evidence = [f"plan: {load} need {needed} {role} instances, {have} planned"]
        short = f"{_count(have)} {'is' if have == 1 else 'are'} planned, {needed} are needed"
        values: dict[str, object] = {"needed": needed, "short": short}
        return [*found, finding(code, role, _count(have), _count(needed), evidence, None, **values)]

    return judge


def _count(instances: int) -> str:
    return "1 instance" if instances == 1 else f"{instances} instances"


def _network(servers: Servers) -> Iterator[Finding]:
    """PD506: KV cache per second against the bandwidth of the slower side's NICs."""
    bill = servers.plan.transfer if servers.plan is not None else None
    need, have = (bill.required_bits_per_second, bill.available_bits_per_second) if bill is not None else (None, None)
    if need is not None and have is not None and need > have:
        observed, expected = (f"{bits / 1e9:,.1f} Gb/s of KV cache" for bits in (have, need))
        values: dict[str, object] = {"short": f"its NICs carry {observed}, but {expected} is needed"}
        yield finding("PD506", "prefill", observed, expected, [f"plan: NICs carry {observed}"], None, **values)


def reserved(servers: Servers) -> Verdict:
    """The slots of each DP rank, and the tokens that decode reserves for every running request."""
    found: list[Finding] = []
    for side in servers.of("decode"):
        found += _slots(side)
        sparse = side.flags.find("enable-hisparse")
        if sparse is not None:
            values = {"limit": "its pool cannot take a retracted request back", "fix": "drop --enable-hisparse"}
            observed = "it has --enable-hisparse"
            found.append(_reserve(side, observed, sparse.evidence, values, "no --enable-hisparse"))
    return found


def _slots(side: Server) -> Iterator[Finding]:
    said, limit = side.flags.find("max-running-requests"), side.flags.number("max-running-requests")
    ranks = side.dp_ranks
    if said is None or limit is None:
        return
    if limit < ranks:
        observed = f"--max-running-requests {limit} is divided by {ranks} DP ranks"
        values = {"limit": "that leaves no slot on a rank", "fix": f"set --max-running-requests to {ranks} or more"}
        yield _reserve(side, observed, said.evidence, values)
        return
    memory = side.instance.memory if side.instance is not None else None
    tokens = memory.tokens if memory is not None else None
    keep = side.flags.number("num-reserved-decode-tokens") or RESERVED_DECODE_TOKENS
    slots = limit // ranks
    if tokens is not None and slots * keep > tokens:
        observed = f"{slots} slots of a DP rank reserve {slots * keep:,} tokens ({keep} each)"
        fix = f"set --max-running-requests to {max(ranks, tokens // keep * ranks)}"
        yield _reserve(side, observed, said.evidence, {"limit": f"its KV pool holds {tokens:,}", "fix": fix})


def _reserve(side: Server, observed: str, evidence: str, values: dict[str, str], expected: str = FITS) -> Finding:
    return finding("PD502", side.name, observed, expected, [evidence], None, **values)


def dispatch(servers: Servers) -> Verdict:
    """One token per running request of a DP rank, times the draft width, must fit DeepEP's buffer."""
    sides = [side for side in servers.of("decode") if _deepep(side)]
    if not sides:
        return Skipped("no decode uses DeepEP")
    return [found for side in sides for found in _dispatch(side)]


# Largest batch of the decode graphs: the first spelling up to 0.5.19, the second from 0.5.14 on.
GRAPHS = ("cuda-graph-max-bs", "cuda-graph-max-bs-decode")


def _deepep(side: Server) -> bool:
    low = side.flags.text("deepep-mode") != "normal"
    return low and (side.flags.text("moe-a2a-backend") == "deepep" or side.flags.has("enable-deepep-moe"))


def _dispatch(side: Server) -> Iterator[Finding]:
    width = side.flags.number("speculative-num-draft-tokens") or 1
    limit = int(side.quantity(DISPATCH_ENV) or DISPATCH)
    running = side.flags.number("max-running-requests")
    batches = [("max-running-requests", running and -(-running // side.dp_ranks))]
    batches += [(name, side.flags.number(name)) for name in GRAPHS]
    for name, batch in batches:
        said = side.flags.find(name)
        if batch is None or said is None or batch * width <= limit:
            continue
        shared = -(-batch * width // (side.attn_tp or 1))  # the ranks of an attention group share its tokens
        severity = None if shared > limit else Severity.WARNING
        most = max(1, limit // width) * (side.dp_ranks if name == "max-running-requests" else 1)
        fix = f"set --{name} to {most}, or {DISPATCH_ENV} to {min(batch * width, DISPATCH_MOST)}"
        draft = side.flags.find("speculative-num-draft-tokens")
        evidence = [each.evidence for each in (said, draft, side.env.get(DISPATCH_ENV)) if each is not None]
        yield finding("PD503", side.name, str(batch * width), str(limit), evidence, severity, fix=fix)


def too_long(servers: Servers) -> Verdict:
    """The length of the workload's requests against the longest allowed."""
    load = servers.topology.workload if servers.topology is not None else None
    if load is None:
        return Skipped("no workload is given")
    length, found = load.isl + load.osl, []
    known = model(servers)
    for side in servers.sides:
        said = side.flags.find("context-length")
        limit = side.flags.number("context-length") or (known.longest if known is not None else None)
        if limit is not None and length > limit:
            evidence = [f"workload: {load.isl} tokens in, {load.osl} out"]
            evidence.append(said.evidence if said is not None else "max_position_embeddings of config.json")
            found.append(finding("PD505", side.name, str(length), str(limit), evidence))
    return found


def interfaces(servers: Servers) -> Iterator[Finding]:
    for side in servers.sides:
        hosts = len(side.instance.host_names) if side.instance is not None else side.flags.number("nnodes") or 1
        size = side.pod.size if side.pod is not None and side.pod.size else 1
        missing = [name for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if name not in side.env]
        if max(hosts, size) > 1 and missing and side.role:
            interface = _interface(servers, side)
            expected = f"{' and '.join(missing)} set on every rank"
            count = len(side.env)
            evidence = [
                f"{side.name}: {count or 'no'} variable{'' if count == 1 else 's'} set, none of them is one of these"
            ]
            missing_here = f"no {' and no '.join(missing)}"
            most = max(hosts, size)
            yield finding("PD509", side.name, missing_here, expected, evidence, hosts=most, interface=interface)


def _interface(servers: Servers, side: Server) -> str:
    """The network interface of the side's hosts in the topology, else the placeholder INTERFACE."""
    if servers.topology is None:
        return "INTERFACE"
    role = servers.topology.prefill if side.role == "prefill" else servers.topology.decode
    return servers.topology.pool(role.pool).interface or "INTERFACE"


CHECKS = (
    written("PD501", short("PD501", "decode", "the plan knows no decode batch (it needs slo.tpot and the KV pool)")),
    written("PD502", reserved, embedded=False),
    written("PD503", dispatch, embedded=False),
    written("PD505", too_long),
    written("PD506", short("PD506", "prefill", "the rate of one prefill is not known (`pdctl plan --prefill-rate`)")),
    written("PD509", interfaces, embedded=False),
)
