"""The rank table of one instance: one row per rank, or per node where a terminal shows many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.render.columns import spans

if TYPE_CHECKING:
    from pdctl.layout.instance_plan import InstancePlan
    from pdctl.layout.shape import RankPlace

SHOWN = 16  # ranks of one instance a terminal shows row by row

# Title, field, and whether it is shown although every rank has a 0 there.
COLUMNS = (
    ("NODE", "node", True),
    ("GPU", "gpu", True),
    ("REPLICA", "dp_rank", False),
    ("PP", "pp_rank", False),
    ("TP", "tp_rank", True),
    ("ATTN_DP", "attn_dp_rank", True),
    ("ATTN_CP", "attn_cp_rank", False),
    ("ATTN_TP", "attn_tp_rank", True),
    ("EP", "moe_ep_rank", True),
    ("MOE_DP", "moe_dp_rank", False),
)


def rank_rows(instance: InstancePlan, full: bool) -> tuple[list[str], list[list[object]]]:
    """Header and rows; `full` shows every rank whatever their number."""
    chosen = [(title, field) for title, field, always in COLUMNS if always or _varies(instance, field)]
    header = [title for title, _ in chosen]
    fields = [field for _, field in chosen]
    if full or len(instance.ranks) <= SHOWN:
        return header, [[_cell(rank, field) for field in fields] for rank in instance.ranks]
    rows: list[list[object]] = []
    for node in range(instance.nnodes):
        ranks = [rank for rank in instance.ranks if rank.node == node]
        rows.append([_run(ranks, field) for field in fields])
    return header, rows


def _varies(instance: InstancePlan, field: str) -> bool:
    if field == "dp_rank":
        return instance.shape.replicas > 1
    return any(getattr(rank, field) for rank in instance.ranks)


def _cell(rank: RankPlace, field: str) -> object:
    value = getattr(rank, field)
    return "cpu" if value is None else value


def _run(ranks: list[RankPlace], field: str) -> str:
    values = [getattr(rank, field) for rank in ranks]
    return "cpu" if None in values else spans(values)
