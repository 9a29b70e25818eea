"""Choosing a pair: who is met, who is spared, who is preferred."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable

from pdctl.router.dispatch import CacheAware, Chooser, LeastLoad, PowerOfTwo, Random, RoundRobin, make_policy
from pdctl.router.registry import Breaker, BreakerState, PortSource, Registry, WorkerRole
from pdctl.router.router_args import Origin, PolicyName, RouterArgs
from tests.cases import for_each


def registry(prefills: int, decodes: int, **changes: object) -> Registry:
    made = Registry(RouterArgs(**changes))
    for role, count, first in ((WorkerRole.PREFILL, prefills, 1000), (WorkerRole.DECODE, decodes, 2000)):
        for index in range(count):
            port = 8998 if role is WorkerRole.PREFILL else None
            worker = made.add(role, Origin("http", "h", first + index), port, PortSource.FLAG)
            assert worker is not None
            made.set_usable(worker, True, "")
    return made


def in_loop(scenario: Callable[[], None]) -> None:
    async def run() -> None:
        scenario()

    asyncio.run(run())


def no_prompt() -> str:
    raise AssertionError("this policy does not look at the prompt")


@for_each(("prefills", "decodes"), [(1, 1), (2, 1), (1, 3), (2, 2), (2, 4), (3, 2), (4, 6), (5, 5)])
def test_round_robin_meets_every_pair_once_per_cycle(prefills: int, decodes: int) -> None:
    def scenario() -> None:
        known = registry(prefills, decodes)
        chooser = Chooser(RoundRobin(), RoundRobin())
        turns = [chooser.choose(known.table, no_prompt) for _ in range(2 * prefills * decodes)]
        met = Counter((pair.prefill.url, pair.decode.url) for pair in turns)
        assert len(met) == prefills * decodes
        assert set(met.values()) == {2}
        for one, other in itertools.pairwise(turns):
            assert prefills == 1 or one.prefill is not other.prefill

    in_loop(scenario)


def test_round_robin_walks_on_without_a_worker_that_is_down() -> None:
    def scenario() -> None:
        known = registry(2, 2)
        down = known.of(WorkerRole.PREFILL)[0]
        known.set_usable(down, False, "down")
        chooser = Chooser(RoundRobin(), RoundRobin())
        met = Counter(
            (pair.prefill.id, pair.decode.id) for pair in (chooser.choose(known.table, no_prompt) for _ in range(10))
        )
        assert len(met) == 2
        assert all(prefill != down.id for prefill, _ in met)

    in_loop(scenario)


def test_power_of_two_never_takes_the_busiest() -> None:
    def scenario() -> None:
        workers = registry(3, 1).of(WorkerRole.PREFILL)
        workers[0].load = 9
        chosen = {PowerOfTwo().choose(workers, no_prompt).url for _ in range(200)}
        assert chosen == {workers[1].url, workers[2].url}

    in_loop(scenario)


def test_random_takes_all() -> None:
    def scenario() -> None:
        workers = registry(3, 1).of(WorkerRole.PREFILL)
        assert len({Random().choose(workers, no_prompt).url for _ in range(200)}) == 3

    in_loop(scenario)


def test_least_load_shares_between_equals() -> None:
    def scenario() -> None:
        workers = registry(1, 3).of(WorkerRole.DECODE)
        workers[0].load = 1
        policy = LeastLoad()
        assert Counter(policy.choose(workers, no_prompt).url for _ in range(10)) == {
            workers[1].url: 5,
            workers[2].url: 5,
        }

    in_loop(scenario)


def test_cache_aware_returns_to_the_prefix_until_it_is_crowded() -> None:
    def scenario() -> None:
        workers = registry(3, 1).of(WorkerRole.PREFILL)
        policy = CacheAware(0.3, abs_threshold=4, rel_threshold=1.5)
        story = "once upon a time " * 100
        first = policy.choose(workers, lambda: story)
        assert all(policy.choose(workers, lambda: story + "and more") is first for _ in range(5))
        others = {policy.choose(workers, lambda text=text: text * 400).id for text in "abc"}
        assert len(others) > 1, "unlike prompts are spread"
        first.load = 5
        assert policy.choose(workers, lambda: story) is not first

    in_loop(scenario)


def test_cache_aware_does_not_follow_a_short_common_beginning() -> None:
    def scenario() -> None:
        workers = registry(4, 1).of(WorkerRole.PREFILL)
        policy = CacheAware(0.3, abs_threshold=64, rel_threshold=1.5)
        system = "s" * 256
        chosen = Counter(policy.choose(workers, lambda i=i: system + str(i) * 2048).id for i in range(8))
        assert set(chosen.values()) == {2}

    in_loop(scenario)


def test_policies_of_the_two_roles_may_differ() -> None:
    def scenario() -> None:
        known = registry(2, 2)
        busy = known.of(WorkerRole.DECODE)[0]
        busy.load = 3
        chooser = Chooser(RoundRobin(), PowerOfTwo())
        pairs = [chooser.choose(known.table, no_prompt) for _ in range(8)]
        assert all(pair.decode is not busy for pair in pairs)
        assert len({pair.prefill.id for pair in pairs}) == 2

    in_loop(scenario)


@for_each("name", list(PolicyName))
def test_every_policy_has_both_roles(name: PolicyName) -> None:
    def scenario() -> None:
        known = registry(2, 2)
        args = RouterArgs(policy=name)
        chooser = Chooser(make_policy(args, WorkerRole.PREFILL), make_policy(args, WorkerRole.DECODE))
        for number in range(10):
            assert chooser.choose(known.table, lambda number=number: str(number)) in known.table.cycle

    in_loop(scenario)


def test_breaker_opens_after_failures_in_a_row_and_tries_once() -> None:
    changes: list[str] = []
    breaker = Breaker(3, 10.0, lambda: changes.append(breaker.state.value))
    for _ in range(2):
        assert not breaker.fail(0.0)
    breaker.succeed()
    assert [breaker.fail(1.0) for _ in range(3)] == [False, False, True]
    assert breaker.state is BreakerState.OPEN
    assert not breaker.allows
    breaker.allow_trial(10.9)
    assert not breaker.allows
    breaker.allow_trial(11.0)
    assert breaker.allows
    breaker.begin()
    assert not breaker.allows, "one trial at a time"
    breaker.release()
    assert breaker.allows, "a trial that says nothing is repeated"
    breaker.begin()
    assert breaker.fail(12.0), "a failed trial opens it again at once"
    breaker.allow_trial(22.0)
    breaker.begin()
    breaker.succeed()
    assert breaker.state is BreakerState.CLOSED
    assert changes == [
        "open",
        "half_open",
        "half_open",
        "half_open",
        "half_open",
        "open",
        "half_open",
        "half_open",
        "closed",
    ]


def test_a_retry_avoids_the_pair_and_the_member_that_failed() -> None:
    def scenario() -> None:
        known = registry(2, 2)
        tried = known.table.cycle[0]
        left = known.table.without([tried], [tried.prefill])
        assert {pair.prefill for pair in left.cycle} == set(known.of(WorkerRole.PREFILL)) - {tried.prefill}
        only = registry(1, 2)
        first = only.table.cycle[0]
        again = only.table.without([first], [first.prefill])
        assert [pair.decode.id for pair in again.cycle] == [only.table.cycle[1].decode.id], "no other prefill is left"

    in_loop(scenario)
