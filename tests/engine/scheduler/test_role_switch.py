"""A rank takes the other role and back, over the same weights, pool and transport; both sides' turns in one thread."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from pdctl.engine.config.instance_args import ReplicaRank, ServerArgs
from pdctl.engine.decode.decode_role import DecodeRole
from pdctl.engine.ipc.messages import NOT_IDLE, UNHEALTHY, Switched, SwitchRole
from pdctl.engine.prefill import registration
from pdctl.engine.prefill.prefill_role import PrefillRole
from pdctl.engine.scheduler import scheduler_rank as ranks
from pdctl.engine.scheduler.loop import Scheduler
from pdctl.engine.scheduler.role import RoleSwitch
from pdctl.engine.scheduler.scheduler_rank import Rank
from tests.engine.kv_link.rig import Bootstrap, Woken
from tests.engine.scheduler.rig import HOST, Box, Station, ask, settings, turns_until, unified, with_fields


class Bell(Box):
    """The mailbox of a rank that its KV manager can wake."""

    def __init__(self, woken: Woken) -> None:
        super().__init__()
        self.wake = woken.event.set


class Switching(Station):
    """A rank as `pdctl.engine.scheduler` puts it together, with a bootstrap server of its own."""

    def __init__(self, args: ServerArgs, server: Bootstrap) -> None:
        self.args, self.server, self.woken = args, server, Woken()
        self.box = Bell(self.woken)
        self.rank = Rank(args, ReplicaRank.all(args.shape)[0], self.box, "")  # type: ignore[arg-type]
        self.resources, self.transport = self.rank._resources, self.rank._transport
        switch = RoleSwitch(self.resources, self.rank._become)
        self.scheduler = Scheduler(self.resources, self.rank._take_role(), self.box, switch)  # type: ignore[arg-type]
        self.answer, self.logprobs = defaultdict(list), defaultdict(list)
        self.finish, self.meta, self.told = {}, {}, []
        self.flushed, self.reports = [], []
        self._agreed = None

    @property
    def role(self) -> object:
        return self.scheduler._role

    @property
    def manager(self) -> object:
        return self.rank._manager

    def switch(self, role: str, *, commit: bool = True) -> Switched:
        self.box.requests.append(SwitchRole("s", role, commit))
        self._agreed = self.scheduler._take_turn(self._agreed)
        (answer,) = [reply for reply in self.box.replies if isinstance(reply, Switched)]
        self.box.replies.clear()
        if answer.ok and commit and role == "decode":
            self.server.server.table.clear()  # as the HTTP process does
        return answer


@pytest.fixture
def fleet() -> Iterator[tuple[Switching, Switching, Switching]]:
    """A prefill, a prefill that will switch, and a decode."""
    with contextlib.ExitStack() as stack:
        made = []
        for mode in ("prefill", "prefill", "decode"):
            server = Bootstrap()
            stack.callback(server.close)
            args = settings(mode, enable_pd_role_switch=True, disaggregation_bootstrap_port=server.port)
            station = Switching(args, server)
            stack.callback(station.close)
            made.append(station)
        yield tuple(made)
        for station in made:
            station.resources.check_idle()


def paired(prefill: Switching, decode: Switching, rid: str, room: int, prompt: int = 50) -> list[int]:
    """What the decode answers to one request that both sides get."""
    request = with_fields(ask(rid, prompt, room=room), bootstrap_host=HOST, bootstrap_port=prefill.server.port)
    for side in (prefill, decode):
        side.box.requests.append(request)
    turns_until([prefill, decode], "the answer", lambda: all(rid in side.finish for side in (prefill, decode)))
    assert {side.finish[rid].type for side in (prefill, decode)} == {"length"}
    turns_until([prefill, decode], "the end of the room", lambda: prefill.idle and decode.idle)
    return decode.answer[rid]


def test_there_and_back(fleet: tuple[Switching, Switching, Switching]) -> None:
    """The decode that knew the prefill before finds the new one, and every answer is a single rank's."""
    first, turning, decode = fleet
    with unified() as alone:
        alone.run(ask("0", 50))
        reference = alone.answer["0"]
    pages, memory = turning.resources.num_pages, turning.rank._pool.buffer.data_ptr()
    assert paired(turning, decode, "1", 11) == reference
    assert turning.switch("decode") == Switched("s", 0, True, "", False)
    assert isinstance(turning.role, DecodeRole)
    assert paired(first, turning, "2", 12) == reference
    assert turning.switch("prefill").ok
    assert isinstance(turning.role, PrefillRole)
    assert paired(turning, decode, "3", 13) == reference
    assert (turning.resources.num_pages, turning.rank._pool.buffer.data_ptr()) == (pages, memory)
    assert turning.resources.available_pages == pages


def test_what_it_computed_before_is_forgotten(fleet: tuple[Switching, Switching, Switching]) -> None:
    _, turning, decode = fleet
    paired(turning, decode, "r", 21)
    assert turning.resources.prefix.pages
    turning.switch("decode")
    assert turning.resources.prefix is None  # a decode keeps none, unless it is asked to
    assert turning.resources.allocator.used_pages == 0
    turning.switch("prefill")
    assert turning.resources.prefix.pages == 0


def test_a_room_keeps_it_what_it_is(fleet: tuple[Switching, Switching, Switching]) -> None:
    _, turning, _ = fleet
    waiting = with_fields(ask("r", 20, room=31), bootstrap_host=HOST, bootstrap_port=turning.server.port)
    turning.turn(waiting)
    role = turning.role
    for commit in (False, True):
        assert turning.switch("decode", commit=commit) == Switched("s", 0, False, NOT_IDLE, True)
    assert turning.role is role
    turning.scheduler._role.abort(lambda req: True)
    turns_until([turning], "the end of the room", lambda: turning.idle)
    assert turning.switch("decode").ok


def test_a_question_changes_nothing(fleet: tuple[Switching, Switching, Switching]) -> None:
    _, turning, decode = fleet
    role, manager = turning.role, turning.manager
    assert turning.switch("decode", commit=False) == Switched("s", 0, True, "", True)
    assert (turning.role, turning.manager) == (role, manager)
    assert paired(turning, decode, "r", 41)


def test_a_prefill_that_nobody_could_find_is_none(
    fleet: tuple[Switching, Switching, Switching], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bootstrap server is gone: the old role cannot come back, and no later order is taken."""
    _, _, decode = fleet
    port = decode.server.port
    decode.server.run(decode.server.server.stop())
    monkeypatch.setattr(registration, "ATTEMPTS", 1)
    answer = decode.switch("prefill")
    assert (answer.ok, answer.safe) == (False, False)
    said = re.search(
        rf"not registered at bootstrap server {HOST}:{port} in (\d+) s: .*connection refused", answer.message
    )
    assert said is not None, answer.message
    assert int(said[1]) < ranks.REGISTRATION_DEADLINE, "the seconds are not those that passed"
    assert decode.switch("decode") == Switched("s", 0, False, UNHEALTHY, False)


def test_peers_go_with_the_role(fleet: tuple[Switching, Switching, Switching]) -> None:
    """A prefill that becomes a decode holds no session of its decodes any more, and they no connection to it."""
    _, turning, decode = fleet
    paired(turning, decode, "r", 51)
    assert turning.manager.stats().peers == decode.manager.stats().peers == 1
    turning.switch("decode")
    decode.woken.wait("the end of the connection", lambda: decode.manager.stats().peers == 0)
    assert turning.manager.stats().peers == 0
