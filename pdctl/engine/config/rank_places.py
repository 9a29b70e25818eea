"""Where the rank processes of an instance stand: the layout's table, with the replica each belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.layout.shape import RankPlace, place

if TYPE_CHECKING:
    from pdctl.layout.shape import Shape

Key = tuple[int, int, int]  # dp_rank (0 without data parallelism), pp_rank, tp_rank: what a rank's messages carry


class Whereabouts(NamedTuple):
    """`replica` is 0 unless plain data parallelism multiplies the ranks."""

    replica: int
    rank: RankPlace

    @classmethod
    def all(cls, shape: Shape) -> tuple[Whereabouts, ...]:
        """Every rank of the instance, in the order the nodes start them."""
        plain = shape.replicas > 1
        return tuple(cls((rank.dp_rank or 0) if plain else 0, rank) for rank in place(shape))

    @classmethod
    def find(cls, shape: Shape, replica: int, pp_rank: int, tp_rank: int) -> Whereabouts:
        wanted = (replica, pp_rank, tp_rank)
        return next(here for here in cls.all(shape) if (here.replica, here.rank.pp_rank, here.rank.tp_rank) == wanted)

    @property
    def key(self) -> Key:
        return self.rank.dp_rank or 0, self.rank.pp_rank, self.rank.tp_rank
