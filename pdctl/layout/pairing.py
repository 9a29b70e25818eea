"""Whether the two sides of a deployment can hand KV cache to each other, and how they would."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.sglang.rules import HETEROGENEOUS_TP, STAGING_ENV, STAGING_SPAN, rule
from pdctl.layout.feasibility import explain
from pdctl.layout.instance import Caution
from pdctl.layout.links import Link, pull
from pdctl.layout.shape import Problem, Shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdctl.engines.versions import Version
    from pdctl.layout.instance import Instance


def check_pair(
    prefill: Shape,
    decode: Shape,
    version: Version,
    pages: tuple[int | None, int | None] = (None, None),
    engine: str = "sglang",
) -> tuple[Problem, ...]:
    """Rules SGLang keeps, or should, between two instances. `pages` are the page sizes given for the two."""
    return tuple(
        Problem(code, explain(code, what, version, engine))
        for code, what in _findings(prefill, decode, pages)
        if rule(code, version) is not None
    )


def _findings(prefill: Shape, decode: Shape, pages: tuple[int | None, int | None]) -> Iterator[tuple[str, str]]:
    if max(prefill.tp, decode.tp) % min(prefill.tp, decode.tp):
        yield "pair-tp-divides", f"prefill tp_size {prefill.tp}, decode tp_size {decode.tp}"
    widths = prefill.attn_tp_size, decode.attn_tp_size
    if max(widths) % min(widths):
        yield "pair-attn-tp-divides", f"prefill attn_tp_size {widths[0]}, decode attn_tp_size {widths[1]}"
    if decode.pp not in (1, prefill.pp):
        yield "pair-pp", f"prefill pp_size {prefill.pp}, decode pp_size {decode.pp}"
    if decode.cp > 1:
        yield "pair-decode-cp", f"decode attn_cp_size {decode.cp}"
    if None not in pages and pages[0] != pages[1]:
        yield "pair-page-size", f"prefill page_size {pages[0]}, decode page_size {pages[1]}"


def cautions(
    prefill: Shape,
    decode: Shape,
    version: Version,
    mla: bool | None,
    env: Mapping[str, str],
    pages: tuple[int | None, int | None] = (None, None),
    embedded: bool = False,
) -> Iterator[Caution]:
    """`mla` None: the model is not known. `env` is what both sides run with."""
    if pages[0] != pages[1] and None in pages:
        one, other = ("prefill", "decode") if pages[0] is not None else ("decode", "prefill")
        said = f"page_size {pages[0] or pages[1]} is given for {one} only"
        yield Caution("page-size-one-side", f"{said}; {other} resolves its own, which must come to the same")
    widths = prefill.attn_tp_size, decode.attn_tp_size
    if widths[0] == widths[1] or mla:
        return
    if embedded:
        sizes = f"attn_tp_size {widths[0]} to {widths[1]}"
        message = f"{sizes}: heads are cut out of each token of a page, which takes longer to move than whole pages"
        yield Caution("gqa-different-tp", message)
        return
    unless = "" if mla is False else "if the model is not MLA, "
    message = f"{unless}sglang warns: {HETEROGENEOUS_TP} (attn_tp_size {widths[0]} to {widths[1]})"
    if STAGING_SPAN.holds(version):
        staged = env.get(STAGING_ENV, "").lower() in ("1", "true", "yes")
        message += f"; {STAGING_ENV} is set, which gathers the heads first" if staged else f"; set {STAGING_ENV}=1"
    yield Caution("gqa-different-tp", message)


def links(
    instances: tuple[Instance, ...], version: Version, mla: bool, kv_heads: int | None, all_cp_ranks: bool
) -> tuple[Link, ...]:
    """Every decode rank's pull from every prefill instance."""
    prefills = [one for one in instances if one.role == "prefill"]
    decodes = [one for one in instances if one.role == "decode"]
    return tuple(
        link
        for prefill in prefills
        for decode in decodes
        for link in pull(
            prefill.name,
            decode.name,
            prefill.shape,
            decode.shape,
            mla=mla,
            kv_heads=kv_heads,
            all_cp_ranks=all_cp_ranks,
            version=version,
        )
    )
