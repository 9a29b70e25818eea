"""The process groups of one rank: sums, gathers and agreement over torch.distributed; no-ops for a single rank.

The layout decides which ranks belong together (`pdctl.layout.shape`, sglang 0.5.23 dp_attention.py). Every rank of a
replica creates every group, in the same order: torch.distributed requires it.

Gloo gets one network thread for all groups of a process, and one worker per group. By default torch gives every group a
device of its own, whose thread wakes up a hundred times a second whether there is work or not: sixteen idle ranks of
four groups each would take a twentieth of a core.
"""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from pdctl.engine.model.linear import padded
from pdctl.errors import NotReadyError
from pdctl.layout.shape import RankPlace, Shape, place
from pdctl.loopback import fix_of_listening
from pdctl.name_lookup import look_up

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

Cut = tuple[tuple[int, ...], ...]  # world ranks of each group

JOIN_TIMEOUT = 120.0  # seconds until every rank must have called
STEP_TIMEOUT = 300.0  # seconds one collective may take before the group is abandoned
BACKLOG = 2048  # ranks that may wait to be accepted
SHARED = "gloo_shared"
PLAIN = "gloo"


class Group:
    """Some ranks of a replica, in world order. All call the same methods in the same order; alone, each is a no-op."""

    def __init__(
        self,
        members: Sequence[int] = (0,),
        world_rank: int = 0,
        tensors: dist.ProcessGroup | None = None,
        control: dist.ProcessGroup | None = None,
    ) -> None:
        """`members` are world ranks. `tensors` moves tensors of the model's device, `control` small ints on the CPU."""
        self.members = tuple(members)
        self.rank = self.members.index(world_rank)
        self.size = len(self.members)
        self._tensors = tensors
        self._control = control

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks, in place; the same bits on every rank and, on a CPU, at every position in the tensor.

        Two ranks need nothing special. With more, gloo sums each part of a tensor in a different order, so a row would
        depend on how many others are beside it. Here the parts are gathered and summed in rank order.
        """
        if self.size > 2 and tensor.device.type == "cpu":
            first, *others = self._all_gather(tensor)
            for part in others:
                first += part
            tensor.copy_(first)
        elif self.size > 1:
            dist.all_reduce(tensor, group=self._tensors)
        return tensor

    def all_gather_last(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return […, n] of every rank, side by side in rank order: […, n * size]."""
        return torch.cat(self._all_gather(tensor), dim=-1) if self.size > 1 else tensor

    def all_gather_rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return [n, …] of every rank, one below the other in rank order: [n * size, …]. `n` is the same everywhere."""
        return torch.cat(self._all_gather(tensor)) if self.size > 1 else tensor

    def _all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self.size)]
        dist.all_gather(parts, tensor.contiguous(), group=self._tensors)
        return parts

    def broadcast(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        """Copy the tensor of rank `source` of this group into the others' in place."""
        if self.size > 1:
            dist.broadcast(tensor, self.members[source], group=self._tensors)
        return tensor

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Send to rank `to` of this group, which calls `receive`."""
        dist.send(tensor.contiguous(), self.members[to], group=self._tensors)

    def receive(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        """Receive into `tensor` from rank `source` of this group."""
        dist.recv(tensor, self.members[source], group=self._tensors)
        return tensor

    def min_ints(self, values: Sequence[int]) -> list[int]:
        """Return the element-wise minimum over the ranks: all of them agree on the slowest one's state."""
        if self.size == 1 or not values:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MIN, group=self._control)
        return [int(value) for value in tensor.tolist()]

    def gather_ints(self, values: Sequence[int]) -> list[tuple[int, ...]]:
        """Return what every rank passed, in rank order; all pass equally many values."""
        if self.size == 1:
            return [tuple(values)]
        tensor = torch.tensor(values, dtype=torch.int64)
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor, group=self._control)
        return [tuple(int(value) for value in part.tolist()) for part in parts]

    def share_ints(self, values: Sequence[int], source: int) -> list[int]:
        """Return the values of rank `source` of this group; the others pass as many, with any content."""
        if self.size == 1 or not values:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.broadcast(tensor, self.members[source], group=self._control)
        return [int(value) for value in tensor.tolist()]

    def barrier(self) -> None:
        """Return when every rank has called this."""
        if self.size > 1:
            dist.barrier(group=self._control)


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups that `rank` works in.

    tp        its pipeline stage: MLP and experts are summed over it
    attn_tp   the same stage and attention DP group: they share the heads of the same tokens
    attn_dp   the same stage and attention TP rank, one of each attention DP group: together they hold every token
    replica   the same attention DP group over all stages: they run the same schedule and agree on every room
    pp        the same TP rank over all stages: hidden states go from one to the next
    """

    shape: Shape
    rank: RankPlace
    tp: Group
    attn_tp: Group
    attn_dp: Group
    replica: Group
    pp: Group

    @classmethod
    def single(cls) -> Groups:
        """Return the groups of a single rank, without torch.distributed."""
        shape = Shape()
        return cls(shape, place(shape)[0], Group(), Group(), Group(), Group(), Group())

    @classmethod
    def join(
        cls,
        shape: Shape,
        tp_rank: int,
        pp_rank: int = 0,
        device: torch.device | str = "cpu",
        init_method: str = "",
        join_timeout: float = JOIN_TIMEOUT,
    ) -> Groups:
        """Meet the other ranks of this replica at `init_method` (tcp://host:port). Raise NotReadyError, naming it."""
        ranks = [rank for rank in place(shape._replace(replicas=1)) if rank.world_rank < shape.tp * shape.pp]
        own = next(rank for rank in ranks if (rank.tp_rank, rank.pp_rank) == (tp_rank, pp_rank))
        on_gpu = torch.device(device).type == "cuda"
        if len(ranks) > 1:
            _meet(own.world_rank, len(ranks), init_method, join_timeout, on_gpu)

        made: dict[Cut, Group] = {}
        polled = _cut(ranks, lambda rank: rank.attn_dp_rank)

        def split(key: Callable[[RankPlace], Hashable]) -> Group:
            cut = _cut(ranks, key)
            if cut not in made:  # groups with the same ranks are shared: each costs connections and a thread
                made[cut] = _open(cut, own, on_gpu, apart=cut == polled)
            return made[cut]

        return cls(
            shape,
            own,
            tp=split(lambda rank: rank.pp_rank),
            attn_tp=split(lambda rank: (rank.pp_rank, rank.attn_dp_rank)),
            attn_dp=split(lambda rank: (rank.pp_rank, rank.attn_cp_rank, rank.attn_tp_rank)),
            replica=split(lambda rank: rank.attn_dp_rank),
            pp=split(lambda rank: rank.tp_rank),
        )

    @property
    def first_stage(self) -> bool:
        return self.pp.rank == 0

    @property
    def last_stage(self) -> bool:
        return self.pp.rank == self.pp.size - 1

    def close(self) -> None:
        """Leave every group. Safe to call twice; other ranks' pending calls fail."""
        if dist.is_initialized():
            dist.destroy_process_group()


def _meet(world_rank: int, world_size: int, init_method: str, join_timeout: float, on_gpu: bool) -> None:
    where = urlsplit(init_method)
    host, port = where.hostname or "", where.port or 0
    timeout = timedelta(seconds=join_timeout)
    listening = None if world_rank else _listen(host, port, f"rank 0 of {world_size} cannot listen at {init_method}")
    try:
        store = TCPStore(host, port, world_size, world_rank == 0, timeout, master_listen_fd=listening)
        dist.init_process_group(
            "nccl" if on_gpu else backend(), store=store, rank=world_rank, world_size=world_size, timeout=timeout
        )
    except (dist.DistError, RuntimeError) as error:
        raise NotReadyError(
            f"rank {world_rank} of {world_size} waited {join_timeout:g} s for the others at {init_method}: {error}"
        ) from error


def _listen(host: str, port: int, failed: str) -> int:
    """Return a socket that listens where the ranks meet. Raise NotReadyError, which begins with `failed`.

    torch itself would listen on all addresses of this machine, also where `host` is the loopback address.
    """
    try:
        found = look_up(host, port)[0]
        with socket.socket(found.family, found.kind, found.proto) as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(found.sockaddr)
            listening.listen(BACKLOG)
            return listening.detach()
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        why = "the port of --dist-init-addr is taken" if taken else error.strerror or str(error)
        fix = "give another --dist-init-addr, the same to every node; without one, on one node, start again"
        raise NotReadyError(f"{failed}, where the ranks meet: {why}", fix_of_listening(error, host, fix)) from None


def _cut(ranks: Sequence[RankPlace], key: Callable[[RankPlace], Hashable]) -> Cut:
    """Split the world by `key`: the members of every group, in world order."""
    found: dict[Hashable, list[int]] = {}
    for rank in ranks:
        found.setdefault(key(rank), []).append(rank.world_rank)
    return tuple(tuple(sorted(members)) for members in found.values())


def _open(cut: Cut, own: RankPlace, on_gpu: bool, apart: bool) -> Group:
    """Return the group of `own`; every rank creates all of them.

    `apart` gives tensors a group of their own: a replica polls its rooms while a pass computes on another thread, and
    two collectives at once over the same connections would take one another's bytes.
    """
    mine = Group((own.world_rank,), own.world_rank)
    for members in cut:
        if len(members) == 1:
            continue
        timeout = timedelta(seconds=STEP_TIMEOUT)
        # Small ints go over gloo on every device: a poll must not synchronise the GPU.
        control = dist.new_group(members, backend=backend(), timeout=timeout)
        tensors = control
        if on_gpu or apart:
            tensors = dist.new_group(members, backend="nccl" if on_gpu else backend(), timeout=timeout)
        if own.world_rank in members:
            mine = Group(members, own.world_rank, tensors, control)
    return mine


class Gathering:
    """Which group brings how many rows; the same in every group."""

    def __init__(self, group: Group, counts: Sequence[int], device: torch.device) -> None:
        """`group` has one rank of each attention DP group; `counts` are their rows, in its rank order."""
        self._group = group
        self._count = counts[group.rank]
        self._start = sum(counts[: group.rank])
        self._most = max(counts)
        self._places: torch.Tensor | None = None
        self.total = sum(counts)
        if self.total < self._most * len(counts):
            places = [rank * self._most + row for rank, count in enumerate(counts) for row in range(count)]
            self._places = torch.tensor(places, device=device)

    def collect(self, rows: torch.Tensor) -> torch.Tensor:
        """Collect the first rows of each group's [rows, hidden]: [total, hidden], padded below (linear.py)."""
        own = rows.new_zeros(self._most, rows.shape[1])
        own[: self._count] = rows[: self._count]
        everything = self._group.all_gather_rows(own)
        # Only tokens reach a layer: anything else would cost work, and the experts would have to tell it apart.
        return padded(everything if self._places is None else everything[self._places])

    def own(self, rows: torch.Tensor) -> torch.Tensor:
        """Return this group's rows of what `collect` returned."""
        return rows[self._start : self._start + self._count]


@lru_cache(maxsize=1)
def backend() -> str:
    """Return the name to give torch.distributed; plain gloo if this torch does not let its options be set."""
    kind: Any = getattr(dist, "ProcessGroupGloo", None)
    options: Any = getattr(kind, "_Options", None)
    if not all(hasattr(options, name) for name in ("_devices", "_threads", "_timeout")):
        return PLAIN
    devices: list[Any] = []

    def create(given: Any, _: object = None) -> object:  # noqa: ANN401  # torch names no type for it
        if not devices:
            named = [each for each in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if each]  # as torch reads it
            devices.extend(kind.create_device(interface=each) for each in named)
        if not devices:
            devices.append(kind.create_default_device())
        chosen = options()
        chosen._devices, chosen._threads, chosen._timeout = devices, 1, given.timeout
        return kind(given.store, given.group_rank, given.group_size, chosen)

    dist.Backend.register_backend(SHARED, create, extended_api=True, devices=["cpu"])
    return SHARED
