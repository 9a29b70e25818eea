"""A prefill that computes while its weights arrive, and hands on what it has begun: ZigZag (docs/elastic.md).

It computes each batch as far as it has layers and parks it there. Whenever a layer has arrived the oldest batch goes
on first, else a younger one. An old prefill that is idle takes the oldest batch over, at a layer boundary, and computes
the rest; once all layers are there it takes the second oldest, so that both work towards each other until they meet.

    live.admit(batch, step_ns)             while live.room(now_ns)
    end_ns = live.begin_layer(now_ns)      whenever it may be idle; None: nothing to compute now
    done = live.end_layer(now_ns)          at live.busy_until_ns
    live.layers_arrived(count)             as the loads say
    handed = live.relay(now_ns)            for an old prefill that is idle; None: nothing now, ask after the next change
    live.over                              nothing is left to share: it goes on alone, as any prefill
"""

from __future__ import annotations

from typing import Generic, TypeVar

from pdctl.quick_definitions import NamedTuple
from pdctl.simulation.kernel import SECOND

Batch = TypeVar("Batch")


class AdmissionLimit(NamedTuple):
    """How many batches may be parked, `elapsed_ns` after the load has begun: each waits for an old prefill.

    BlitzScale begins with 4 and takes one away each 200 ms (its comment says 100), down to 2.
    """

    first: int = 4
    least: int = 2
    each_ns: int = SECOND // 5

    def at(self, elapsed_ns: int) -> int:
        return max(self.least, self.first - elapsed_ns // self.each_ns)


class LiveBatch(Generic[Batch]):
    """A batch whose whole step takes `step_ns`; the layers before `layer` are computed."""

    __slots__ = ("batch", "layer", "step_ns")

    def __init__(self, batch: Batch, step_ns: int) -> None:
        self.batch, self.step_ns, self.layer = batch, step_ns, 0

    def left_ns(self, layers: int, layer: int) -> int:
        """What the layers from `layer` on take."""
        return self.step_ns - self.step_ns * layer // layers


class HandedOver(Generic[Batch]):
    """A batch that the old prefill computes from `layer` on, which takes `left_ns` from `at_ns` on.

    The KV cache of the layers before it is on the new prefill.
    """

    __slots__ = ("at_ns", "batch", "layer", "left_ns")

    def __init__(self, batch: Batch, layer: int, at_ns: int, left_ns: int) -> None:
        self.batch, self.layer, self.at_ns, self.left_ns = batch, layer, at_ns, left_ns


class LivePrefill(Generic[Batch]):
    """One new prefill, from the start of its load."""

    def __init__(self, layers: int, begun_ns: int, limit: AdmissionLimit | None = None) -> None:
        self.layers, self.begun_ns, self.limit = layers, begun_ns, limit or AdmissionLimit()
        self.arrived = 0
        self.busy_until_ns = -1  # the end of the layer that it computes
        self._parked: list[LiveBatch[Batch]] = []  # by arrival, the one that it computes too
        self._current: LiveBatch[Batch] | None = None  # whose layer it computes, or computed last
        self._place = 0  # in `_parked`, of the one it computed last
        self._busy = False

    @property
    def loaded(self) -> bool:
        return self.arrived == self.layers

    @property
    def over(self) -> bool:
        """Whether all layers are there and at most one batch is left, which it finishes itself."""
        return self.loaded and len(self._parked) <= 1

    @property
    def batches(self) -> tuple[LiveBatch[Batch], ...]:
        """By arrival; where it is busy with one, `busy_until_ns` is the end of one more of its layers."""
        return tuple(self._parked)

    def room(self, now_ns: int) -> int:
        """How many more batches it may take now; none once all layers are there, before it is over."""
        return 0 if self.loaded else max(0, self.limit.at(now_ns - self.begun_ns) - len(self._parked))

    def admit(self, batch: Batch, step_ns: int) -> None:
        self._parked.append(LiveBatch(batch, step_ns))

    def layers_arrived(self, count: int) -> None:
        """It has `count` layers now."""
        self.arrived = count

    def begin_layer(self, now_ns: int) -> int | None:
        """Begin the next layer, if it computes none and one can be computed; return when that ends."""
        if self._busy:
            return None
        chosen = self._choose()
        if chosen is None:
            return None
        self._current = chosen
        self._place = self._parked.index(chosen)
        layer_ns = chosen.left_ns(self.layers, chosen.layer) - chosen.left_ns(self.layers, chosen.layer + 1)
        self._busy, self.busy_until_ns = True, now_ns + layer_ns
        return self.busy_until_ns

    def end_layer(self, now_ns: int) -> Batch | None:
        """At `busy_until_ns`, the end of the layer that it computes: return the batch if that was its last one."""
        if not self._busy or now_ns < self.busy_until_ns:
            return None
        self._busy = False
        current = self._current
        if current is None:  # handed over
            return None
        current.layer += 1
        if current.layer < self.layers:
            return None
        self._parked.remove(current)
        self._current = None
        return current.batch

    def relay(self, now_ns: int) -> HandedOver[Batch] | None:
        """The batch that an idle old prefill takes over now, or when its layer under way has ended."""
        for place, one in enumerate(self._parked):
            if place and not self.loaded:
                break
            if self.loaded and not place:
                continue
            busy = self._busy and one is self._current
            layer, at_ns = one.layer, now_ns
            if busy:
                layer, at_ns = one.layer + 1, self.busy_until_ns
            if layer == self.layers:  # it is about to be complete
                continue
            del self._parked[place]
            self._place -= place < self._place
            if one is self._current:
                self._current = None
            return HandedOver(one.batch, layer, at_ns, one.left_ns(self.layers, layer))
        return None

    def _choose(self) -> LiveBatch[Batch] | None:
        """The oldest if it can go on, else the one it computed last, else the next younger one, round and round."""
        parked = self._parked
        if not parked or parked[0].layer < self.arrived:
            return parked[0] if parked else None
        if self._current is not None and self._current.layer < self.arrived:
            return self._current
        begin = self._place + 1 if self._current is not None else self._place
        for one in (*parked[begin:], *parked[:begin]):
            if one.layer < self.arrived:
                return one
        return None
