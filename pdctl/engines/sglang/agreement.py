"""What a prefill and a decode of SGLang must agree on, what they may differ in, and how both are expressed.

One table: the live checks read the /server_info keys, the static checks the flags, and docs/doctor.md prints it. How
values are derived from several settings is defined where they are read. The releases that do not understand each other
follow from the indices of ZMQ frames, and from bootstrap parameters and answers (engines/releases/sglang/records.tsv).
"""

from __future__ import annotations

from enum import Enum

from pdctl.engines import versions
from pdctl.engines.sglang.endpoints import shape_keys
from pdctl.engines.versions import V0_5_3, V0_5_3_POST3, V0_5_8, V0_5_9, V0_5_10, V0_5_17, V0_5_20, Span, Version
from pdctl.quick_definitions import NamedTuple

ENGINES_OWN = "left to the engine"
USUAL_PAGE = 64  # the default of sglang 0.5.3 to 0.5.23 for FlashMLA and TRT-LLM MLA


def common_page_size(*sizes: int | None) -> int:
    """The page size to set on both roles: the largest of `sizes`, or the usual one if none is above 1."""
    largest = max((size for size in sizes if size is not None), default=1)
    return largest if largest > 1 else USUAL_PAGE


class Comparison(str, Enum):
    MUST_EQUAL = "must equal"
    MAY_DIFFER = "may differ"
    MUST_DIFFER = "must differ"


class Setting(NamedTuple):
    """`key`: the /server_info key, or a name for what is derived from several. `code` "": it never yields a finding.

    flags: how a command line sets it, the first that is given counts; () if it follows from more than one flag or
    cannot be written. unset: what to report if no flag is given. default: SGLang's own value, if it is always the
    same.
    """

    key: str
    rule: Comparison
    why: str
    code: str = ""
    flags: tuple[str, ...] = ()
    default: str = ""
    unset: str = ENGINES_OWN

    @property
    def span(self) -> Span:
        """The releases whose /server_info has the key; every release for a derived setting."""
        return OTHERS.get(self.key) or next(iter(versions.spans("records", "ServerArgs", self.key)[-1:]), Span())


# Keys that the server adds to its arguments (srt/entrypoints/http_server.py, and the scheduler's state).
OTHERS: dict[str, Span] = {
    "version": Span(),
    "max_total_num_tokens": Span(),
    "startup_time": Span(V0_5_17),
    "launch_command": Span(V0_5_20),
}

MUST, MAY = Comparison.MUST_EQUAL, Comparison.MAY_DIFFER
SETTINGS: tuple[Setting, ...] = (
    Setting("disaggregation_mode", Comparison.MUST_DIFFER, "one reads prompts, the other writes answers", "PD301",
        ("disaggregation-mode",)),
    Setting("page_size", MUST, "pages are copied whole: from 0.5.8 on the decode refuses the first request, 0.5.3 "
        "copies the wrong bytes", "PD302", ("page-size",)),
    Setting("kv_cache_dtype", MUST, "pages are copied as bytes; 0.5.10 to 0.5.16 compare the flag's words, 0.5.17 on "
        "what type", "PD303", ("kv-cache-dtype",), "auto"),
    Setting("KV layout", MUST, "the same type in another byte order is a short or wrong copy", "PD304"),
    Setting("attention TP", MUST, "a GQA rank holds a share of the heads, which must be cut anew for another width; "
        "MLA ranks hold it whole", "PD305"),
    Setting("attention TP (hybrid)", MUST, "sliding-window and recurrent state is not cut anew", "PD306"),
    Setting("attention TP (divides)", MUST, "ranks are paired by integer division: 3 against 2 pairs the wrong groups",
        "PD316"),
    Setting("context_length", MUST, "the decode refuses what the prefill took, and the prefill waits for it", "PD307",
        ("context-length",), unset="the checkpoint's"),
    Setting("speculative_*", MUST, "the auxiliary row carries hidden states of the draft: its width must be the same",
        "PD308"),
    Setting("disaggregation_transfer_backend", MUST, "two engines do not talk to each other", "PD309",
        ("disaggregation-transfer-backend",)),
    Setting("version", MUST, "bootstrap answers and frames changed between releases", "PD310"),
    Setting("model", MUST, "another checkpoint, or other weights of it, reads the cache as its own", "PD311",
        ("model-path",)),
    Setting("mamba_ssm_dtype", MUST, "recurrent state is copied with the prefill's stride", "PD312",
        ("mamba-ssm-dtype",)),
    Setting("pp_size", MUST, "a decode has as many stages as the prefill, or one; its context parallel size is 1",
        "PD315"),
    Setting("dcp_size", MUST, "the ranks of a page's tokens are paired one by one; only MLA is spread from 1 to more",
        "PD324", ("dcp-size", "decode-context-parallel-size"), "1"),
    Setting("disaggregation_decode_allocation_policy", MUST, "the decode compares it with the prefill's for every room",
        "PD325", ("disaggregation-decode-allocation-policy",), "early"),
    Setting("disaggregation_enable_kv_checksum", MUST, "the checksum is one more metadata buffer, and only where both "
        "have it is it compared", "PD326", ("disaggregation-enable-kv-checksum",), "disabled"),
    Setting("disaggregation_ib_device", MUST, "rails are paired one by one", "PD414", ("disaggregation-ib-device",),
        unset="auto discovery"),
    Setting("tp_size", MAY, "what counts is the attention TP"),
    Setting("dp_size", MAY, "the room, not the rank number, joins the two sides"),
    Setting("ep_size", MAY, "experts are not handed over"),
    Setting("chunked_prefill_size", MAY, "only prefill cuts prompts; there it must be a multiple of the page size"),
    Setting("max_running_requests", MAY, "a role's own limit"),
    Setting("max_total_num_tokens", MAY, "a role's own pool"),
    Setting("mem_fraction_static", MAY, "a role's own memory"),
    Setting("num_reserved_decode_tokens", MAY, "decode only"),
    Setting("load_balance_method", MAY, "follow_bootstrap_room on prefill; decode balances as it likes"),
    Setting("disable_radix_cache", MAY, "decode forces it off"),
    Setting("deepep_mode", MAY, "normal on prefill, low_latency on decode"),
    Setting("disable_cuda_graph", MAY, "a role's own choice"),
    Setting("log_level", MAY, "what is written, not what is done"),
)  # fmt: skip
_BY_KEY = {setting.key: setting for setting in SETTINGS}


def setting(key: str) -> Setting:
    return _BY_KEY[key]


def settings(version: Version | None = None) -> tuple[Setting, ...]:
    """The settings that this release has (None: all)."""
    return tuple(one for one in SETTINGS if version is None or one.span.holds(version))


class Break(NamedTuple):
    prefill: Span
    decode: Span
    backends: tuple[str, ...]  # (): any backend
    what: str


ASKED_OLD, ASKED_NEW = Span(V0_5_3, V0_5_10), Span(V0_5_10)
MOONCAKE = ("mooncake", "mooncake_tcp")

BREAKS: tuple[Break, ...] = (
    Break(ASKED_NEW, ASKED_OLD, (), "the decode asks /route with engine_rank and target_dp_group, the prefill's server "
          "answers 400 Missing inputs"),
    Break(ASKED_OLD, ASKED_NEW, (), "the decode asks /route with prefill_dp_rank and target_tp_rank, the prefill's "
          "server answers 400 Missing inputs"),
    Break(Span(V0_5_3, V0_5_8), Span(V0_5_8, V0_5_10), (), "the prefill's topology answer has no prefill_page_size, "
          "which the decode reads"),
    Break(Span(V0_5_3, V0_5_3_POST3), Span(V0_5_3_POST3), MOONCAKE, "the registration frames differ: the prefill reads "
          "the decode's state pointers as its rank"),
    Break(Span(V0_5_3_POST3, V0_5_10), Span(V0_5_3, V0_5_3_POST3), MOONCAKE, "the registration frames differ: the "
          "prefill reads the decode's rank as state pointers"),
    Break(Span(V0_5_3, V0_5_9), Span(V0_5_9, V0_5_10), ("nixl",), "the registration frames differ: the prefill reads "
          "the decode's state pointers as its GPU"),
    Break(Span(V0_5_9, V0_5_10), Span(V0_5_3, V0_5_9), ("nixl",), "the registration frames differ: the prefill reads "
          "the decode's GPU as state pointers"),
    Break(Span(V0_5_10, V0_5_17), Span(V0_5_17), MOONCAKE, "the registration frames differ: the prefill reads "
          "layer ids as its staging buffer's address"),
)  # fmt: skip


def _refused_keys(prefill: Version, decode: Version) -> list[str]:
    """Keys that the prefill's server always writes into its topology answer but the decode's record does not have."""
    if not ASKED_NEW.holds(prefill) or not ASKED_NEW.holds(decode):
        return []
    known = {key.name for key in shape_keys(decode)}
    return [key.name for key in shape_keys(prefill) if key.always and key.name not in known]


def breaks(prefill: Version, decode: Version, backend: str) -> str | None:
    """What goes wrong between two releases, or None if nothing is known to."""
    for row in BREAKS:
        fits = row.prefill.holds(prefill) and row.decode.holds(decode)
        if fits and (not row.backends or backend in row.backends):
            return row.what
    refused = _refused_keys(prefill, decode)
    if refused:
        what = "the prefill's topology answer has keys the decode refuses"
        return f"{what} (unexpected keyword argument {refused[0]})"
    return None
