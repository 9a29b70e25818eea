"""Prefill against decode, as running engines tell: the settings of the table of agreements, read and compared.

A row reads one value from each engine and says whether two values clash; None means that cannot be told.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from pdctl.doctor import reading
from pdctl.doctor.families import Family, family, recurrent
from pdctl.doctor.reading import HERE, KvType, Widths
from pdctl.engines.sglang.agreement import SETTINGS, Rule, Setting, setting
from pdctl.engines.sglang.behaviour import KV_DTYPE_COMPARED_BY_WORD
from pdctl.fleet import document

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from pdctl.fleet.facts import Engine


class Row(NamedTuple):
    """One setting of the table, with how it is read from /server_info and when two values of it clash."""

    setting: Setting
    read: Callable[[Engine], Hashable] | None = None  # None: the key itself
    clash: Callable[[Any, Any], bool | None] | None = None  # prefill's value, decode's; None: unequal ones do

    @property
    def key(self) -> str:
        return self.setting.key

    @property
    def code(self) -> str:
        return self.setting.code

    @property
    def why(self) -> str:
        return self.setting.why

    @property
    def rule(self) -> Rule:
        return self.setting.rule

    def value(self, engine: Engine) -> Hashable:
        return self.read(engine) if self.read is not None else reading.value(engine, self.key)

    def clashes(self, prefill: Hashable, decode: Hashable) -> bool | None:
        if HERE in (prefill, decode):
            return None
        return self.clash(prefill, decode) if self.clash is not None else prefill != decode


class ContextWidth(NamedTuple):
    """Ranks that share the tokens of a page on decode, and whose model it is; architecture "": not known."""

    size: int
    architecture: str


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
    if isinstance(value, ContextWidth):
        return str(value.size)
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


def _since(engine: Engine, key: str, default: Hashable) -> Hashable:
    """`default` for pdctl's own engine and for a release that does not have the setting yet."""
    said, release = reading.value(engine, key), reading.release(engine)
    if said is not HERE or release is None:
        return said
    return default if reading.embedded(engine) or not setting(key).span.holds(release) else HERE


def _decode_context(engine: Engine) -> Hashable:
    size = _since(engine, "dcp_size", 1)
    return ContextWidth(size, reading.architecture(engine)) if isinstance(size, int) else HERE


def _allocation(engine: Engine) -> Hashable:
    return _since(engine, "disaggregation_decode_allocation_policy", "early")


def _checksums(engine: Engine) -> Hashable:
    said = _since(engine, "disaggregation_enable_kv_checksum", False)
    return HERE if said is HERE else "enabled" if said else "disabled"


def _stages(engine: Engine) -> Hashable:
    pp = engine.number("pp_size")
    return HERE if pp is None else (pp, engine.number("attn_cp_size") or 1)


# Whether two values clash.


def _unequal_kv(prefill: KvType, decode: KvType) -> bool | None:
    if prefill.flag == decode.flag:
        return False
    by_word = [side.release is not None and KV_DTYPE_COMPARED_BY_WORD.holds(side.release) for side in (prefill, decode)]
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


def _unequal_context(prefill: ContextWidth, decode: ContextWidth) -> bool | None:
    """From 1 to more is MLA's alone; any other pair of sizes ends in `Unsupported PD DCP topology`."""
    if prefill.size == decode.size:
        return False
    if prefill.size != 1:
        return True
    kinds = {family(side.architecture) for side in (prefill, decode) if side.architecture}
    if kinds == {Family.MLA}:
        return False
    return True if Family.GQA in kinds else None  # a hybrid may have MLA in it


def _unequal_devices(prefill: tuple[str, ...], decode: tuple[str, ...]) -> bool | None:
    return bool(prefill and decode) and len(prefill) != len(decode)


# What is put together from several keys, and what clashes though it is equal, or does not though it is not.
READ: dict[str, Callable[[Engine], Hashable]] = {
    "kv_cache_dtype": reading.kv_type, "KV layout": _layout, "attention TP": reading.widths,
    "attention TP (hybrid)": reading.widths, "attention TP (divides)": reading.widths, "speculative_*": _speculation,
    "version": reading.version, "model": _model, "mamba_ssm_dtype": _recurrent_dtype, "pp_size": _stages,
    "dcp_size": _decode_context, "disaggregation_decode_allocation_policy": _allocation,
    "disaggregation_enable_kv_checksum": _checksums, "disaggregation_ib_device": reading.ib_devices,
}  # fmt: skip
CLASH: dict[str, Callable[[Any, Any], bool | None]] = {
    "disaggregation_mode": lambda prefill, decode: prefill == decode, "kv_cache_dtype": _unequal_kv,
    "KV layout": _unequal_layout, "attention TP": _unequal_tp, "attention TP (hybrid)": _unequal_tp_hybrid,
    "attention TP (divides)": _uneven, "context_length": _unequal_length, "model": _unequal_model,
    "mamba_ssm_dtype": _unequal_recurrent, "pp_size": _unequal_stages, "dcp_size": _unequal_context,
    "disaggregation_ib_device": _unequal_devices,
}  # fmt: skip
ROWS: tuple[Row, ...] = tuple(Row(one, READ.get(one.key), CLASH.get(one.key)) for one in SETTINGS)


def rows(codes: Iterable[str]) -> tuple[Row, ...]:
    wanted = set(codes)
    return tuple(row for row in ROWS if row.code in wanted)
