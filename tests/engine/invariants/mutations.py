"""Broken builds: each one a mistake somebody could make, put in by a patch, that the state machine has to find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pdctl.engine.decode.decode_role import DecodeRole
from pdctl.engine.decode.receiver import KvReceiver
from pdctl.engine.kvcache.allocator import PageTable
from pdctl.engine.prefill.prefill_role import PrefillRole
from pdctl.engine.prefill.sender import KvSender
from pdctl.engine.scheduler.resources import Resources
from tests.engine.invariants.instance import SimGroup

Patch = Callable[[pytest.MonkeyPatch], None]


def decode_frees_without_waiting(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DecodeRole, "_drain", lambda self, req: self._release(req))


def prefill_frees_without_waiting(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrefillRole, "_drain", lambda self, req: self._release(req))


def ranks_do_not_agree(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimGroup, "min_ints", lambda self, values: list(values))


def pages_are_released_twice(patch: pytest.MonkeyPatch) -> None:
    release = Resources.release

    def twice(self: Resources, req: Any) -> None:
        row, pages = req.row, req.pages
        release(self, req)
        if req.row < 0 <= row and req.failed:
            self.allocator.free(pages)

    patch.setattr(Resources, "release", twice)


def abort_is_acknowledged_too_early(patch: pytest.MonkeyPatch) -> None:
    def give_up(self: KvSender, session: str, failure: Any, acknowledge: Callable[[], None]) -> None:
        acknowledge()
        self._acks[session] = lambda: None
        self.fail(failure)

    patch.setattr(KvSender, "give_up", give_up)


def a_decode_waits_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KvReceiver, "_overdue", lambda self: None)


def an_end_is_told_twice(patch: pytest.MonkeyPatch) -> None:
    release = PrefillRole._release

    def twice(self: PrefillRole, req: Any) -> None:
        if req.failed and req.row >= 0:
            self.resources.emit(req, [])
        release(self, req)

    patch.setattr(PrefillRole, "_release", twice)


def the_cache_and_a_request_both_free(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PageTable, "lend", lambda self, row, start, stop: None)


# By a few examples, whatever the seed. The others take hundreds; test_orders.py has an order of its own for most.
FOUND_SOON: tuple[Patch, ...] = (
    ranks_do_not_agree,
    pages_are_released_twice,
    the_cache_and_a_request_both_free,
)
FOUND_LATER: tuple[Patch, ...] = (
    decode_frees_without_waiting,
    prefill_frees_without_waiting,
    abort_is_acknowledged_too_early,
    a_decode_waits_for_ever,
    an_end_is_told_twice,
)
