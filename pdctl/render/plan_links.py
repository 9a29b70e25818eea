"""The link matrix: the prefill ranks each decode rank pulls from, equal rows together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.render.columns import prose, spans, table

if TYPE_CHECKING:
    from pdctl.layout.instance_plan import Plan
    from pdctl.layout.kv_links import KvLink
    from pdctl.render.term import Term


LEGEND = (
    "each decode rank pulls KV from these ranks of its request's prefill DP group, dummies send nothing; "
    "it is done after ANSWERS answers, and a prefill rank sends once WAITS FOR decode ranks have asked"
)


def link_lines(term: Term, plan: Plan) -> list[str]:
    """Rows are decode attention TP ranks: every DP group and every pair of instances pulls alike."""
    groups: dict[tuple[object, ...], list[KvLink]] = {}
    for link in plan.links:
        groups.setdefault(_answer(link), []).append(link)
    staged = any(len(link.prefill_pp_ranks) > 1 or link.decode_pp_rank for link in plan.links)
    prefixed = any(instance.shape.cp > 1 for instance in plan.instances)
    header = ["DECODE", "ATTN_DP", "ATTN_TP", "PULLS FROM", "ATTN_TP RANKS", "DUMMIES", "ANSWERS", "WAITS FOR"]
    sliced = _sliced(plan)
    if sliced:
        header.insert(5, "KV HEADS")
    if staged:
        header += ["PP", "FROM PP"]
    if prefixed:
        header += ["FROM CP"]
    rows: list[list[object]] = []
    for links in groups.values():
        one = links[0]
        row: list[object] = [
            _names([link.decode for link in links]),
            spans([link.decode_attn_dp_rank for link in links]),
            str(one.decode_attn_tp_rank),
            _names([link.prefill for link in links]),
            _listed(one.prefill_ranks),
            _listed(one.dummy_ranks),
            one.required_prefill_response_num,
            one.required_dst_info_num,
        ]
        if sliced:
            row.insert(5, _heads(one, plan))
        if staged:
            row += [str(one.decode_pp_rank), _listed(one.prefill_pp_ranks)]
        if prefixed:
            row += [_listed(one.prefill_cp_ranks)]
        rows.append(row)
    return [*prose(term, "links:", LEGEND, "bold"), *table(term, header, rows)]


def _sliced(plan: Plan) -> bool:
    """Head ranges are told where the two sides cut the heads differently."""
    widths = {instance.attn_tp_size for instance in plan.instances}
    return len(widths) > 1 and any(link.slices for link in plan.links)


def _heads(link: KvLink, plan: Plan) -> str:
    """The heads taken, as each prefill rank numbers its own: `rank 0: 2-3`."""
    parts = [
        f"{part.source}-{part.source + part.heads - 1}" if part.heads > 1 else str(part.source) for part in link.slices
    ]
    return ", ".join(f"{text} of rank {part.prefill_rank}" for text, part in zip(parts, link.slices, strict=True))


def _answer(link: KvLink) -> tuple[object, ...]:
    return (link.decode_attn_tp_rank, link.decode_pp_rank, *link[6:])


def _names(names: list[str]) -> str:
    """`prefill-0..3` for a run of instances."""
    found = list(dict.fromkeys(names))
    if len(found) == 1:
        return found[0]
    return f"{found[0]}..{found[-1].rpartition('-')[2]}"


def _listed(ranks: tuple[int, ...]) -> str:
    """In the order they are contacted; a long run by its ends."""
    if not ranks:
        return "-"
    rising = ranks == tuple(range(ranks[0], ranks[0] + len(ranks)))
    return f"{ranks[0]}..{ranks[-1]}" if rising and len(ranks) > 8 else ",".join(map(str, ranks))
