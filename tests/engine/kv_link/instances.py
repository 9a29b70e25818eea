"""Whole instances of one model: all the ranks of a shape, whose pools hold their parts of one KV cache."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from pdctl.engine.decode.decode_manager import DecodeManager
from pdctl.engine.decode.receiver import Receiver
from pdctl.engine.kv_link.room_state import KVPoll
from pdctl.engine.kvcache.pool_geometry import Layout, PoolGeometry
from pdctl.engine.prefill.prefill_manager import PrefillManager
from pdctl.engine.prefill.sender import Sender
from pdctl.layout.kv_links import KvModel, PoolSeat
from tests.engine.kv_link.rig import DECODE, HOST, PATIENCE, PREFILL, Side, bootstrap, open_side, pages

PAGES = 24
PAGE_SIZE = 4
HEAD_DIM = 8
ITEMSIZE = 4


class Grid(NamedTuple):
    """The shape of one DP group of an instance."""

    tp: int = 1
    pp: int = 1

    @property
    def seats(self) -> list[PoolSeat]:
        return [PoolSeat(self.tp, tp, self.pp, stage) for stage in range(self.pp) for tp in range(self.tp)]


def cache(model: KvModel, seed: int = 7) -> np.ndarray:
    """One model's whole KV cache: [slab, page, token, head, byte]."""
    shape = (model.layers * model.slabs_per_layer, PAGES, PAGE_SIZE, model.kv_heads, HEAD_DIM * ITEMSIZE)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def held(model: KvModel, seat: PoolSeat, whole: np.ndarray) -> np.ndarray:
    """The part of a cache that a rank holds."""
    slabs, heads = model.slabs(seat), model.heads(seat)
    return whole[slabs.start : slabs.stop, :, :, heads.start : heads.stop]


@dataclass
class RankSide:
    """One rank with its pool as an array [slab, page, token, head, byte]."""

    seat: PoolSeat
    side: Side
    pool: np.ndarray

    @classmethod
    def open(cls, kind: type, config: Any, model: KvModel, seat: PoolSeat, layout: Layout) -> RankSide:
        slabs, heads = model.slabs(seat), model.heads(seat)
        shape = PoolGeometry(
            layers=len(slabs) // model.slabs_per_layer,
            slabs_per_layer=model.slabs_per_layer,
            num_pages=PAGES,
            page_size=PAGE_SIZE,
            kv_heads=len(heads),
            head_dim=HEAD_DIM,
            itemsize=ITEMSIZE,
            layout=layout,
        )
        config = replace(
            config,
            model="tiny",
            layers=model.layers,
            kv_heads=model.kv_heads,
            attn_tp_rank=seat.attn_tp_rank,
            attn_tp_size=seat.attn_tp,
            pp_rank=seat.pp_rank,
            pp_size=seat.pp,
        )
        side = open_side(kind, config, shape, seed=2)
        strides = (shape.slab_stride, shape.page_stride, shape.token_stride, shape.head_stride, 1)
        items = (shape.num_slabs, PAGES, PAGE_SIZE, len(heads), HEAD_DIM * ITEMSIZE)
        return cls(seat, side, np.ndarray(items, np.uint8, side.pool.data, strides=strides))


@dataclass
class Instance:
    """One DP group's ranks, stage by stage."""

    model: KvModel
    ranks: list[RankSide]

    def close(self) -> None:
        for rank in self.ranks:
            rank.side.manager.close()

    def fill(self, whole: np.ndarray) -> None:
        for rank in self.ranks:
            rank.pool[:] = held(self.model, rank.seat, whole)

    # --- as a prefill

    def senders(self, room: int, **more: Any) -> list[Sender]:
        return [rank.side.manager.sender(room, f"rid-{room}", **more) for rank in self.ranks]  # type: ignore[union-attr]

    def send(
        self, senders: list[Sender], *chunks: np.ndarray, last: bool = True, metadata: bytes = b"first token"
    ) -> None:
        """As the schedulers do: the same chunks on every rank. `last`: the last of them is the room's."""
        for sender in senders:
            for number, chunk in enumerate(chunks, 1):
                ends = last and number == len(chunks)
                sender.send(chunk, ends, metadata if ends else b"")

    # --- as a decode

    def receivers(self, room: int, port: int, **more: Any) -> list[Receiver]:
        return [rank.side.manager.receiver(room, f"rid-{room}", HOST, port, **more) for rank in self.ranks]  # type: ignore[union-attr]

    def announce(self, receivers: list[Receiver], pages: np.ndarray) -> None:
        for rank, receiver in zip(self.ranks, receivers, strict=True):
            rank.side.until(receiver, KVPoll.WAITING_FOR_INPUT)
            receiver.send_metadata(pages)

    # --- as both

    def until(self, rooms: list[Any], state: KVPoll, seconds: float = PATIENCE) -> None:
        for rank, room in zip(self.ranks, rooms, strict=True):
            rank.side.until(room, state, seconds)


@contextlib.contextmanager
def instance(
    role: str, model: KvModel, grid: Grid, port: int = 0, layout: Layout = Layout.LAYER_MAJOR, **settings: Any
) -> Iterator[Instance]:
    kind, config = (PrefillManager, PREFILL) if role == "prefill" else (DecodeManager, DECODE)
    config = replace(config, bootstrap_port=port, **settings)
    made = Instance(model, [])
    try:
        for seat in grid.seats:
            made.ranks.append(RankSide.open(kind, config, model, seat, layout))
        for rank in made.ranks if role == "prefill" else ():
            assert rank.side.manager.registered.wait(PATIENCE), rank.side.manager.registration_failure  # type: ignore[union-attr]
        yield made
    finally:
        made.close()


class Pair(NamedTuple):
    """A prefill and a decode instance that find each other by the bootstrap server at `port`."""

    prefill: Instance
    decode: Instance
    port: int

    def open(self, room: int = 1) -> tuple[list[Sender], list[Receiver]]:
        return self.prefill.senders(room), self.decode.receivers(room, self.port)

    def announced(self, room: int = 1) -> tuple[list[Sender], list[Receiver]]:
        """Both ends of a room whose page list has come to every prefill rank that it is for."""
        senders, receivers = self.open(room)
        self.decode.announce(receivers, pages(1, 2))
        self.prefill.until(senders, KVPoll.WAITING_FOR_INPUT)
        return senders, receivers


@contextlib.contextmanager
def pair(model: KvModel, near: Grid, far: Grid, **settings: Any) -> Iterator[Pair]:
    """`near` is the prefill's shape, `far` the decode's; `settings` are the decode's."""
    with (
        bootstrap() as server,
        instance("prefill", model, near, server.port) as prefill,
        instance("decode", model, far, **settings) as decode,
    ):
        yield Pair(prefill, decode, server.port)


SRC, DST = pages(3, 4, 5, 9, 20), pages(7, 8, 11, 1, 2)


def run_room(prefill: Instance, decode: Instance, room: int, port: int) -> tuple[list, list]:
    senders, receivers = prefill.senders(room), decode.receivers(room, port)
    decode.announce(receivers, DST)
    prefill.send(senders, SRC[:2], SRC[2:])
    decode.until(receivers, KVPoll.SUCCESS)
    prefill.until(senders, KVPoll.SUCCESS)
    return senders, receivers


def assert_moved(decode: Instance, whole: np.ndarray, before: list[np.ndarray]) -> None:
    for rank, old in zip(decode.ranks, before, strict=True):
        expected = old.copy()
        expected[:, DST] = held(decode.model, rank.seat, whole)[:, SRC]
        assert np.array_equal(rank.pool, expected), rank.seat
