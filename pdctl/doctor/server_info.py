"""What an engine's /server_info says, in the terms in which the two roles must agree (sglang 0.5.3 to 0.5.23)."""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines.versions import resolve
from pdctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from pdctl.engines.versions import Version
    from pdctl.fleet.observations import Engine

LONG = 100  # characters of a version that are read


class Missing(Enum):
    """Stands for what an engine did not say; null is something said."""

    HERE = "not known"


HERE = Missing.HERE


class KvType(NamedTuple):
    """What the KV cache's type follows from. `flag` is as given: `auto` is the model's own, or its checkpoint's."""

    flag: str
    dtype: str
    quantization: str | None
    release: Version | None


class Widths(NamedTuple):
    """attn_tp: ranks that share one request's heads. architecture "": not known."""

    attn_tp: int
    architecture: str


def value(engine: Engine, key: str) -> Hashable:
    """A scalar of /server_info, or HERE where it says nothing (unreachable, or a release without the key)."""
    found = engine.info.get(key, HERE)
    if isinstance(found, float) and not math.isfinite(found):
        return HERE
    return found if found is None or isinstance(found, str | int | float | Missing) else str(found)


def release(engine: Engine) -> Version | None:
    """The known release whose rules hold for it."""
    try:
        return resolve(engine.version[:LONG]).known
    except UsageError:
        return None


def version(engine: Engine) -> Hashable:
    return engine.version or HERE


def width(engine: Engine) -> int | None:
    """Attention DP groups. Up to 0.5.18 `dp_size` with `enable_dp_attention`; 0.5.23 counts replicas there and has
    `attn_dp_size`, with `enable_dp_attention` made up from it."""
    attention = engine.number("attn_dp_size")
    if attention is not None and attention > 1:
        return attention
    return engine.number("dp_size") if engine.info.get("enable_dp_attention") else 1


def replicas(engine: Engine) -> int | None:
    """Plain data parallel copies of the model."""
    return 1 if (width(engine) or 1) > 1 else engine.number("dp_size")


def dp_ranks(engine: Engine) -> int | None:
    """Groups a room can belong to."""
    groups, copies = width(engine), replicas(engine)
    return None if groups is None or copies is None else groups * copies


def attn_tp(engine: Engine) -> int | None:
    tp, groups = engine.number("tp_size"), width(engine)
    if tp is None or not groups:
        return None
    return tp // groups // (engine.number("attn_cp_size") or 1)


def ranks(engine: Engine) -> int | None:
    """Bootstrap registrations a prefill owes: dp × cp × attention tp × pp, that is every rank it has."""
    tp, pp, copies = engine.number("tp_size"), engine.number("pp_size"), replicas(engine)
    return None if tp is None or pp is None or copies is None else tp * pp * copies


def architecture(engine: Engine) -> str:
    """As /model_info names it; "" in releases whose /model_info does not."""
    found = engine.model.get("architectures")
    return str(found[0]) if isinstance(found, list) and found else ""


def widths(engine: Engine) -> Hashable:
    own = attn_tp(engine)
    return HERE if own is None else Widths(own, architecture(engine))


def kv_type(engine: Engine) -> Hashable:
    flag = engine.text("kv_cache_dtype")
    if flag is None:
        return HERE
    return KvType(flag, engine.text("dtype") or "auto", engine.text("quantization"), release(engine))


def ib_devices(engine: Engine) -> Hashable:
    """Device names as a tuple; () where none was named."""
    said = engine.info.get("disaggregation_ib_device", HERE)
    if said is HERE:
        return HERE
    return tuple(filter(None, str(said or "").replace(" ", "").split(",")))


def embedded(engine: Engine) -> bool:
    """pdctl's own engine: it speaks like an SGLang release, and is not one."""
    return "sglang_compat" in engine.info


def on_cpu(engine: Engine) -> bool:
    return engine.text("device") == "cpu"


def backend(engine: Engine) -> str:
    return engine.text("disaggregation_transfer_backend") or ""


def longest(engine: Engine) -> int | None:
    """Tokens of the longest prompt it takes: its context, or its KV pool, whichever ends first. None: not known."""
    said = [engine.number(key) for key in ("context_length", "max_req_input_len", "max_total_num_tokens")]
    return min((limit for limit in said if limit is not None and limit > 0), default=None)
