"""The parallel shape of one instance, and what can be wrong with one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Problem(NamedTuple):
    """Why a plan cannot run: `nearest` are the closest shapes that can, each as words to paste."""

    code: str
    message: str
    nearest: tuple[str, ...] = ()


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
        """DP groups a request can be sent to, whichever way they are made (sglang: num_dp_ranks)."""
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


class Words(NamedTuple):
    """How a change is written: as flags of `pdctl plan`, or as `--set` of a topology."""

    shape: Callable[[Shape], str]
    setting: Callable[[str, str], str]


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
