"""How each SGLang release spells on its command line what a plan decides."""

from __future__ import annotations

from typing import NamedTuple

from pdctl.engines.versions import V0_5_3, V0_5_8, V0_5_9, V0_5_10, V0_5_22, Span, Version


class Spelling(NamedTuple):
    """The words of one decision; `{}` stands for its value."""

    meaning: str
    words: tuple[str, ...]
    span: Span = Span()


SPELLINGS: tuple[Spelling, ...] = (
    Spelling("model_path", ("--model-path", "{}")),
    Spelling("served_model_name", ("--served-model-name", "{}")),
    Spelling("host", ("--host", "{}")),
    Spelling("port", ("--port", "{}")),
    Spelling("tp", ("--tp-size", "{}")),
    Spelling("pp", ("--pp-size", "{}")),
    Spelling("ep", ("--ep-size", "{}")),
    # 0.5.22 split the old --dp-size: attention width got its own flag, --dp-size counts replicas only.
    Spelling("attn_dp", ("--dp-size", "{}", "--enable-dp-attention"), Span(V0_5_3, V0_5_22)),
    Spelling("attn_dp", ("--attn-dp-size", "{}"), Span(V0_5_22)),
    Spelling("replicas", ("--dp-size", "{}")),
    Spelling("attn_cp", ("--attn-cp-size", "{}"), Span(V0_5_9)),
    Spelling("moe_dp", ("--moe-dp-size", "{}"), Span(V0_5_9)),
    Spelling("deepep", ("--moe-a2a-backend", "deepep")),
    Spelling("nnodes", ("--nnodes", "{}")),
    Spelling("node_rank", ("--node-rank", "{}")),
    Spelling("dist_init_addr", ("--dist-init-addr", "{}")),
    Spelling("nccl_port", ("--nccl-port", "{}")),
    Spelling("base_gpu_id", ("--base-gpu-id", "{}")),
    Spelling("gpu_id_step", ("--gpu-id-step", "{}")),
    Spelling("disaggregation_mode", ("--disaggregation-mode", "{}")),
    Spelling("transfer_backend", ("--disaggregation-transfer-backend", "{}")),
    Spelling("bootstrap_port", ("--disaggregation-bootstrap-port", "{}")),
    Spelling("ib_device", ("--disaggregation-ib-device", "{}")),
    # Before 0.5.10 each side had to be told the other's width; the defaults are the side's own.
    Spelling("decode_tp", ("--disaggregation-decode-tp", "{}"), Span(V0_5_3, V0_5_10)),
    Spelling("decode_dp", ("--disaggregation-decode-dp", "{}"), Span(V0_5_3, V0_5_10)),
    Spelling("prefill_pp", ("--disaggregation-prefill-pp", "{}"), Span(V0_5_3, V0_5_10)),
    # 0.5.3 refuses a decode with dp > 1 without it (outside its CI); later releases ignore it.
    Spelling("decode_follows_room", ("--prefill-round-robin-balance",), Span(V0_5_3, V0_5_8)),
    Spelling("no_overlap", ("--disable-overlap-schedule",)),
    Spelling("page_size", ("--page-size", "{}")),
    Spelling("mem_fraction", ("--mem-fraction-static", "{}")),
    Spelling("dtype", ("--dtype", "{}")),
    Spelling("kv_dtype", ("--kv-cache-dtype", "{}")),
    Spelling("context_length", ("--context-length", "{}")),
    # What makes a deployment traceable: a line per finished request with its room, one per request without its text.
    Spelling("time_stats", ("--enable-request-time-stats-logging",)),
    Spelling("log_requests", ("--log-requests", "--log-requests-level", "{}")),
    Spelling("metrics", ("--enable-metrics",)),
)


def words(meaning: str, version: Version, value: object = None) -> tuple[str, ...]:
    """The command-line words for one decision; empty when this release has no such flag."""
    for row in SPELLINGS:
        if row.meaning == meaning and row.span.holds(version):
            return tuple(str(value) if word == "{}" else word for word in row.words)
    return ()
