"""What SGLang refuses after the model has loaded, release by release, and DP settings that do not agree."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from pdctl.dialect.sglang.flags import PASSED
from pdctl.dialect.versions import V0_5_3, V0_5_8, V0_5_13, V0_5_18, V0_5_23, Span, spell
from pdctl.doctor.check import Unknown, finding
from pdctl.doctor.static.question import written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.doctor.check import Verdict
    from pdctl.doctor.finding import Finding
    from pdctl.doctor.static.servers import Server, Servers


class Refusal(NamedTuple):
    """All of `when` hold on a server of `role` ("" either): it asserts or raises. Terms are those of `holds`."""

    when: tuple[str, ...]
    role: str
    span: Span
    fix: str


SINCE_13 = Span(V0_5_13)
ONLY_23 = Span(V0_5_23)
RADIX = "disaggregation-decode-enable-radix-cache"
COMPLETE = "disaggregation-decode-allocation-policy = prefill_complete"
SWITCH = "enable-pd-role-switch"

REFUSALS: tuple[Refusal, ...] = (
    Refusal(("backend = fake",), "prefill", SINCE_13, "use another transfer backend on prefill"),
    Refusal((RADIX, "enable-hisparse"), "decode", SINCE_13, f"drop --{RADIX}"),
    Refusal((RADIX, "backend = fake"), "decode", SINCE_13, f"drop --{RADIX}"),
    Refusal((RADIX, "backend != nixl mooncake mooncake_tcp"), "decode", Span(V0_5_13, V0_5_18), f"drop --{RADIX}"),
    Refusal((RADIX, "speculative-algorithm"), "decode", Span(V0_5_13, V0_5_23), f"drop --{RADIX}"),
    Refusal(
        (RADIX, "speculative-algorithm != EAGLE EAGLE3 NEXTN DSPARK"), "decode", ONLY_23, f"drop --{RADIX}"
    ),
    Refusal(
        ("env SGLANG_DISAGG_STAGING_BUFFER", "backend != nixl mooncake mooncake_tcp"), "", SINCE_13,
        "unset SGLANG_DISAGG_STAGING_BUFFER",
    ),
    Refusal((SWITCH, "ep-size > 1"), "", ONLY_23, f"drop --{SWITCH}"),
    Refusal((SWITCH, "moe-a2a-backend != none"), "", ONLY_23, f"drop --{SWITCH}"),
    Refusal((SWITCH, "pp-size > 1"), "", ONLY_23, f"drop --{SWITCH}"),
    Refusal((SWITCH, "dcp-size > 1"), "", ONLY_23, f"drop --{SWITCH}"),
    Refusal((SWITCH, "speculative-algorithm"), "", ONLY_23, f"drop --{SWITCH}"),
    Refusal((COMPLETE, "backend != mooncake mooncake_tcp"), "", ONLY_23, "set the transfer backend to mooncake"),
    Refusal((COMPLETE, "pp-size > 1"), "", ONLY_23, "set --pp-size 1"),
    Refusal((COMPLETE, "attention-tp > 1"), "", ONLY_23, "make --attn-dp-size equal to --tp-size"),
    Refusal((COMPLETE, "enable-hisparse"), "", ONLY_23, "drop --enable-hisparse"),
    Refusal((COMPLETE, SWITCH), "", ONLY_23, f"drop --{SWITCH}"),
    Refusal((COMPLETE, RADIX), "decode", ONLY_23, f"drop --{RADIX}"),
    Refusal((COMPLETE, "env SGLANG_DISAGG_STAGING_BUFFER"), "", ONLY_23, "unset SGLANG_DISAGG_STAGING_BUFFER"),
    Refusal((COMPLETE, "env SGLANG_RUST_SERVER"), "", ONLY_23, "unset SGLANG_RUST_SERVER"),
    Refusal(("pp-size > 1", "speculative-algorithm"), "", Span(V0_5_3, V0_5_23), "set --pp-size 1"),
    Refusal(("pp-size > 1", "speculative-algorithm"), "decode", ONLY_23, "set --pp-size 1"),
    Refusal(("pp-size > 1", "speculative-algorithm != EAGLE DSPARK"), "prefill", ONLY_23, "set --pp-size 1"),
    Refusal(("pp-size > 1", "enable-mixed-chunk"), "", Span(V0_5_3, V0_5_13), "drop --enable-mixed-chunk"),
    Refusal(("pp-size > 1", "not disable-overlap-schedule"), "", Span(), "add --disable-overlap-schedule"),
    Refusal(
        ("enable-nsa-prefill-context-parallel",), "decode", Span(V0_5_8, V0_5_13),
        "drop --enable-nsa-prefill-context-parallel on decode",
    ),
    Refusal(
        ("enable-dsa-prefill-context-parallel",), "decode", Span(V0_5_13, V0_5_18),
        "drop --enable-dsa-prefill-context-parallel on decode",
    ),
    Refusal(("enable-prefill-cp",), "decode", Span(V0_5_18), "drop --enable-prefill-cp on decode"),
    Refusal(("disaggregation-decode-tp",), "decode", Span(V0_5_3, V0_5_13), "drop --disaggregation-decode-tp"),
    Refusal(("disaggregation-decode-dp",), "decode", Span(V0_5_3, V0_5_13), "drop --disaggregation-decode-dp"),
    Refusal(
        ("dp-size > 1", "not prefill-round-robin-balance"), "decode", Span(V0_5_3, V0_5_8),
        "add --prefill-round-robin-balance",
    ),
    Refusal(("enable-watermark",), "", ONLY_23, "drop --enable-watermark"),
    Refusal(("enable-response-store",), "", ONLY_23, "drop --enable-response-store"),
)  # fmt: skip

# Flags that were there once: argparse ends the start. Those a release does not have yet are in PASSED.
GONE: dict[str, Span] = {
    "disaggregation-decode-tp": Span(V0_5_3, V0_5_13),
    "disaggregation-decode-dp": Span(V0_5_3, V0_5_13),
    "disaggregation-prefill-pp": Span(V0_5_3, V0_5_13),
    "attn-dp-size": Span(V0_5_23),
}
TERM = re.compile(r"(?P<not>not )?(?P<env>env )?(?P<name>[\w-]+)(?: (?P<sign>=|!=|>) (?P<value>.+))?")


def holds(server: Server, term: str) -> bool:
    """`flag` is given, `not flag` is not; `flag = a`, `flag != a b` (given, and neither), `flag > 1`; `env NAME` is on.

    `backend` is the transfer backend and `attention-tp` the width that follows. A value that hangs on a variable holds
    nothing.
    """
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
    for said in side.flags.given if servers.plan is None else ():
        span = PASSED.get(said.name) or GONE.get(said.name)
        if span is not None and not span.holds(version):
            when = f"since {spell(span.since)}" if version < span.since else f"until {spell(span.until or version)}"
            observed = f"sglang {side.release} has no --{said.name} ({when})"
            yield finding("PD318", side.name, observed, "", [said.evidence], fix=f"drop --{said.name}")


FORCE = "SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK"
FOLLOWS = (None, "auto", "follow_bootstrap_room")


def rank_contract(servers: Servers) -> Iterator[Finding]:
    """Which DP rank of a prefill serves a room, as both sides reckon it."""
    for side in servers.sides:
        version, balance = side.version, side.flags.find("prefill-round-robin-balance")
        if balance is not None and version is not None and version >= V0_5_8:
            observed = f"--prefill-round-robin-balance does nothing in {side.release}"
            yield _contract(side, observed, "drop it", [balance.evidence])
    for prefill in servers.of("prefill"):
        method = prefill.flags.text("load-balance-method")
        said = prefill.flags.find("dp-size", "attn-dp-size")
        if prefill.version is None or prefill.dp_ranks == 1 or said is None:
            continue
        plain = not prefill.dp_attention and prefill.version >= V0_5_13
        if plain and method in FOLLOWS and not _forced(servers, prefill):
            observed = f"plain data parallel of {prefill.dp_ranks}: {prefill.release} checks the attention rank instead"
            fix = f"export {FORCE}=1 on both roles, or use DP attention"
            yield _contract(prefill, observed, fix, [said.evidence])


def _forced(servers: Servers, prefill: Server) -> bool:
    return all(side.on(FORCE) for side in (prefill, *servers.of("decode")))


def _contract(side: Server, observed: str, fix: str, evidence: list[str]) -> Finding:
    return finding("PD313", side.name, observed, "one rule on both sides", evidence, fix=fix)


CHECKS = (written("PD313", rank_contract, embedded=False), written("PD318", refused, embedded=False))
