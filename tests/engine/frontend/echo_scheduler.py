"""A scheduler rank without a model, over the real sockets: it answers a prompt with the prompt, one token a step.

`seed` is the milliseconds of a step. A prompt that begins with `!` is a command:
    !die            the process exits with code 7        !last words     it says why first
    !reason         it leaves the reason for its starter, and exits at once with code 1
    !fail CODE      aborted with that HTTP status        !late CODE      the same, a while after two tokens
    !mute           no answer at all                     !raw            a foreign frame, then the answer
    !held PATH      no token before a file stands there

ECHO_GATE names a FIFO to wait for before anything else; ECHO_WARM_UP is the prompt of the warm-up request. ECHO_SWITCH
is what a role switch meets: `fail-prepare:RANK` or `fail-commit:RANK`.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from pdctl import lifeline
from pdctl.engine.cluster import rank_processes
from pdctl.engine.config.instance_args import ReplicaRank, ServerArgs
from pdctl.engine.ipc.channels import Channels, Here, local_line, meet
from pdctl.engine.ipc.messages import (
    NOT_IDLE,
    AbortRequest,
    Ask,
    Died,
    Drained,
    Finish,
    Flush,
    Flushed,
    Generate,
    Meta,
    Outputs,
    Ready,
    Reply,
    Request,
    SchedulerReport,
    StartupStage,
    Stop,
    Switched,
    SwitchRole,
    Tokens,
    reply_codec,
    request_codec,
)
from tests.engine.frontend.byte_tokens import CONTEXT, text_of

END_OF_TEXT = 1
SILENT = (["mute"], ["last"])
IDLE_TOKENS = 7  # what the cache holds beside the tokens that requests in flight have made


@dataclass
class Running:
    message: Generate
    limit: int
    due: float
    made: int = 0
    command: list[str] = field(default_factory=list)

    def token(self) -> int:
        prompt = self.message.input_ids
        if self.made == len(prompt) and not self.message.sampling.ignore_eos:
            return END_OF_TEXT
        return prompt[self.made % len(prompt)]


class EchoRank:
    def __init__(self, args: ServerArgs, here: ReplicaRank, ipc_dir: Path) -> None:
        self.args = args
        self.dp_rank, self.pp_rank, self.tp_rank = here.key
        context = zmq.Context()
        channels = Channels.of(args, ipc_dir)
        self.replies = context.socket(zmq.PUSH)
        self.replies.connect(channels.tokenizer)
        self.requests = context.socket(zmq.PULL)
        kin = [other.rank for other in ReplicaRank.all(args.shape) if other.replica == here.replica]
        lines = {rank.world_rank: local_line(ipc_dir, here.replica, rank) for rank in kin}
        own, rank = lines[here.rank.world_rank], here.rank
        leads = not (rank.pp_rank or rank.attn_tp_rank)
        self.requests.bind("tcp://127.0.0.1:*" if channels.meeting else own.input if leads else own.step)
        if channels.meeting:
            at = self.requests.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0")
            lines = meet(channels.meeting, Here(rank.world_rank, rank.node, at, at), 20)
        self.followers = []
        for other in kin if leads else ():
            if other.attn_dp_rank == rank.attn_dp_rank and other != rank:
                socket = context.socket(zmq.PUSH)
                socket.connect(lines[other.world_rank].step)
                self.followers.append(socket)
        self.running: dict[str, Running] = {}
        self.seen = 0

    def say(self, reply: Reply) -> None:
        self.replies.send(reply_codec.encode(reply))

    def serve(self) -> None:
        gate = os.environ.get("ECHO_GATE")
        if gate:
            Path(gate).read_bytes()  # a FIFO: blocks until the test writes into it
        self.say(StartupStage(self.tp_rank, self.dp_rank, "weights_loaded", 0.25, self.pp_rank))
        facts = {
            "context_length": CONTEXT,
            "max_req_input_len": CONTEXT - 1,
            "max_total_num_tokens": 4096,
            "page_size": self.args.page_size,
            "num_pages": 256,
            "kv_cache_dtype": "float32",
            "dtype": "float32",
            "device": "cpu",
            "transfer_backend": "shm",
            "load_seconds": 0.5,
            "kv_cache_bytes": 1 << 30,
        }
        self.say(Ready(self.tp_rank, self.dp_rank, facts, self.pp_rank))
        while self.turn():
            pass

    def turn(self) -> bool:
        now = time.monotonic()
        waits = [max(0.0, run.due - now) for run in self.running.values()]
        if self.requests.poll(min(waits, default=10.0) * 1000):
            while self.requests.poll(0):
                if not self.handle(request_codec.decode(self.requests.recv())):
                    return False
        self.step()
        return True

    def handle(self, request: Request) -> bool:
        if isinstance(request, Generate):
            self.admit(request)
        elif isinstance(request, AbortRequest):
            self.abort(request)
        elif isinstance(request, Flush):
            busy = len(self.running)
            self.say(Flushed(request.id, not busy, f"{busy} request(s) are running or queued" if busy else ""))
        elif isinstance(request, Ask):
            load = {
                "num_running_reqs": len(self.running),
                "num_used_tokens": IDLE_TOKENS + sum(run.made for run in self.running.values()),
                "max_total_num_tokens": 4096,
                "queue_waiting": 2,
            }
            self.say(SchedulerReport(request.id, self.dp_rank, {"seen": self.seen, "pid": os.getpid()}, load))
        elif isinstance(request, SwitchRole):
            self.switch(request)
        elif isinstance(request, Stop):
            for follower in self.followers:
                follower.send(request_codec.encode(request))
            return False
        return True

    def switch(self, order: SwitchRole) -> None:
        step = "commit" if order.commit else "prepare"
        wanted, _, rank = os.environ.get("ECHO_SWITCH", "").partition(":")
        here = rank in ("", str(self.dp_rank))
        if wanted == f"fail-{step}" and here:
            self.say(Switched(order.id, self.dp_rank, False, f"rank {self.dp_rank} says no", not order.commit))
        elif self.running:
            self.say(Switched(order.id, self.dp_rank, False, NOT_IDLE, True))
        else:
            self.say(Switched(order.id, self.dp_rank, True, "", not order.commit))

    def admit(self, message: Generate) -> None:
        self.seen += 1
        text = text_of(message.input_ids) or os.environ.get("ECHO_WARM_UP", "")
        command = text[1:].split() if text.startswith("!") else []
        if command[:1] == ["die"]:
            os._exit(7)
        if command[:1] == ["reason"]:
            rank_processes.tell_end_reason("out of luck.\nNot a second line")
            rank_processes.tell_end_reason("nor a second reason")
            os._exit(1)
        if command[:1] == ["last"]:
            self.say(Died(self.tp_rank, self.dp_rank, "out of luck", self.pp_rank))
        if command[:1] == ["raw"]:
            self.replies.send(b"not a frame")
        limit = 1 if self.args.disaggregation_mode == "prefill" else message.sampling.max_new_tokens
        self.running[message.rid] = Running(message, limit, time.monotonic(), command=command)

    def abort(self, request: AbortRequest) -> None:
        names = [
            rid
            for rid in self.running
            if request.all or (rid == request.rid if request.exact else rid.startswith(request.rid))
        ]
        for rid in names:
            run = self.running.pop(rid)
            finish = Finish("abort", message="Aborted by AbortReq.", status=499, code="aborted")
            self.say(Outputs([Tokens(rid, [], finish, meta=self.meta(run))], self.dp_rank))

    def step(self) -> None:
        now = time.monotonic()
        for run in self.running.values():
            if run.command[:1] == ["held"] and not Path(run.command[1]).exists():
                run.due = now + 0.01
        due = [run for run in self.running.values() if run.due <= now and run.command[:1] not in SILENT]
        for run in self.running.values():
            if run.command[:1] in SILENT:
                run.due = now + 60
        items = [self.advance(run, now) for run in due]
        # A decode has the pages of a failed room back a while later.
        gone = [item.rid for item in items if item.finish and item.finish.code == "transfer_timeout"]
        items += [Tokens(rid, [], drained=Drained(30.25, "timeout")) for rid in gone]
        if items:
            self.say(Outputs(items, self.dp_rank))

    def advance(self, run: Running, now: float) -> Tokens:
        message, rid = run.message, run.message.rid
        failing = run.command[:1] == ["fail"] or (run.command[:1] == ["late"] and run.made == 2)
        if failing:
            del self.running[rid]
            reason = f"Decode transfer failed: Request {message.bootstrap_room} timed out"
            return Tokens(
                rid,
                [],
                Finish("abort", message=reason, status=int(run.command[1]), code="transfer_timeout"),
                meta=self.meta(run),
            )
        token = run.token()
        run.made += 1
        run.due = now + (message.sampling.seed or 0) / 1000
        if run.command[:1] == ["late"] and run.made == 2:
            run.due = now + 0.1
        finish = None
        if token == END_OF_TEXT or token in message.sampling.stop_token_ids:
            finish = Finish("stop", matched=token)
        elif run.made >= run.limit:
            finish = Finish("length", length=run.made)
        if finish is not None:
            del self.running[rid]
        top = [[(token, -0.5), (5, -2.0)][: message.top_logprobs_num]] if message.top_logprobs_num else []
        return Tokens(
            rid,
            [token],
            finish,
            [-0.5] if message.return_logprob else [],
            top,
            self.meta(run) if finish else None,
        )

    def meta(self, run: Running) -> Meta:
        moved = 4096 if run.message.bootstrap_room else 0
        return Meta(
            prompt_tokens=len(run.message.input_ids),
            completion_tokens=run.made,
            prefill_retries=1 if moved else 0,
            queue_time=0.001,
            bootstrap_time=0.002,
            transfer_time=0.004 if moved else 0.0,
            transfer_bytes=moved,
            forward_entry_time=time.time(),
            dp_rank=self.dp_rank if self.args.dp_ranks > 1 else None,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--args-json", required=True)
    parser.add_argument("--tp-rank", type=int, required=True)
    parser.add_argument("--pp-rank", type=int, required=True)
    parser.add_argument("--replica", type=int, required=True)
    parser.add_argument("--ipc-dir", type=Path, required=True)
    parser.add_argument("--dist-init", required=True)
    options = parser.parse_args()
    lifeline.hold()
    args = ServerArgs.from_json(options.args_json)
    EchoRank(
        args, ReplicaRank.find(args.shape, options.replica, options.pp_rank, options.tp_rank), options.ipc_dir
    ).serve()


if __name__ == "__main__":
    main()
