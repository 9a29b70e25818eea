"""Faults of released versions: what is wrong, in which releases, with which backend, and who reported it.

The bounds follow from the sources of every release from 0.5.3 to 0.5.23 (engines/releases/sglang/releases.tsv), unless
a row says `reported`. A release next to a bound that was not read may or may not have the fault; the finding says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.versions import (
    SGLANG,
    V0_5_3,
    V0_5_6,
    V0_5_9,
    V0_5_11,
    V0_5_12,
    V0_5_13,
    V0_5_15,
    V0_5_16,
    V0_5_17,
    V0_5_18,
    V0_5_19,
    V0_5_20,
    V0_5_21,
    Version,
    spell,
)
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class KnownFault(NamedTuple):
    """`id`: its name in code. `since` inclusive, `until` exclusive. `role`, `backend`: "" for any.

    features: all of them must be in use.

    component: sglang, or router (sglang_router). reported: the bounds are from the reports, and no release is in doubt.
    """

    id: str
    text: str
    report: str
    since: Version
    until: Version
    fix: str
    role: str = ""
    backend: str = ""
    features: tuple[str, ...] = ()
    component: str = "sglang"
    reported: bool = False


ONE_RANK_BALANCE = "--load-balance-method set for a single DP rank"
ATTENTION_DP = "DP attention"
SPECULATION = "speculative decoding"
NIXL_131 = "NIXL 1.3.1 or 1.3.2"

FAULTS: tuple[KnownFault, ...] = (
    KnownFault(
        "bootstrap-waits-for-ever",
        "with NIXL a prefill request whose decode never calls waits for ever and keeps its slot",
        "sglang#34692", V0_5_3, V0_5_18, "update SGLang to 0.5.18", "prefill", "nixl",
    ),
    KnownFault(
        "decode-waits-for-ever",
        "with NIXL decode waits for KV cache without any time limit",
        "sglang 0.5.3 source", V0_5_3, V0_5_6, "update SGLang to 0.5.6", "decode", "nixl",
    ),
    KnownFault(
        "abort-kills-bootstrap-thread",
        "with NIXL one abort by a decode ends the prefill's bootstrap thread, and every later room hangs",
        "sglang#30352", V0_5_13, V0_5_16, "update SGLang to 0.5.16", "prefill", "nixl",
    ),
    KnownFault(
        "failure-not-told",
        "with NIXL decode is not told when a transfer fails at prefill, and waits out its timeout (300 s by default)",
        "sglang#36033", V0_5_3, V0_5_20, "update SGLang to 0.5.20", "decode", "nixl",
    ),
    KnownFault(
        "deadline-before-completion",
        "with NIXL decode checks its deadline before the completion notifications: finished rooms time out",
        "sglang#32267", V0_5_6, V0_5_17, "update SGLang to 0.5.17", "decode", "nixl",
    ),
    KnownFault(
        "samples-end-prefill",
        "with NIXL a /generate request with n > 1 can end the prefill: its samples share one room",
        "sglang 0.5.11 source", V0_5_3, V0_5_12, "update SGLang to 0.5.12, or refuse n > 1", "prefill", "nixl",
    ),
    KnownFault(
        "one-failure-blacklists",
        "with Mooncake one failed transfer shuts a decode rank out until it registers again",
        "sglang 0.5.12 source", V0_5_3, V0_5_13, "update SGLang to 0.5.13", "prefill", "mooncake",
    ),
    KnownFault(
        "one-registration-attempt",
        "a rank tries only once to register with the bootstrap server; if that fails, it stays missing",
        "sglang#25125", V0_5_3, V0_5_12, "update SGLang to 0.5.12", "prefill",
    ),
    KnownFault(
        "pages-reused-under-write",
        "decode reuses the pages of an aborted room while the old transfer may still write: silent wrong text",
        "sglang#35049", V0_5_3, V0_5_21, "update SGLang to 0.5.21", "decode",
    ),
    KnownFault(
        "decode-blocks-on-dead-prefill",
        "decode can block on a dead prefill's socket, and its /health fails with it",
        "sglang#31144", V0_5_3, V0_5_17, "update SGLang to 0.5.17", "decode",
    ),
    KnownFault(
        "long-prompt-unwritten-pages",
        "a prompt above the limit is answered with 200 and text from pages nobody wrote",
        "sglang#30551", V0_5_11, V0_5_19, "update SGLang to 0.5.19", "prefill", reported=True,
    ),
    KnownFault(
        "dp-rank-polled-for-ever",
        "decode polls for a DP rank that is never registered until the host is out of ports",
        "sglang#19305", V0_5_9, V0_5_13, "drop --load-balance-method on prefill", "prefill",
        features=(ONE_RANK_BALANCE,), reported=True,
    ),
    KnownFault(
        "warm-up-hangs",
        "DP attention with speculation hangs in warm-up or on the first routed request, for some models",
        "sglang#32209", V0_5_15, V0_5_16, "update SGLang to 0.5.16", "decode",
        features=(ATTENTION_DP, SPECULATION), reported=True,
    ),
    KnownFault(
        "nixl-crashes",
        "NIXL crashes the process, in its progress thread or when a peer restarts",
        "sglang#35189", V0_5_17, V0_5_18, "pin another NIXL build", backend="nixl",
        features=(NIXL_131,), reported=True,
    ),
    KnownFault(
        "breaker-bypassed",
        "while a prefill's breaker is open, decode still gets rooms that prefill never sees, until the router restarts",
        "sglang#31206", (0, 1, 0), (0, 2, 5), "update the router", component="router", reported=True,
    ),
)  # fmt: skip


class RunningRelease(NamedTuple):
    """What faults depend on in one process. `version`: as it reports itself."""

    version: Version
    role: str
    backend: str
    features: frozenset[str] = frozenset()
    component: str = "sglang"

    @property
    def program(self) -> str:
        return "SGLang" if self.component == "sglang" else "sglang-router"


class FaultMatch(NamedTuple):
    """`doubt`: says that the release is between one with the fault and one without; "" if it certainly has it."""

    fault: KnownFault
    doubt: str


def hits(release: RunningRelease) -> Iterator[FaultMatch]:
    """The faults of a release, including those in doubt."""
    for fault in FAULTS:
        fits = (
            fault.component == release.component
            and fault.role in ("", release.role)
            and fault.backend in ("", release.backend)
            and release.features.issuperset(fault.features)
        )
        if fits and fault.since <= release.version < fault.until:
            yield FaultMatch(fault, "" if fault.reported else _doubt(fault, release.version))


def _doubt(fault: KnownFault, version: Version) -> str:
    """A phrase if the version is between the last release known to have it and the first without it, else ""."""
    last = max(known for known in SGLANG if known < fault.until)
    if version <= last:
        return ""
    return f"between {spell(last)}, which has it, and {spell(fault.until)}, which has not"
