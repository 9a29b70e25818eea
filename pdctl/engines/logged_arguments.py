"""The arguments a process was started with, read from the line in which it (or its launcher) logs them."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines import history

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.engines.versions import Span

# The fields worth keeping, in the spelling of every release.
WANTED = (
    "model_path", "served_model_name", "host", "port", "tp_size", "pp_size", "dp_size", "attn_dp_size", "ep_size",
    "attn_cp_size", "enable_dp_attention", "nnodes", "node_rank", "dist_init_addr", "page_size", "kv_cache_dtype",
    "context_length", "chunked_prefill_size", "max_running_requests", "max_total_tokens", "mem_fraction_static",
    "load_balance_method", "attention_backend", "speculative_algorithm", "speculative_num_draft_tokens",
    "mamba_ssm_dtype",
    "disable_radix_cache", "disable_overlap_schedule", "log_level", "log_requests", "log_requests_level",
    "log_requests_format", "enable_metrics", "enable_request_time_stats_logging", "disaggregation_mode",
    "disaggregation_transfer_backend", "disaggregation_bootstrap_port", "disaggregation_ib_device",
    "disaggregation_decode_tp", "disaggregation_decode_dp", "disaggregation_prefill_pp", "num_reserved_decode_tokens",
    "disaggregation_decode_extra_slots", "disaggregation_decode_allocation_policy",
    "disaggregation_decode_polling_interval",
)  # fmt: skip

_VALUE = r"(?:'(?P<text>[^']*)'|(?P<bare>[^\s,)}\]]+))"
_CALL = re.compile(r"\b(?P<name>" + "|".join(WANTED) + r")=" + _VALUE)  # ServerArgs(page_size=16, …)
_DICT = re.compile(r"'(?P<name>" + "|".join(WANTED) + r")': " + _VALUE)  # {'page_size': 16, …}


class Mark(NamedTuple):
    """A field that the arguments of only some releases have, so its presence bounds the version."""

    field: str
    span: Span


# Fields of ServerArgs that were added or removed, from the tables read from the wheels.
MARKED = (
    "oltp_traces_endpoint", "otlp_traces_endpoint", "log_requests_format", "nsa_prefill_cp_mode",
    "disaggregation_decode_tp", "disaggregation_decode_enable_fake_auto", "tokenizer_backend", "attn_cp_size",
    "optimistic_prefill_retries", "optimistic_prefill_attempts", "disaggregation_decode_extra_slots",
    "disaggregation_decode_allocation_policy", "attn_dp_size", "disaggregation_enable_kv_checksum",
    "enable_prefill_cp", "dcp_size", "enable_pd_role_switch", "enable_kv_cache_sharding",
)  # fmt: skip


def read(text: str) -> dict[str, str]:
    """Field → value from either of SGLang's dumps, as written but unquoted (`None` and `True` stay words)."""
    pattern = _DICT if "': " in text[:80] else _CALL
    return {
        found["name"]: found["text"] if found["text"] is not None else found["bare"] for found in pattern.finditer(text)
    }


def marks(text: str) -> Iterator[Mark]:
    for field in MARKED:
        if f"{field}=" in text or f"'{field}':" in text:
            yield Mark(field, history.span("records", "ServerArgs", field))


def words(text: str) -> dict[str, str]:
    """Field → value from a command line: `--tp-size 2`, `--page-size=16`; a flag without a value is "True"."""
    try:
        parts = shlex.split(text)
    except ValueError:  # cut inside a quoted string
        parts = text.split()
    out: dict[str, str] = {}
    for at, part in enumerate(parts):
        if not part.startswith("--"):
            continue
        name, assigned, value = part[2:].partition("=")
        field = name.replace("-", "_")
        if field not in WANTED:
            continue
        following = parts[at + 1] if at + 1 < len(parts) else "--"
        out[field] = value if assigned else "True" if following.startswith("--") else following
    return out
