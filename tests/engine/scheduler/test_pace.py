"""Passes that take the time of another machine: how long, what goes on meanwhile, and that no answer knows."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from pdctl.engine.ipc.messages import AbortRequest, Ask, Stop
from pdctl.engine.model.parallel import Groups
from pdctl.engine.scheduler.loop import IDLE
from pdctl.engine.scheduler.pace import PassPace
from pdctl.layout.cost_profile import read_profile
from tests.engine.kv_link.rig import PATIENCE
from tests.engine.scheduler.rig import Station, ask, flush, ids, pair, turns_until, unified
from tests.engine.scheduler.thread_groups import Meeting, ThreadGroup

COSTS = {"prefill_step_s": 0.02, "prefill_token_s": 1e-3, "prefill_square_s": 1e-5, "decode_step_s": 0.03,
         "decode_room_s": 0.004, "decode_token_s": 1e-4}  # fmt: skip
LONG = {"prefill_step_s": 3600.0, "decode_step_s": 3600.0}
OTHERS = {"layers": 4, "kv_bytes_per_token": 2048, "weight_bytes": 10**6, "kv_blocks": 1000, "nic_bytes_per_s": 1e9,
          "disk_bytes_per_s": 1e9, "host_bytes_per_s": 1e9}  # fmt: skip


def profile(place: Path, **changed: float) -> str:
    file = place / "pace.yaml"
    file.write_text("".join(f"{name}: {value}\n" for name, value in {**COSTS, **OTHERS, **changed}.items()))
    return str(file)


def prompt_s(tokens: int, chunk: int) -> float:
    ends = [min(tokens, at + chunk) for at in range(0, tokens, chunk)]
    pairs = sum((end - begin) * end for begin, end in zip((0, *ends), ends, strict=False))
    return len(ends) * COSTS["prefill_step_s"] + tokens * COSTS["prefill_token_s"] + pairs * COSTS["prefill_square_s"]


def step_s(*tokens: int) -> float:
    return COSTS["decode_step_s"] + len(tokens) * COSTS["decode_room_s"] + sum(tokens) * COSTS["decode_token_s"]


def test_passes_take_what_the_profile_says(tmp_path: Path) -> None:
    with unified(pace=profile(tmp_path)) as station:
        began = time.perf_counter()
        station.run(ask("a", ids(40), tokens=4))
        spent = time.perf_counter() - began
        station.turn(Ask("a"))
    least = prompt_s(40, chunk=32) + step_s(41) + step_s(42) + step_s(43)
    assert spent >= least
    load = station.reports[0].load
    assert load["total_prefill_busy_us"] >= 1e6 * prompt_s(40, chunk=32) - 1
    # The first of three steps follows on a prompt, and is not counted.
    assert load["decode_moment_0"] == 2


@pytest.mark.parametrize("disabled", [False, True], ids=["overlapped", "in turn"])
def test_answers_are_those_without_a_pace(tmp_path: Path, disabled: bool) -> None:
    requests = [ask(f"m{at}", ids(10 + 17 * at, at), tokens=2 + at) for at in range(4)]
    told = []
    quick = profile(tmp_path, prefill_step_s=0.002, prefill_token_s=0.0, decode_step_s=0.002, decode_room_s=0.0)
    for pace in ("", quick):
        with unified(pace=pace, disable_overlap_schedule=disabled) as station:
            station.run(*requests)
        told.append((station.answer, {rid: finish.length for rid, finish in station.finish.items()}))
    assert told[0] == told[1]


def test_a_pair_hands_over_under_a_pace(tmp_path: Path) -> None:
    request = ask("a", ids(40), tokens=3)
    with unified() as station:
        station.run(request)
    with pair(pace=profile(tmp_path)) as both:
        began = time.perf_counter()
        both.run(request)
        spent = time.perf_counter() - began
        assert both.decode.answer["a"] == station.answer["a"]
    assert spent >= prompt_s(40, chunk=32) + step_s(41) + step_s(42)


def under_way(station: Station) -> None:
    assert station.scheduler._overlap.under_way
    assert station.scheduler._overlap.live


def test_an_abort_ends_a_pass_that_nobody_waits_for(tmp_path: Path) -> None:
    with unified(pace=profile(tmp_path, **LONG)) as station:
        station.turn(ask("a", ids(20), tokens=4), ask("b", ids(10), tokens=4))
        station.turn(AbortRequest("a"))
        assert station.finish["a"].code == "aborted"
        under_way(station)
        assert not flush(station), "b waits for its pass"
        under_way(station)
        station.turn(AbortRequest("b"))
        turns_until([station], "end of the pass", lambda: station.idle)
        assert flush(station)


def test_a_stop_does_not_wait_for_the_pass(tmp_path: Path) -> None:
    with unified(pace=profile(tmp_path, **LONG)) as station:
        station.turn(ask("a", ids(20), tokens=4))
        under_way(station)
        station.box.requests.append(Stop(now=True))
        station.scheduler.run()
        assert not station.queues.total


def test_requests_are_taken_and_questions_answered_during_a_pass(tmp_path: Path) -> None:
    with unified(pace=profile(tmp_path, **LONG)) as station:
        station.turn(ask("a", ids(20), tokens=4))
        station.turn(ask("b", ids(10), tokens=4))
        station.turn(Ask("a"))
        load = station.reports[0].load
        assert load["num_running_reqs"] + load["num_waiting_reqs"] == 2
        assert 0 < station.scheduler._wait(station._agreed) <= 1.0, "the rank sleeps, and looks again"
        station.turn(AbortRequest(all=True))
        turns_until([station], "end of the pass", lambda: station.idle)


def test_without_a_pace_none_of_it_is_there() -> None:
    with unified() as station:
        assert station.scheduler._pace is None


def test_the_ranks_of_a_pass_wait_once_and_leave_it_in_the_same_turn(tmp_path: Path) -> None:
    """The second rank has nothing to compute: it waits for the pass of the first."""
    meeting, file = Meeting(2), profile(tmp_path)
    barrier = threading.Barrier(2, timeout=PATIENCE)
    with unified() as station:
        station.role.admit(ask("a", ids(30), tokens=2))
        batch = station.role.next_batch()
        assert batch is not None

        def rank(number: int) -> tuple[int, float]:
            pace = PassPace(file, replace(Groups.single(), replica=ThreadGroup(meeting, number)))
            barrier.wait()
            began = time.perf_counter()
            pace.begin(batch if number == 0 else IDLE, follows=False)
            turns = 1
            while pace.holds(live=True):
                turns += 1
                time.sleep(min(pace.wait, 0.01))
            return turns, time.perf_counter() - began

        with ThreadPoolExecutor(2) as pool:
            (turns, spent), (others, beside) = pool.map(rank, range(2))
        assert turns == others > 1
        assert max(spent, beside) >= prompt_s(30, chunk=32) - 1e-6  # the other one may have begun a little later
        station.role.abort(lambda req: True)


def test_delays_of_a_machine_do_not_add_up_and_no_more_than_one_pass_is_made_good(tmp_path: Path) -> None:
    pace = PassPace(profile(tmp_path), Groups.single())
    with unified() as station:
        station.role.admit(ask("a", ids(30), tokens=2))
        batch = station.role.next_batch()
        assert batch is not None
        cost = pace.seconds(batch)
        assert cost == pytest.approx(prompt_s(30, chunk=32))
        pace.begin(batch, follows=False)
        first = pace._due
        pace.begin(batch, follows=True)
        assert pace._due == pytest.approx(first + cost), "from due time to due time"
        pace._due = time.perf_counter() - 60.0
        before = time.perf_counter()
        pace.begin(batch, follows=True)
        assert before <= pace._due <= time.perf_counter(), "a minute's delay costs one pass its time, not hundreds"
        station.role.abort(lambda req: True)


def test_what_it_takes_to_compute_a_pass_is_part_of_its_time(tmp_path: Path) -> None:
    """A rank that slept as long after it had computed a pass as before ended every pass late by that."""
    pace = PassPace(profile(tmp_path, prefill_step_s=0.9), Groups.single())
    with unified() as station:
        station.role.admit(ask("a", ids(30), tokens=2))
        batch = station.role.next_batch()
        assert batch is not None
        pace.begin(batch, follows=False)
        before = pace.wait
        time.sleep(0.3)  # the pass is computed
        assert pace.wait <= before - 0.3
        station.role.abort(lambda req: True)


def test_a_profile_of_a_name_that_ships_is_a_pace() -> None:
    costs = read_profile("gpu-8b")
    pace = PassPace("gpu-8b", Groups.single())
    assert pace._decode.step == round(costs.decode_step_s * 10**18)
