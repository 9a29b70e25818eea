"""A whole unified rank over real sockets, with the shipped checkpoint: answers, chunks, batches, aborts, no leaks."""

from __future__ import annotations

import dataclasses
import logging
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from pdctl.engine.config.instance_args import ReplicaRank, ServerArgs
from pdctl.engine.ipc.channels import Channels, local_input, local_line
from pdctl.engine.ipc.messages import (
    AbortRequest,
    Ask,
    Died,
    Finish,
    Flush,
    Flushed,
    Generate,
    Outputs,
    Request,
    Sampling,
    SchedulerReport,
    Stop,
    reply_codec,
    request_codec,
)
from pdctl.engine.scheduler.rank_mailbox import Mailbox
from pdctl.engine.scheduler.scheduler_rank import Rank

TINY = Path(__file__).resolve().parents[3] / "pdctl" / "checkpoints" / "tiny"
GREEDY = Sampling(max_new_tokens=8, temperature=0, ignore_eos=True)


class Client:
    """The tokenizer manager's ends of the sockets; keeps every reply it has read."""

    def __init__(self, channels: Channels, inlet: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._replies = self._context.socket(zmq.PULL)
        self._replies.bind(channels.tokenizer)
        self._requests = self._context.socket(zmq.PUSH)
        self._requests.connect(inlet)
        self.ids: dict[str, list[int]] = defaultdict(list)
        self.finish: dict[str, Finish] = {}
        self.reports: list[SchedulerReport] = []
        self.flushed: list[Flushed] = []

    def send(self, *requests: Request) -> None:
        for request in requests:
            self._requests.send(request_codec.encode(request))

    def until(self, what: str, done: object) -> None:
        deadline = time.monotonic() + 30
        while not done():  # type: ignore[operator]
            left = deadline - time.monotonic()
            assert left > 0, f"no {what} within 30 s"
            if self._replies.poll(left * 1000):
                self._take(self._replies.recv())

    def _take(self, frame: bytes) -> None:
        reply = reply_codec.decode(frame)
        assert not isinstance(reply, Died), reply
        if isinstance(reply, Outputs):
            for item in reply.items:
                self.ids[item.rid] += item.ids
                if item.finish:
                    self.finish[item.rid] = item.finish
        elif isinstance(reply, SchedulerReport):
            self.reports.append(reply)
        elif isinstance(reply, Flushed):
            self.flushed.append(reply)

    def answer(self, request: Generate) -> list[int]:
        self.send(request)
        self.until(f"answer to {request.rid}", lambda: request.rid in self.finish)
        return self.ids[request.rid]

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    args = dataclasses.replace(
        ServerArgs(str(TINY)), chunked_prefill_size=64, max_total_tokens=4096, max_running_requests=8
    )
    with tempfile.TemporaryDirectory(prefix="pd") as folder:
        (here,) = ReplicaRank.all(args.shape)
        channels = Channels.of(args, Path(folder))
        made = Client(channels, local_input(Path(folder), here.rank))
        mailbox = Mailbox(args.shape, here.rank, channels.tokenizer, logging.getLogger("test"))
        mailbox.join({0: local_line(Path(folder), *here)})
        rank = Rank(args, here, mailbox, "127.0.0.1:0")
        thread = threading.Thread(target=rank.run)
        thread.start()
        yield made
        made.send(Stop())
        thread.join(20)
        assert not thread.is_alive()
        rank.__exit__()
        mailbox.close()
        made.close()


def ids(length: int, salt: int = 0) -> list[int]:
    return [5 + (7 * index + salt) % 200 for index in range(length)]


@pytest.mark.parametrize("length", [1, 15, 16, 17, 63, 64, 65, 129, 300])
def test_a_prompt_in_company_answers_as_it_does_alone(client: Client, length: int) -> None:
    alone = client.answer(Generate(f"alone-{length}", ids(length), GREEDY))
    assert len(alone) == 8
    rids = [f"crowd-{length}-{index}" for index in range(12)]  # more than max_running_requests
    client.send(*(Generate(rid, ids(length if index == 5 else 20 + index), GREEDY) for index, rid in enumerate(rids)))
    client.until("the whole crowd", lambda: all(rid in client.finish for rid in rids))
    assert client.ids[rids[5]] == alone


def test_the_end_is_told_as_sglang_tells_it(client: Client) -> None:
    client.answer(Generate("len", ids(5), GREEDY))
    assert client.finish["len"] == Finish("length", length=8)
    second = client.ids["len"][1]
    stopping = Sampling(max_new_tokens=8, temperature=0, ignore_eos=True, stop_token_ids=(second,))
    assert client.answer(Generate("stop", ids(5), stopping)) == client.ids["len"][: client.ids["len"].index(second) + 1]
    assert client.finish["stop"] == Finish("stop", matched=second)


def test_a_seed_fixes_the_answer_whatever_the_batch(client: Client) -> None:
    sampling = Sampling(max_new_tokens=8, temperature=1.0, ignore_eos=True, seed=11)
    first = client.answer(Generate("seed-1", ids(9), sampling))
    client.send(*(Generate(f"noise-{index}", ids(30, index), GREEDY) for index in range(4)))
    assert client.answer(Generate("seed-2", ids(9), sampling)) == first


def test_too_long_is_refused_with_both_numbers(client: Client) -> None:
    client.answer(Generate("long", ids(5000), GREEDY))
    finish = client.finish["long"]
    assert (finish.type, finish.status) == ("abort", 400)
    assert "exceeds the maximum number of tokens: 5000 > " in finish.message


def test_an_answer_ends_at_the_context_length(client: Client) -> None:
    client.send(Ask("limit"))
    client.until("a report", lambda: any(report.id == "limit" for report in client.reports))
    endless = Sampling(max_new_tokens=100_000, temperature=0, ignore_eos=True)
    got = client.answer(Generate("endless", ids(4000), endless))
    assert len(got) + 4000 == client.reports[-1].state["max_total_num_tokens"]
    assert client.finish["endless"].type == "length"


def test_abort_by_prefix_and_flush_only_when_idle(client: Client) -> None:
    long = Sampling(max_new_tokens=1500, temperature=0, ignore_eos=True)
    client.send(*(Generate(f"victim-{index}", ids(10, index), long) for index in range(10)), Flush("busy"))
    client.until("a refusal to flush", lambda: bool(client.flushed))
    assert not client.flushed[-1].ok
    assert "10 request(s)" in client.flushed[-1].reason
    client.send(AbortRequest("victim-"))
    client.until("ten aborts", lambda: sum(rid.startswith("victim-") for rid in client.finish) == 10)
    assert {client.finish[f"victim-{index}"].type for index in range(10)} == {"abort"}
    client.send(Flush("idle"), Ask("after"))
    client.until("the report after", lambda: any(report.id == "after" for report in client.reports))
    assert client.flushed[-1] == Flushed("idle", True)
    state = next(report for report in client.reports if report.id == "after").state
    assert state["free_pages"] == state["num_pages"]


def test_logprobs_come_with_every_token(client: Client) -> None:
    seen: list[float] = []
    original = client._take

    def spy(frame: bytes) -> None:
        reply = reply_codec.decode(frame)
        if isinstance(reply, Outputs):
            for item in reply.items:
                seen.extend(item.logprobs if item.rid == "lp" else [])
                assert all(len(top) == 3 for top in item.top_logprobs)
        original(frame)

    client._take = spy  # type: ignore[method-assign]
    client.answer(Generate("lp", ids(12), GREEDY, return_logprob=True, top_logprobs_num=3))
    client._take = original  # type: ignore[method-assign]
    assert len(seen) == 8
    assert all(value <= 0 for value in seen)
