"""Do the running prefills and decodes agree on what they must?

PD302 to PD312, PD315, PD316 and PD414 come from the table of agreements: each setting is read from /server_info and
compared over every pair. PD313 and PD314 concern one side. A clash of None means that it cannot be decided.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pdctl.catalogue.entry import Needs, Severity
from pdctl.doctor import server_info
from pdctl.doctor.check import Check, Skipped, Unknown, finding, names, shorten_lines
from pdctl.doctor.server_info import HERE, Family, KvType, Widths, family, recurrent
from pdctl.engines.sglang import behaviour
from pdctl.engines.sglang.agreement import SETTINGS, Setting, breaks, common_page_size, setting
from pdctl.engines.sglang.behaviour import KV_DTYPE_COMPARED_BY_WORD
from pdctl.fleet import peer_json
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from pdctl.doctor.check import Facts, Finding
    from pdctl.fleet.observations import ObservedEngine

LAYOUT = ("enable_page_major_kv_layout", "enable_kv_cache_sharding")
Groups = dict["Hashable", "list[ObservedEngine]"]
OWN = ("PD301", "PD302", "PD310")  # these need more than their row
LIVE = (Needs.ENDPOINT,)


class AgreementRow(NamedTuple):
    """One setting of the table: how it is read from /server_info, and when two of its values clash."""

    setting: Setting
    read: Callable[[ObservedEngine], Hashable] | None = None  # None: read the key itself
    clash: Callable[[Any, Any], bool | None] | None = None  # of (prefill's, decode's) value; None: unequal ones clash

    @property
    def key(self) -> str:
        return self.setting.key

    @property
    def code(self) -> str:
        return self.setting.code

    @property
    def why(self) -> str:
        return self.setting.why

    def value(self, engine: ObservedEngine) -> Hashable:
        return self.read(engine) if self.read is not None else server_info.value(engine, self.key)

    def clashes(self, prefill: Hashable, decode: Hashable) -> bool | None:
        if HERE in (prefill, decode):
            return None
        return self.clash(prefill, decode) if self.clash is not None else prefill != decode


class ContextWidth(NamedTuple):
    """`size`: ranks that share the tokens of a page on decode; `architecture`: the model's, "" if unknown."""

    size: int
    architecture: str


class StageShape(NamedTuple):
    """`pipeline`: pipeline stages; `context`: context-parallel ranks."""

    pipeline: int
    context: int


def show(value: Hashable) -> str:
    if isinstance(value, Widths):
        return str(value.attn_tp)
    if isinstance(value, StageShape):
        return str(value.pipeline) if value.context == 1 else f"{value.pipeline} with context parallel {value.context}"
    if isinstance(value, ContextWidth):
        return str(value.size)
    if isinstance(value, KvType):
        return f"auto (model dtype {value.dtype})" if value.flag == "auto" else value.flag
    if isinstance(value, tuple):
        return ", ".join(show(one) for one in value if one is not HERE) or "none"
    if isinstance(value, server_info.Missing):
        return value.value
    return "null" if value is None else peer_json.quoted(str(value))


def show_difference(value: Hashable, against: Hashable) -> str:
    """`value` as text; of a value with several parts, those that `against` has and that differ there."""
    if type(value) is not tuple or type(against) is not tuple or len(value) != len(against):
        return show(value)
    unlike = [one for one, other in zip(value, against, strict=True) if one != other and HERE not in (one, other)]
    return show(tuple(dict.fromkeys(one for one in unlike if one != "")) or value)


def _speculation(engine: ObservedEngine) -> Hashable:
    keys = ("speculative_algorithm", "speculative_num_draft_tokens", "speculative_eagle_topk")
    said = {key: server_info.value(engine, key) for key in keys}
    if said[keys[0]] in (HERE, None):
        return HERE if said[keys[0]] is HERE else ("no speculation",)
    return tuple(f"{key} {value}" for key, value in said.items() if value not in (HERE, None))


def _model(engine: ObservedEngine) -> Hashable:
    path, served = engine.text("model_path"), engine.text("served_model_name")
    if path is None:
        return HERE
    return path, served or path, server_info.architecture(engine), str(engine.model.get("weight_version") or "")


def _recurrent_dtype(engine: ObservedEngine) -> Hashable:
    kind, dtype = server_info.architecture(engine), server_info.value(engine, "mamba_ssm_dtype")
    if kind and not recurrent(kind):
        return kind, None
    return HERE if dtype is HERE or not kind else (kind, dtype)


def _layout(engine: ObservedEngine) -> Hashable:
    """The KV layout. A role may have its own attention backend, which takes precedence over the common one."""
    if server_info.embedded(engine):
        return "the layout of pdctl's own engine", *(HERE for _ in LAYOUT)
    own = engine.text(f"{engine.endpoint.role}_attention_backend")
    backend = own if own is not None else server_info.value(engine, "attention_backend")
    if backend is HERE:
        return HERE
    return f"attention_backend {backend}", *(_flag(engine, key) for key in LAYOUT)


def _flag(engine: ObservedEngine, key: str) -> Hashable:
    said = server_info.value(engine, key)
    return HERE if said is HERE else f"{key} {said}"


def _since(engine: ObservedEngine, key: str, default: Hashable) -> Hashable:
    """The key's value, or `default` for pdctl's own engine and for releases that do not have the setting yet."""
    said, release = server_info.value(engine, key), server_info.release(engine)
    if said is not HERE or release is None:
        return said
    return default if server_info.embedded(engine) or not setting(key).span.holds(release) else HERE


def _decode_context(engine: ObservedEngine) -> Hashable:
    size = _since(engine, "dcp_size", 1)
    return ContextWidth(size, server_info.architecture(engine)) if isinstance(size, int) else HERE


def _allocation(engine: ObservedEngine) -> Hashable:
    return _since(engine, "disaggregation_decode_allocation_policy", "early")


def _checksums(engine: ObservedEngine) -> Hashable:
    said = _since(engine, "disaggregation_enable_kv_checksum", False)
    return HERE if said is HERE else "enabled" if said else "disabled"


def _stages(engine: ObservedEngine) -> Hashable:
    pp = engine.number("pp_size")
    return HERE if pp is None else StageShape(pp, engine.number("attn_cp_size") or 1)


def _unequal_kv(prefill: KvType, decode: KvType) -> bool | None:
    if prefill.flag == decode.flag:
        return False
    by_word = [side.release is not None and KV_DTYPE_COMPARED_BY_WORD.holds(side.release) for side in (prefill, decode)]
    if any(by_word) or "auto" not in (prefill.flag, decode.flag):
        return True
    auto, given = (prefill, decode) if prefill.flag == "auto" else (decode, prefill)
    wide = ("bf16", "bfloat16", "float16", "fp16", "half")
    if given.flag not in wide:  # fp8 or fp4, which `auto` may also become for a quantized checkpoint
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
    """Whether the lengths differ; None if one is null: that is the checkpoint's own, which may equal the other."""
    return None if (prefill is None) != (decode is None) else prefill != decode


def _unequal_model(prefill: tuple[str, ...], decode: tuple[str, ...]) -> bool | None:
    """Paths may be mounts of one checkpoint: the last component, the served name and the architecture must agree."""
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
    """Whether the layouts differ; a key that one of the releases does not have yet is not a difference."""
    return any(one != two for one, two in zip(prefill, decode, strict=True) if HERE not in (one, two))


def _unequal_stages(prefill: StageShape, decode: StageShape) -> bool | None:
    return decode.pipeline not in (1, prefill.pipeline) or decode.context > 1


def _unequal_context(prefill: ContextWidth, decode: ContextWidth) -> bool | None:
    """Only MLA can go from 1 to more; any other pair of sizes fails with `Unsupported PD DCP topology`."""
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


# Settings derived from several keys, then those for which clashing is not the same as being unequal.
READ: dict[str, Callable[[ObservedEngine], Hashable]] = {
    "kv_cache_dtype": server_info.kv_type, "KV layout": _layout, "attention TP": server_info.widths,
    "attention TP (hybrid)": server_info.widths, "attention TP (divides)": server_info.widths,
    "speculative_*": _speculation,
    "version": server_info.version, "model": _model, "mamba_ssm_dtype": _recurrent_dtype, "pp_size": _stages,
    "dcp_size": _decode_context, "disaggregation_decode_allocation_policy": _allocation,
    "disaggregation_enable_kv_checksum": _checksums, "disaggregation_ib_device": server_info.ib_devices,
}  # fmt: skip
CLASH: dict[str, Callable[[Any, Any], bool | None]] = {
    "disaggregation_mode": lambda prefill, decode: prefill == decode, "kv_cache_dtype": _unequal_kv,
    "KV layout": _unequal_layout, "attention TP": _unequal_tp, "attention TP (hybrid)": _unequal_tp_hybrid,
    "attention TP (divides)": _uneven, "context_length": _unequal_length, "model": _unequal_model,
    "mamba_ssm_dtype": _unequal_recurrent, "pp_size": _unequal_stages, "dcp_size": _unequal_context,
    "disaggregation_ib_device": _unequal_devices,
}  # fmt: skip
ROWS: tuple[AgreementRow, ...] = tuple(AgreementRow(one, READ.get(one.key), CLASH.get(one.key)) for one in SETTINGS)


def _row(code: str) -> AgreementRow:
    return next(row for row in ROWS if row.code == code)


class Clash(NamedTuple):
    """Prefills and decodes whose values clash, or may clash."""

    prefills: list[ObservedEngine]
    decodes: list[ObservedEngine]
    prefill: Hashable
    decode: Hashable


def compare(row: AgreementRow, facts: Facts) -> list[Finding] | Skipped | Unknown:
    """Compare one row over every pair. Engines with the same value form one group, so 256 × 2 cost as much as 1 × 1."""
    sides = [_groups(row, facts, role) for role in ("prefill", "decode")]
    if not all(sides):
        return Skipped("a prefill and a decode are needed to compare")
    clashes: list[Clash] = []
    unsure: list[Clash] = []
    for one, prefills in sides[0].items():
        for other, decodes in sides[1].items():
            verdict = row.clashes(one, other)
            if verdict is not False:
                (unsure if verdict is None else clashes).append(Clash(prefills, decodes, one, other))
    if clashes:
        return [_found(row, clash, sides) for clash in clashes]
    return _unsure(row, unsure[0]) if unsure else []


def _groups(row: AgreementRow, facts: Facts, role: str) -> Groups:
    groups: Groups = {}
    for engine in facts.engines:
        if engine.endpoint.role == role:
            groups.setdefault(row.value(engine), []).append(engine)
    return groups


def _unsure(row: AgreementRow, clash: Clash) -> Unknown:
    for engines, value in ((clash.prefills, clash.prefill), (clash.decodes, clash.decode)):
        if value is server_info.HERE:
            unread = [engine.endpoint.name for engine in engines]
            why = engines[0].reason or f"its /server_info has no {row.key}"
            return Unknown(f"{names(unread)}: {why}")
    prefill, decode = (_names(side) for side in (clash.prefills, clash.decodes))
    return Unknown(
        f"{row.key} is {show(clash.prefill)} on {prefill} and {show(clash.decode)} on {decode}: whether that "
        "comes to the same cannot be read"
    )


def _found(row: AgreementRow, clash: Clash, sides: Sequence[Groups]) -> Finding:
    decode_odd = _decode_odd(row, clash, sides)
    odd, other = (clash.decodes, clash.prefills) if decode_odd else (clash.prefills, clash.decodes)
    value, against = (clash.decode, clash.prefill) if decode_odd else (clash.prefill, clash.decode)
    evidence = [f"{one.endpoint.url}/server_info: {row.key} {show(row.value(one))}" for one in (*odd, *other)]
    observed, expected, fix = _described(row, clash, value, against)
    found = finding(
        row.code,
        _names(odd),
        observed=observed,
        expected=expected,
        evidence=(*shorten_lines(evidence), row.why),
        other=_names(other),
        model=server_info.architecture(odd[0]) or "its model",
        size=_size(sides),
        severity=None,
        **fix,
    )
    return replace(found, instance=odd[0].endpoint.name if len(odd) == 1 else "")


def _described(
    row: AgreementRow, clash: Clash, value: Hashable, against: Hashable
) -> tuple[str, str, dict[str, object]]:
    """What is observed and expected, and the fix where it is not the catalogue's."""
    if isinstance(clash.decode, StageShape) and clash.decode.context > 1:
        return show(value), show(against), {"fix": "start decode with --attn-cp-size 1"}
    if row.code == "PD316":
        observed = f"attention TP {show(clash.prefill)} (prefill) and {show(clash.decode)} (decode)"
        fix = f"set attention TP (tp / dp) of decode to {show(clash.prefill)}"
        return observed, "the larger must be a multiple of the smaller", {"fix": fix}
    return show_difference(value, against), show_difference(against, value), {}


def _size(sides: Sequence[Groups]) -> int:
    return common_page_size(*(value for side in sides for value in side if isinstance(value, int)))


def _decode_odd(row: AgreementRow, clash: Clash, sides: Sequence[Groups]) -> bool:
    """Whether to blame decode: a side that fits others is not to blame; if undecided, the smaller group, or decode."""
    decode_fits = any(row.clashes(other, clash.decode) is False for other in sides[0])
    prefill_fits = any(row.clashes(clash.prefill, other) is False for other in sides[1])
    if decode_fits is not prefill_fits:
        return prefill_fits
    return len(clash.decodes) <= len(clash.prefills)


def _names(engines: Sequence[ObservedEngine]) -> str:
    return names([engine.endpoint.name for engine in engines])


def versions(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD310: an error if the two releases are known to be incompatible, else a warning."""
    verdict = compare(_row("PD310"), facts)
    if not isinstance(verdict, list):
        return verdict
    return [_graded(found, facts) for found in verdict]


def _graded(found: Finding, facts: Facts) -> Finding:
    prefills, decodes = ([one for one in facts.engines if one.endpoint.role == role] for role in ("prefill", "decode"))
    said = (found.observed, found.expected)
    for prefill in prefills:
        for decode in decodes:
            if {prefill.version, decode.version} != set(said):
                continue
            one, other = server_info.release(prefill), server_info.release(decode)
            broken = breaks(one, other, server_info.backend(decode)) if one and other else None
            if broken is not None:
                return replace(found, evidence=(*found.evidence, f"{broken}"))
    note = "no break between these two is known; a release between the ones pdctl knows may have one"
    return replace(found, severity=Severity.WARNING, evidence=(*found.evidence, note))


def page_sizes(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD302, and how the release reacts to it."""
    verdict = compare(_row("PD302"), facts)
    if not isinstance(verdict, list):
        return verdict
    releases = [known for engine in facts.engines if (known := server_info.release(engine)) is not None]
    silent = not all(behaviour.PAGE_SIZES_COMPARED.holds(known) for known in releases)
    note = "this release does not compare them: the cache is corrupted in silence" if silent else ""
    return [replace(one, evidence=(*one.evidence, note)) if note else one for one in verdict]


def dp_contract(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD313: a prefill with several DP ranks, for which decode would compute another rank than serves the request."""
    prefills = [engine for engine in facts.engines if engine.endpoint.role == "prefill"]
    found = [one for engine in prefills for one in _dp(engine)]
    unread = [engine.endpoint.name for engine in prefills if server_info.dp_ranks(engine) is None]
    if found or not unread:
        return found or ([] if prefills else Skipped("no prefill was given"))
    return Unknown(f"{names(unread)}: dp_size could not be read")


def _dp(engine: ObservedEngine) -> list[Finding]:
    ranks, copies, known = server_info.dp_ranks(engine), server_info.replicas(engine), server_info.release(engine)
    method = engine.text("load_balance_method")
    if ranks is None or ranks < 2 or known is None:
        return []
    follows = method in (None, "auto", "follow_bootstrap_room")
    if behaviour.RANK_OF_ROOM_CHECKED.holds(known) and copies is not None and copies > 1 and follows:
        what = f"dp_size {copies} without DP attention, and this release checks the attention rank of the room"
        fix = "use DP attention on prefill, or export SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK=1 on both roles"
    elif behaviour.ONLY_ROUND_ROBIN_FOLLOWS_ROOM.holds(known) and method != "round_robin":
        what = f"load_balance_method {method}: before 0.5.8 only round_robin follows the room"
        fix = "start prefill with --load-balance-method round_robin and decode with --prefill-round-robin-balance"
    else:
        return []
    evidence = (f"{engine.endpoint.url}/server_info: version {engine.version}, {ranks} DP ranks, {what}",)
    name = engine.endpoint.name
    return [finding("PD313", name, observed=what, expected="one rank for both", evidence=evidence, fix=fix)]


def chunks(facts: Facts) -> list[Finding] | Skipped | Unknown:
    """PD314: a chunk that does not end on a page boundary. /server_info has it already divided by the DP width."""
    prefills = [engine for engine in facts.engines if engine.endpoint.role == "prefill"]
    found: list[Finding] = []
    for engine in prefills:
        chunk, page = engine.number("chunked_prefill_size"), engine.number("page_size")
        if chunk is None or page is None or chunk < 1 or page < 1 or chunk % page == 0:
            continue
        evidence = (f"{engine.endpoint.url}/server_info: chunked_prefill_size {chunk}, page_size {page}",)
        whole = (max(page, chunk - chunk % page)) * (server_info.width(engine) or 1)
        name = engine.endpoint.name
        found.append(finding("PD314", name, observed=str(chunk), expected=str(page), evidence=evidence, fix=whole))
    unread = [engine.endpoint.name for engine in prefills if engine.number("page_size") is None]
    if found or not unread:
        return found or ([] if prefills else Skipped("no prefill was given"))
    return Unknown(f"{names(unread)}: page_size could not be read")


CHECKS = (
    Check("PD302", LIVE, page_sizes),
    Check("PD310", LIVE, versions),
    Check("PD313", LIVE, dp_contract),
    Check("PD314", LIVE, chunks),
    *(Check(row.code, LIVE, partial(compare, row)) for row in ROWS if row.code and row.code not in OWN),
)
