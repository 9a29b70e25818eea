"""The parallel shape of one instance, what can be wrong with one, and where its ranks and its layers stand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Field, flag of `pdctl plan`, and the value that needs no flag.
_FLAGS: tuple[tuple[str, str, object], ...] = (
    ("tp", "--tp", None),
    ("dp", "--dp", 1),
    ("pp", "--pp", 1),
    ("ep", "--ep", 1),
    ("cp", "--attn-cp", 1),
    ("moe_dp", "--moe-dp", 1),
    ("replicas", "--replicas", 1),
    ("nnodes", "--nnodes", None),
    ("gpus_per_host", "--gpus-per-host", 8),
    ("base_gpu_id", "--base-gpu-id", 0),
    ("gpu_id_step", "--gpu-id-step", 1),
)


class Problem(NamedTuple):
    """Why a plan cannot run: `nearest` are the closest shapes that can, each as words to paste."""

    code: str
    message: str
    nearest: tuple[str, ...] = ()


class Caution(NamedTuple):
    """Something the user should know before the plan runs, although it may work."""

    code: str
    message: str


class Shape(NamedTuple):
    """Sizes as SGLang counts them: `tp` is every GPU of one pipeline stage; `dp` (attention width) and `cp` divide it.

    `replicas` multiplies the GPUs instead (plain data parallel: no attention DP). `nnodes` None: as many as needed.
    """

    tp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    cp: int = 1
    moe_dp: int = 1
    replicas: int = 1
    nnodes: int | None = None
    gpus_per_host: int = 8
    base_gpu_id: int = 0
    gpu_id_step: int = 1
    deepep: bool = False  # the DeepEP all-to-all: every rank holds whole experts, so ep is tp

    @property
    def dp_attention(self) -> bool:
        return self.dp > 1

    @property
    def ep_size(self) -> int:
        return self.tp if self.deepep else self.ep

    @property
    def attn_tp_size(self) -> int:
        return self.tp // self.dp // self.cp

    @property
    def moe_tp_size(self) -> int:
        return self.tp // self.ep_size // self.moe_dp

    @property
    def dp_ranks(self) -> int:
        """DP groups a request can be sent to: replicas and attention groups alike (sglang: num_dp_ranks)."""
        return self.replicas * self.dp

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.replicas

    @property
    def nodes(self) -> int:
        return self.nnodes if self.nnodes is not None else max(1, -(-self.gpus // self.gpus_per_host))

    @property
    def nodes_per_stage(self) -> int:
        """sglang: nnodes_per_tp_group."""
        return max(self.nodes // self.pp, 1)

    @property
    def stages_per_node(self) -> int:
        """sglang: pp_size_per_node."""
        return max(self.pp // self.nodes, 1)

    @property
    def tp_per_node(self) -> int:
        """sglang: tp_size_per_node."""
        return self.tp // self.nodes_per_stage


class Placement(NamedTuple):
    """How an instance spreads its weights, beyond its shape (sglang flags of the same names)."""

    redundant_experts: int = 0  # --ep-num-redundant-experts
    moe_dense_tp: int | None = None  # --moe-dense-tp-size
    dp_lm_head: bool = False  # --enable-dp-lm-head


PLAIN = Placement()


class ShapeWords(NamedTuple):
    """How a change is written: as flags of `pdctl plan`, or as `--set` of a topology."""

    shape: Callable[[Shape], str]
    setting: Callable[[str, str], str]


def flags(shape: Shape, side: str = "") -> str:
    """The shape as flags of `pdctl plan`; `side` is "" or "decode-"."""
    words: list[str] = []
    for field, flag, plain in _FLAGS:
        value = getattr(shape, field)
        if field == "tp" or value != plain:
            words += [flag.replace("--", f"--{side}", 1), str(value)]
    if shape.deepep:
        words.append(f"--{side}deepep")
    return " ".join(words)


class RankPlace(NamedTuple):
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


def place(shape: Shape, *, on_cpu: bool = False) -> tuple[RankPlace, ...]:
    """Every rank, in the order the nodes start them. Expects a shape that `feasibility.broken_rules` accepts.

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
    """sglang scales only the tp part by the step: pipeline stages of one node are tp_size_per_node GPUs apart."""
    return (
        shape.base_gpu_id
        + replica * shape.tp * shape.pp * shape.gpu_id_step
        + (pp_rank % shape.stages_per_node) * shape.tp_per_node
        + (tp_rank % shape.tp_per_node) * shape.gpu_id_step
    )


def _rank(shape: Shape, node: int, replica: int, pp: int, tp: int, on_cpu: bool) -> RankPlace:
    attn_tp = shape.attn_tp_size
    moe_group = shape.tp // shape.moe_dp  # ranks of one MoE data-parallel group
    moe_tp = moe_group // shape.ep_size
    attn_dp_rank = tp // (attn_tp * shape.cp)
    return RankPlace(
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


def stage_layers(layers: int, pp: int, stage: int) -> range:
    """The layers of stage `stage`. Raises ValueError where a stage would hold none."""
    if not 1 <= pp <= layers:
        raise ValueError(f"{layers} layers over {pp} pipeline stages: every stage needs at least one layer")
    share, more = divmod(layers, pp)
    short = pp - more  # stages before the longer ones
    first = stage * share + max(0, stage - short)
    return range(first, first + share + (stage >= short))
