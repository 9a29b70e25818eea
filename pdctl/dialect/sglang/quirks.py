"""What single releases do wrong or do differently, with the findings each may raise."""

from __future__ import annotations

from typing import NamedTuple

from pdctl.dialect.versions import (
    V0_5_3,
    V0_5_4,
    V0_5_6,
    V0_5_8,
    V0_5_9,
    V0_5_10,
    V0_5_12,
    V0_5_13,
    V0_5_14,
    V0_5_16,
    V0_5_17,
    V0_5_18,
    V0_5_20,
    V0_5_21,
    V0_5_22,
    Span,
    Version,
)


class Quirk(NamedTuple):
    """backend: only with this transfer backend, "" any. says: one sentence, for a person who is about to deploy it."""

    id: str
    says: str
    span: Span = Span()
    backend: str = ""
    codes: tuple[str, ...] = ()


QUIRKS: tuple[Quirk, ...] = (
    Quirk(
        "null-port-is-own-port",
        "a request whose bootstrap_port is null gets the receiving server's own --disaggregation-bootstrap-port, "
        "without a line in any log",
        codes=("PD201", "PD207"),
    ),
    Quirk(
        "null-host-kills-scheduler",
        "a request whose bootstrap_host is null raises AttributeError in the decode's scheduler",
        Span(V0_5_10), codes=("PD709",),
    ),
    Quirk(
        "no-prefill-bootstrap-timeout", "a prefill never gives up on a room whose page list does not come",
        Span(V0_5_3, V0_5_18), "nixl", ("PD317", "PD606"),
    ),
    Quirk(
        "no-decode-waiting-timeout", "a decode never gives up on a room whose KV cache does not come",
        Span(V0_5_3, V0_5_6), "nixl", ("PD317", "PD606"),
    ),
    Quirk(
        "abort-kills-bootstrap-thread",
        "the first abort a decode sends ends the prefill rank's bootstrap thread: every later room hangs",
        Span(V0_5_13, V0_5_16), "nixl", ("PD317", "PD710"),
    ),
    Quirk(
        "reasons-not-kept", "failure lines end in `NIXL KVReceiver Exception` and give no reason",
        Span(V0_5_3, V0_5_13), "nixl",
    ),
    Quirk(
        "failure-not-told", "a prefill that fails a transfer does not tell the decode, which waits for its timeout",
        Span(V0_5_3, V0_5_20), "nixl", ("PD317", "PD612"),
    ),
    Quirk(
        "deadline-before-completion", "a finished transfer may still be reported as timed out",
        Span(V0_5_6, V0_5_17), "nixl", ("PD317",),
    ),
    Quirk(
        "bind-failure-is-quiet", "a bootstrap port in use is one ERROR line; the process serves on without the server",
        codes=("PD204", "PD205"),
    ),
    Quirk(
        "one-registration-attempt", "a rank that misses its only registration attempt is absent for ever",
        Span(V0_5_3, V0_5_12), codes=("PD209", "PD317"),
    ),
    Quirk(
        "wildcard-registers-nowhere", "--host 0.0.0.0 makes ranks register at http://0.0.0.0:port",
        Span(V0_5_3, V0_5_14), codes=("PD212", "PD317"),
    ),
    Quirk(
        "page-size-unchecked", "page sizes that differ are not noticed: pages land in the wrong place",
        Span(V0_5_3, V0_5_8), codes=("PD302", "PD317"),
    ),
    Quirk(
        "page-size-checked-late", "page sizes that differ end the decode's scheduler on the first request",
        Span(V0_5_8), codes=("PD302", "PD709"),
    ),
    Quirk(
        "dtype-unchecked", "KV dtypes that differ are not noticed", Span(V0_5_3, V0_5_10), codes=("PD303", "PD317"),
    ),
    Quirk(
        "dtype-compared-as-flag", "the --kv-cache-dtype words are compared, so `auto` and its own resolution differ",
        Span(V0_5_10, V0_5_17), codes=("PD303",),
    ),
    Quirk(
        "unknown-keys-refused", "a decode fails on keys a newer prefill's bootstrap server adds to its answer",
        Span(V0_5_10), codes=("PD310",),
    ),
    Quirk(
        "registrations-only-rise", "every registration counts, a restarted rank's twice; the count never falls",
        Span(V0_5_10), codes=("PD211",),
    ),
    Quirk(
        "stale-ranks-cached", "a decode keeps a prefill's rank addresses until two heartbeats fail",
        codes=("PD211",),
    ),
    Quirk(
        "one-failure-blacklists", "one failed transfer blacklists a decode rank until it registers again",
        Span(V0_5_3, V0_5_13), "mooncake", ("PD409",),
    ),
    Quirk(
        "heartbeat-starves", "two missed heartbeats fail every room of a prefill, busy or dead",
        codes=("PD617",),
    ),
    Quirk(
        "samples-share-room", "all samples of n > 1 get one room when rooms come as a list", codes=("PD319",),
    ),
    Quirk(
        "samples-end-prefill",
        "two samples of one room in one batch end the prefill's scheduler: the second finds no page list (KeyError)",
        Span(V0_5_3, V0_5_12), "nixl", ("PD317", "PD319"),
    ),
    Quirk(
        "room-zero-never-ready", "room 0 means `not written`: a real transfer with room 0 never ends",
        Span(V0_5_9), codes=("PD716",),
    ),
    Quirk(
        "room-mismatch-noticed", "another room's metadata in a slot is noticed (`Context corruption detected`)",
        Span(V0_5_9), codes=("PD711",),
    ),
    Quirk(
        "pages-reused-under-write", "pages of an aborted room are reused while the old transfer still writes",
        Span(V0_5_3, V0_5_21), codes=("PD317", "PD611", "PD711"),
    ),
    Quirk(
        "roomless-kills-controller", "with dp > 1 a request without a room ends the DP controller",
        Span(V0_5_4), codes=("PD712",),
    ),
    Quirk(
        "dp-width-field", "attention DP of width N is reported as dp_size 1 and attn_dp_size N", Span(V0_5_22),
        codes=("PD305", "PD313"),
    ),
    Quirk(
        "rust-server-port", "with SGLANG_RUST_SERVER the bootstrap registry is served on the API port",
        Span(V0_5_17), codes=("PD219",),
    ),
    Quirk(
        "silent-success", "a room that succeeds leaves no line at INFO", codes=("PD801",),
    ),
    Quirk(
        "no-room-in-mooncake-handshake", "the handshake of a room leaves no line at any level", Span(), "mooncake",
        ("PD801",),
    ),
    Quirk(
        "health-uses-fake-peer", "/health and /health_generate succeed while no KV cache can move", codes=("PD605",),
    ),
    Quirk(
        "retraction-calls-prefill", "a decode that retracts may POST the room again to the prefill's HTTP port",
        Span(V0_5_16), codes=("PD502",),
    ),
)  # fmt: skip


def quirks(version: Version, backend: str = "") -> tuple[Quirk, ...]:
    """What holds for this release; with `backend` also what holds only for it."""
    return tuple(row for row in QUIRKS if row.span.holds(version) and row.backend in ("", backend))
