"""Prefill against decode: which settings must agree, which may differ and which must, as rows of data.

A row reads one value from each engine and says whether two values clash; None means that cannot be told. The same rows
make the findings (live/pairs.py) and the table a person can read (docs/doctor.md).
"""

from __future__ import annotations

from enum import Enum
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from pdctl.dialect.versions import V0_5_10, V0_5_17
from pdctl.doctor import reading
from pdctl.doctor.families import Family, family, recurrent
from pdctl.doctor.reading import HERE, KvType, Widths
from pdctl.fleet import document

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from pdctl.fleet.facts import Engine


class Rule(str, Enum):
    MUST_EQUAL = "must equal"
    MAY_DIFFER = "may differ"
    MUST_DIFFER = "must differ"


class Row(NamedTuple):
    """`key` is the /server_info key, or what is derived from several. `code` "": nothing is ever found by it."""

    key: str
    rule: Rule
    why: str
    code: str = ""
    read: Callable[[Engine], Hashable] | None = None  # None: the key itself
    clash: Callable[[Any, Any], bool | None] | None = None  # prefill's value, decode's; None: unequal ones do

    def value(self, engine: Engine) -> Hashable:
        return self.read(engine) if self.read is not None else reading.value(engine, self.key)

    def clashes(self, prefill: Hashable, decode: Hashable) -> bool | None:
        if HERE in (prefill, decode):
            return None
        return self.clash(prefill, decode) if self.clash is not None else prefill != decode


class Difference(NamedTuple):
    """One row for one pair whose values are not the same."""

    row: Row
    prefill: Hashable
    decode: Hashable


def differences(prefill: Engine, decode: Engine) -> tuple[Difference, ...]:
    """Every row on which the two differ, those that matter first."""
    found = [Difference(row, row.value(prefill), row.value(decode)) for row in ROWS]
    return tuple(sorted((one for one in found if one.prefill != one.decode), key=_weight))


def _weight(one: Difference) -> int:
    if one.row.clashes(one.prefill, one.decode):
        return 0
    return 1 if one.row.rule is Rule.MUST_EQUAL else 2


def show(value: Hashable) -> str:
    if isinstance(value, Widths):
        return str(value.attn_tp)
    if isinstance(value, KvType):
        return f"auto (model dtype {value.dtype})" if value.flag == "auto" else value.flag
    if isinstance(value, tuple):
        return ", ".join(show(one) for one in value if one is not HERE) or "none"
    if isinstance(value, reading.Missing):
        return value.value
    return "null" if value is None else document.excerpt(str(value))


# Readers of derived values.

LAYOUT = ("enable_page_major_kv_layout", "enable_kv_cache_sharding")


def _speculation(engine: Engine) -> Hashable:
    keys = ("speculative_algorithm", "speculative_num_draft_tokens", "speculative_eagle_topk")
    said = tuple(reading.value(engine, key) for key in keys)
    return HERE if said[0] is HERE else said if said[0] is not None else (None,)


def _model(engine: Engine) -> Hashable:
    path, served = engine.text("model_path"), engine.text("served_model_name")
    if path is None:
        return HERE
    return path, served or path, reading.architecture(engine), str(engine.model.get("weight_version") or "")


def _recurrent_dtype(engine: Engine) -> Hashable:
    kind, dtype = reading.architecture(engine), reading.value(engine, "mamba_ssm_dtype")
    if kind and not recurrent(kind):
        return kind, None
    return HERE if dtype is HERE or not kind else (kind, dtype)


def _layout(engine: Engine) -> Hashable:
    """A role may have an attention backend of its own, which wins over the common one."""
    if reading.embedded(engine):
        return "the layout of pdctl's own engine", *(HERE for _ in LAYOUT)
    own = engine.text(f"{engine.endpoint.role}_attention_backend")
    backend = own if own is not None else reading.value(engine, "attention_backend")
    if backend is HERE:
        return HERE
    return f"attention_backend {backend}", *(_flag(engine, key) for key in LAYOUT)


def _flag(engine: Engine, key: str) -> Hashable:
    said = reading.value(engine, key)
    return HERE if said is HERE else f"{key} {said}"


def _stages(engine: Engine) -> Hashable:
    pp = engine.number("pp_size")
    return HERE if pp is None else (pp, engine.number("attn_cp_size") or 1)


# Whether two values clash.


def _unequal_kv(prefill: KvType, decode: KvType) -> bool | None:
    if prefill.flag == decode.flag:
        return False
    by_word = [side.release is not None and V0_5_10 <= side.release < V0_5_17 for side in (prefill, decode)]
    if any(by_word) or "auto" not in (prefill.flag, decode.flag):
        return True
    auto, given = (prefill, decode) if prefill.flag == "auto" else (decode, prefill)
    wide = ("bf16", "bfloat16", "float16", "fp16", "half")
    if given.flag not in wide:  # fp8 or fp4; a quantized checkpoint may make `auto` the same
        return None if auto.quantization else True
    return None


def _uneven(prefill: Widths, decode: Widths) -> bool | None:
    """Whether neither attention TP divides the other."""
    one, other = sorted((prefill.attn_tp, decode.attn_tp))
    return one < 1 or other % one != 0


def _unequal_tp(prefill: Widths, decode: Widths) -> bool | None:
    if prefill.attn_tp == decode.attn_tp:
        return False
    kinds = _families(prefill, decode)
    return None if not kinds else kinds == {Family.GQA}


def _unequal_tp_hybrid(prefill: Widths, decode: Widths) -> bool | None:
    if prefill.attn_tp == decode.attn_tp:
        return False
    kinds = _families(prefill, decode)
    return Family.HYBRID in kinds if kinds else None


def _families(*sides: Widths) -> set[Family]:
    return {family(side.architecture) for side in sides if side.architecture}


def _unequal_length(prefill: int | None, decode: int | None) -> bool | None:
    """null is the checkpoint's own length, which another number may well be."""
    return None if (prefill is None) != (decode is None) else prefill != decode


def _unequal_model(prefill: tuple[str, ...], decode: tuple[str, ...]) -> bool | None:
    """Paths may be mounts of one checkpoint: the last name, what is served and the architecture must agree."""
    (path, served, kind, weights), (other, other_served, other_kind, other_weights) = prefill, decode
    both = (kind, other_kind), (weights, other_weights)
    if any(one and two and one != two for one, two in both):
        return True
    return PurePosixPath(path).name != PurePosixPath(other).name or (
        PurePosixPath(served).name != PurePosixPath(other_served).name
    )


def _unequal_recurrent(prefill: tuple[str, Hashable], decode: tuple[str, Hashable]) -> bool | None:
    if not any(recurrent(side[0]) for side in (prefill, decode)):
        return False
    return prefill[1] != decode[1]


def _unequal_layout(prefill: tuple[Hashable, ...], decode: tuple[Hashable, ...]) -> bool | None:
    """A key one of the releases does not have yet is not a difference."""
    return any(one != two for one, two in zip(prefill, decode, strict=True) if HERE not in (one, two))


def _unequal_stages(prefill: tuple[int, int], decode: tuple[int, int]) -> bool | None:
    (pp, _), (decode_pp, decode_cp) = prefill, decode
    return decode_pp not in (1, pp) or decode_cp > 1


def _unequal_devices(prefill: tuple[str, ...], decode: tuple[str, ...]) -> bool | None:
    return bool(prefill and decode) and len(prefill) != len(decode)


MUST, MAY = Rule.MUST_EQUAL, Rule.MAY_DIFFER
ROWS: tuple[Row, ...] = (
    Row("disaggregation_mode", Rule.MUST_DIFFER, "one reads prompts, the other writes answers", "PD301",
        clash=lambda prefill, decode: prefill == decode),
    Row("page_size", MUST, "pages are copied whole: from 0.5.8 on the decode refuses the first request, 0.5.3 copies "
        "the wrong bytes", "PD302"),
    Row("kv_cache_dtype", MUST, "pages are copied as bytes; 0.5.10 to 0.5.16 compare the flag's words, 0.5.17 on what "
        "type", "PD303", reading.kv_type, _unequal_kv),
    Row("KV layout", MUST, "the same type in another byte order is a short or wrong copy", "PD304", _layout,
        _unequal_layout),
    Row("attention TP", MUST, "a GQA rank holds a share of the heads, which must be cut anew for another width; MLA "
        "ranks hold it whole", "PD305", reading.widths, _unequal_tp),
    Row("attention TP (hybrid)", MUST, "sliding-window and recurrent state is not cut anew", "PD306", reading.widths,
        _unequal_tp_hybrid),
    Row("attention TP (divides)", MUST, "ranks are paired by integer division: 3 against 2 pairs the wrong groups",
        "PD316", reading.widths, _uneven),
    Row("context_length", MUST, "the decode refuses what the prefill took, and the prefill waits for it", "PD307",
        clash=_unequal_length),
    Row("speculative_*", MUST, "the auxiliary row carries hidden states of the draft: its width must be the same",
        "PD308", _speculation),
    Row("disaggregation_transfer_backend", MUST, "two engines do not talk to each other", "PD309"),
    Row("version", MUST, "bootstrap answers and frames changed between releases", "PD310", reading.version),
    Row("model", MUST, "another checkpoint, or other weights of it, reads the cache as its own", "PD311", _model,
        _unequal_model),
    Row("mamba_ssm_dtype", MUST, "recurrent state is copied with the prefill's stride", "PD312", _recurrent_dtype,
        _unequal_recurrent),
    Row("pp_size", MUST, "a decode has as many stages as the prefill, or one; its context parallel size is 1", "PD315",
        _stages, _unequal_stages),
    Row("disaggregation_ib_device", MUST, "rails are paired one by one", "PD414", reading.ib_devices,
        _unequal_devices),
    Row("tp_size", MAY, "what counts is the attention TP"),
    Row("dp_size", MAY, "the room, not the rank number, joins the two sides"),
    Row("ep_size", MAY, "experts are not handed over"),
    Row("chunked_prefill_size", MAY, "only prefill cuts prompts; there it must be a multiple of the page size"),
    Row("max_running_requests", MAY, "a role's own limit"),
    Row("max_total_num_tokens", MAY, "a role's own pool"),
    Row("mem_fraction_static", MAY, "a role's own memory"),
    Row("num_reserved_decode_tokens", MAY, "decode only"),
    Row("load_balance_method", MAY, "follow_bootstrap_room on prefill; decode balances as it likes"),
    Row("disable_radix_cache", MAY, "decode forces it off"),
    Row("deepep_mode", MAY, "normal on prefill, low_latency on decode"),
    Row("disable_cuda_graph", MAY, "a role's own choice"),
    Row("log_level", MAY, "what is written, not what is done"),
)  # fmt: skip


def rows(codes: Iterable[str]) -> tuple[Row, ...]:
    wanted = set(codes)
    return tuple(row for row in ROWS if row.code in wanted)
