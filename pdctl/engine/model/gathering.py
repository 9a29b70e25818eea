"""Rows of every attention DP group, brought together for the layers that are cut over all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pdctl.engine.model.rows import padded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.engine.model.parallel import Group


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
        """[total, hidden], and padding below (rows.py), from the first rows of each group's [rows, hidden]."""
        own = rows.new_zeros(self._most, rows.shape[1])
        own[: self._count] = rows[: self._count]
        everything = self._group.all_gather_rows(own)
        # What is not a token never reaches a layer: it would cost work, and the experts would have to tell it apart.
        return padded(everything if self._places is None else everything[self._places])

    def own(self, rows: torch.Tensor) -> torch.Tensor:
        """This group's rows out of those of `collect`."""
        return rows[self._start : self._start + self._count]
