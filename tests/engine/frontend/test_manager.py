"""The tokenizer manager against a scheduler that never speaks: every wait ends, and says what it waited for."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import zmq

from pdctl.engine.cluster.rank_processes import Ranks, ending
from pdctl.engine.config.instance_args import ServerArgs
from pdctl.engine.frontend import tokenizer_manager as module
from pdctl.engine.frontend.observability import Metrics
from pdctl.engine.frontend.request_bodies import HttpRefusal
from pdctl.engine.frontend.request_state import GenerationJob, Options
from pdctl.engine.frontend.tokenizer import Tokenizer
from pdctl.engine.frontend.tokenizer_manager import EngineStatus, TokenizerManager
from pdctl.engine.ipc.messages import (
    AbortRequest,
    Finish,
    Generate,
    Outputs,
    Sampling,
    SchedulerReport,
    Stop,
    Tokens,
    reply_codec,
    request_codec,
)
from tests.engine.frontend import checkpoint

Scenario = Callable[[TokenizerManager, "zmq.Socket[bytes]"], Awaitable[None]]


def play(tmp_path: Path, scenario: Scenario, **changes: object) -> None:
    """Run `scenario` with a real manager, and the other end of its sockets in the test's hand."""
    args = ServerArgs("/nowhere", **changes)

    async def run() -> None:
        tokenizer = Tokenizer(checkpoint.tokenizer(), checkpoint.VOCAB)
        manager = TokenizerManager(args, tokenizer, Metrics(args), Ranks(args, tmp_path))
        context = zmq.Context()
        requests = context.socket(zmq.PULL)
        requests.bind(f"ipc://{tmp_path}/scheduler-0")
        requests.setsockopt(zmq.RCVTIMEO, 10_000)
        manager.open(tmp_path)
        manager.status = EngineStatus.UP
        try:
            await asyncio.wait_for(scenario(manager, requests), 20)
        finally:
            manager.close()
            context.destroy(linger=0)

    asyncio.run(run())


def job(rid: str = "r", stream_of: int = 4) -> GenerationJob:
    message = Generate(rid, [5, 6], Sampling(max_new_tokens=stream_of), received=time.time())
    return GenerationJob(message, Options(message.sampling))


def test_a_silent_scheduler_does_not_keep_clients_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE_MARGIN", 0.1)
    monkeypatch.setattr(module, "SILENCE_CHECK", 0.02)

    async def scenario(manager: TokenizerManager, requests: zmq.Socket[bytes]) -> None:
        group = await manager.submit((job(),), stream=False)
        with pytest.raises(HttpRefusal, match="the scheduler has said nothing for") as caught:
            await group.finished()
        assert caught.value.status == 504
        assert isinstance(request_codec.decode(requests.recv()), Generate)
        assert request_codec.decode(requests.recv()) == AbortRequest("r", exact=True)

    play(tmp_path, scenario, bootstrap_timeout=0.05, waiting_timeout=0.05)


async def count_turns(turns: list[int]) -> None:
    while True:
        turns[0] += 1
        await asyncio.sleep(0)


def test_a_large_batch_is_handed_over_in_turns_with_everything_else(tmp_path: Path) -> None:
    rids = [f"r{number}" for number in range(1000)]

    async def scenario(manager: TokenizerManager, requests: zmq.Socket[bytes]) -> None:
        turns = [0]
        other = asyncio.create_task(count_turns(turns))
        submitting = asyncio.create_task(manager.submit(tuple(map(job, rids)), stream=False))
        await asyncio.sleep(0)
        assert manager.running == 1000  # each rid is taken at once, whenever its request is sent
        with pytest.raises(HttpRefusal, match="Duplicate request ID"):
            await manager.submit((job("r999"),), stream=False)
        group = await submitting
        assert turns[0] > 10
        assert [request_codec.decode(requests.recv()).rid for _ in rids] == rids
        turns[0] = 0
        manager.abandon(group)
        assert 0 < manager.running < 1000
        while manager.running:
            await asyncio.sleep(0)
        assert turns[0] > 10
        assert [request_codec.decode(requests.recv()) for _ in rids] == [AbortRequest(rid, exact=True) for rid in rids]
        other.cancel()

    play(tmp_path, scenario)


def test_what_ends_before_it_is_sent_is_not_sent(tmp_path: Path) -> None:
    async def scenario(manager: TokenizerManager, requests: zmq.Socket[bytes]) -> None:
        submitting = asyncio.create_task(manager.submit(tuple(job(f"r{n}") for n in range(1000)), stream=False))
        await asyncio.sleep(0)
        manager.end_all("the instance ends")
        group = await submitting
        with pytest.raises(HttpRefusal, match="the instance ends"):
            await group.finished()
        assert manager.running == 0
        manager.stop(now=True)
        sent = 0
        while not isinstance(request := request_codec.decode(requests.recv()), Stop):
            sent += isinstance(request, Generate)
        assert 0 < sent < 1000

    play(tmp_path, scenario)


def test_a_client_that_leaves_while_a_batch_is_handed_over_ends_it(tmp_path: Path) -> None:
    async def scenario(manager: TokenizerManager, requests: zmq.Socket[bytes]) -> None:
        del requests
        submitting = asyncio.create_task(manager.submit(tuple(job(f"r{n}") for n in range(1000)), stream=False))
        await asyncio.sleep(0)
        submitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitting
        assert await manager.drained(10)

    play(tmp_path, scenario)


def test_token_ids_in_an_array_arrive_as_a_list() -> None:
    message = Generate("r", array("i", [5, 6]), Sampling())  # type: ignore[arg-type]
    assert request_codec.decode(request_codec.encode(message)) == Generate("r", [5, 6], Sampling())


def test_a_report_has_a_deadline(tmp_path: Path) -> None:
    async def scenario(manager: TokenizerManager, requests: zmq.Socket[bytes]) -> None:
        del requests
        with pytest.raises(
            HttpRefusal, match=r"waited 0.05 s for a load report: 0 of 1 scheduler\(s\) answered"
        ) as caught:
            await manager.questions.reports(0.05)
        assert caught.value.status == 504
        late = SchedulerReport("long gone", 0, {}, {})
        manager.questions.answer(late)

    play(tmp_path, scenario)


def test_a_health_check_has_a_deadline_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario(manager: TokenizerManager, requests: zmq.Socket[bytes]) -> None:
        assert not await manager.healthy(0.05)
        assert manager.running == 0
        assert await manager.drained(0)
        probe = request_codec.decode(requests.recv())
        assert isinstance(probe, Generate)
        assert (probe.bootstrap_host, probe.bootstrap_room) == ("2.2.2.2", 0)
        assert probe.rid.startswith("HEALTH_CHECK_")

    play(tmp_path, scenario, disaggregation_mode="decode")


def test_draining_has_a_deadline(tmp_path: Path) -> None:
    async def scenario(manager: TokenizerManager, requests: zmq.Socket[bytes]) -> None:
        del requests
        group = await manager.submit((job(),), stream=False)
        assert not await manager.drained(0.05)
        manager.end_all("enough")
        assert await manager.drained(0.05)
        with pytest.raises(HttpRefusal, match="enough"):
            await group.finished()

    play(tmp_path, scenario)


def test_a_slow_reader_sees_fewer_longer_steps(tmp_path: Path) -> None:
    async def scenario(manager: TokenizerManager, requests: zmq.Socket[bytes]) -> None:
        del requests
        group = await manager.submit((job("a"), job("b")), stream=True)
        for tokens in (Tokens("a", [100]), Tokens("b", [101]), Tokens("a", [102, 103]), Tokens("never heard of", [1])):
            manager._receive(Outputs([tokens]))
        await group.first()
        updates = group.updates()
        assert [(await anext(updates)).text for _ in range(2)] == ["acd", "b"]
        ends = [Tokens(rid, [], Finish("length", length=1)) for rid in "ab"]
        manager._receive(Outputs(ends))
        assert [member.job.rid async for member in updates] == ["a", "b"]
        assert group.done

    play(tmp_path, scenario)


def test_tokens_after_the_end_are_dropped(tmp_path: Path) -> None:
    async def scenario(manager: TokenizerManager, requests: zmq.Socket[bytes]) -> None:
        del requests
        message = job().message
        group = await manager.submit((GenerationJob(message, Options(message.sampling, stops=("b",))),), stream=False)
        manager._receive(Outputs([Tokens("r", [100, 101, 102, 103])]))
        manager._receive(Outputs([Tokens("r", [104], Finish("length", length=5))]))
        await group.finished()
        (member,) = group.members
        assert (member.text, member.ids, member.matched) == ("a", [100, 101], "b")

    play(tmp_path, scenario)


def test_replies_are_read_from_the_socket_in_order(tmp_path: Path) -> None:
    async def scenario(manager: TokenizerManager, requests: zmq.Socket[bytes]) -> None:
        context = requests.context
        push = context.socket(zmq.PUSH)
        push.connect(f"ipc://{tmp_path}/tokenizer")
        group = await manager.submit((job(),), stream=False)
        for token in range(100, 200):
            push.send(reply_codec.encode(Outputs([Tokens("r", [token])])))
        push.send(b"PD\x01\x02garbage")
        push.send(reply_codec.encode(Outputs([Tokens("r", [], Finish("length", length=100))])))
        await group.finished()
        push.close()
        assert group.members[0].ids == list(range(100, 200))

    play(tmp_path, scenario)


def test_how_a_process_ended_in_words() -> None:
    assert [ending(code) for code in (0, 3, -9, -200)] == [
        "exited with code 0",
        "exited with code 3",
        "was killed by SIGKILL",
        "was killed by signal 200",
    ]
