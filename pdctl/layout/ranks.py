"""Where every rank of an instance stands: node, GPU, and its coordinates in each parallel dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.layout.shape import Shape


class Rank(NamedTuple):
    """`dp_rank` is the number SGLang gives the scheduler process: None without data parallelism.

    `gpu` is None where the rank runs on the CPU. `world_rank` counts within one replica.
    """

    node: int
    gpu: int | None
    pp_rank: int
    tp_rank: int
    attn_dp_rank: int
    attn_cp_rank: int
    attn_tp_rank: int
    moe_ep_rank: int
    moe_dp_rank: int
    moe_tp_rank: int
    dp_rank: int | None
    world_rank: int


def place(shape: Shape, *, on_cpu: bool = False) -> tuple[Rank, ...]:
    """Every rank, in the order the nodes start them. Expects a shape `feasibility.check` has no problem with.

    The arithmetic of sglang 0.5.3 to 0.5.23 is one and the same (data_parallel_controller.py, dp_attention.py); where a
    release has no --attn-cp-size or --moe-dp-size both are 1.
    """
    return tuple(
        _rank(shape, node, replica, pp, tp, on_cpu)
        for node in range(shape.nodes)
        for replica in range(shape.replicas)
        for pp, tp in on_node(shape, node)
    )


def on_node(shape: Shape, node: int) -> Iterator[tuple[int, int]]:
    """(pp_rank, tp_rank) of one node's processes, in the order it starts them."""
    stage = node // shape.nodes_per_stage
    part = node % shape.nodes_per_stage
    for pp in range(shape.stages_per_node * stage, shape.stages_per_node * (stage + 1)):
        for tp in range(shape.tp_per_node * part, shape.tp_per_node * (part + 1)):
            yield pp, tp


def gpu_id(shape: Shape, replica: int, pp_rank: int, tp_rank: int) -> int:
    """sglang scales only the tp part by the step: pipeline stages of one node stand tp_size_per_node apart."""
    return (
        shape.base_gpu_id
        + replica * shape.tp * shape.pp * shape.gpu_id_step
        + (pp_rank % shape.stages_per_node) * shape.tp_per_node
        + (tp_rank % shape.tp_per_node) * shape.gpu_id_step
    )


def _rank(shape: Shape, node: int, replica: int, pp: int, tp: int, on_cpu: bool) -> Rank:
    attn_tp = shape.attn_tp_size
    moe_group = shape.tp // shape.moe_dp  # ranks of one MoE data-parallel group
    moe_tp = moe_group // shape.ep_size
    attn_dp_rank = tp // (attn_tp * shape.cp)
    return Rank(
        node=node,
        gpu=None if on_cpu else gpu_id(shape, replica, pp, tp),
        pp_rank=pp,
        tp_rank=tp,
        attn_dp_rank=attn_dp_rank,
        attn_cp_rank=tp // attn_tp % shape.cp,
        attn_tp_rank=tp % attn_tp,
        moe_ep_rank=tp % moe_group // moe_tp,
        moe_dp_rank=tp // moe_group,
        moe_tp_rank=tp % moe_tp,
        dp_rank=attn_dp_rank if shape.dp_attention else replica if shape.replicas > 1 else None,
        world_rank=shape.tp * pp + tp,
    )
