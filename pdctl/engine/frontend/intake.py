"""Turn a checked body into jobs: expand batches and samples, tokenize and measure prompts, assign rids and rooms.

Rooms and prefill addresses are read as in sglang 0.5.23 (srt/managers/io_struct.py), with one exception. Where a router
sends no bootstrap port, SGLang uses its own, which reaches the wrong prefill as soon as there are two. This engine
never guesses: it refuses a request that names a real host without a port, and its answer has the fix (unless it
rehearses `null-port-fallback`).
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from array import array
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import msgspec

from pdctl.engine.config.instance_args import FAKE_BOOTSTRAP_HOST
from pdctl.engine.frontend.request_bodies import HttpRefusal
from pdctl.engine.frontend.request_state import GenerationJob, Options, PromptInput
from pdctl.engine.ipc.messages import Generate, steady_time
from pdctl.log_lines import rid_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pdctl.engine.config.instance_args import ServerArgs
    from pdctl.engine.frontend.request_bodies import RoutedBody
    from pdctl.engine.frontend.tokenizer import Tokenizer

MAX_BATCH = 4096
# Longer texts are tokenized on a thread (the tokenizer releases the GIL), so that streams keep flowing meanwhile.
INLINE_CHARS = 2048
MAX_TOP_LOGPROBS = 128
TOO_LONG = "context_length_exceeded"
MAX_ROOM = (1 << 63) - 1
MAX_HOST_CHARS = 255  # a DNS name's limit
NOT_IN_HOST = frozenset(" '\"\\<>(){}")  # the host appears in log lines
SAMPLE_STRIDE = 0x1E3779B97F4A7C15  # odd: no two samples of a prompt get the same room
TURN = 4096  # tokens handled in one turn of the event loop: a few milliseconds
REQUEST_WORK = 64  # the tokens that a request counts as, in addition to its own
PACE_WINDOW = 30.0  # seconds of history that count
PACE_ENDS = 1024  # ends remembered
PACE_UNKNOWN = 5  # seconds, if nothing has ended in the window
PACE_LONGEST = 60


class Intake:
    """Makes jobs of bodies. `limits` are 0 until a rank has reported them."""

    def __init__(self, args: ServerArgs, tokenizer: Tokenizer) -> None:
        self._args = args
        self._tokenizer = tokenizer
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenize")
        self.limits = LengthLimits(context=0, prompt=0)

    async def jobs(
        self, prompts: Sequence[PromptInput], options: Sequence[Options], body: RoutedBody, admit: Callable[[int], None]
    ) -> tuple[GenerationJob, ...]:
        """Return the jobs of a call. `options` has one entry, or one for each prompt.

        `admit` raises HttpRefusal if there is no room for that many. Raise HttpRefusal (400) for the first error found.
        """
        received = steady_time()
        samples = options[0].n
        if any(option.n != samples for option in options):
            raise HttpRefusal(400, "The parallel_sample_num should be the same for all samples in sample params.")
        count = len(prompts) * samples
        if not 0 < count <= MAX_BATCH:
            raise HttpRefusal(400, f"a request may hold 1 to {MAX_BATCH} prompts times samples, got {count}")
        admit(count)
        rids = _rids(body.rid, len(prompts), samples)
        pairs = pairings(body, self._args, rids, samples)
        dp_rank = self._dp_rank(body)
        jobs: list[GenerationJob] = []
        turns = Turns()  # a batch of thousands of prompts must not hold up others
        for number, prompt in enumerate(prompts):
            ids = await self._ids(prompt)
            await turns.after(len(ids), samples)
            option = self._fit(options[number if len(options) > 1 else 0], len(ids))
            for sample in range(samples):
                index = number * samples + sample
                pair, sampled = pairs[index], _sample(option, sample)
                message = Generate(
                    rid=rids[index],
                    input_ids=ids,
                    sampling=sampled.sampling,
                    bootstrap_host=pair.host,
                    bootstrap_port=pair.port,
                    bootstrap_room=pair.room,
                    return_logprob=sampled.return_logprob,
                    top_logprobs_num=sampled.top_logprobs,
                    received=received,
                    routed_dp_rank=dp_rank,
                    disagg_prefill_dp_rank=body.disagg_prefill_dp_rank,
                )
                jobs.append(GenerationJob(message, option, index))
        return tuple(jobs)

    async def _ids(self, prompt: PromptInput) -> list[int]:
        if prompt.ids is not None:
            ids = cast("list[int]", prompt.ids)  # or an array, which `messages.Generate` encodes alike
            if not isinstance(ids, array):  # the ids of an array were checked when they were read
                self._tokenizer.check_ids(ids)
        else:
            ids = await self._encode(prompt.text or "", prompt.special)
        if not ids:
            raise HttpRefusal(400, "the prompt is empty: it has no tokens.")
        if len(ids) >= self.limits.context:
            raise self._too_long(f"{len(ids)} tokens")
        if len(ids) > self.limits.prompt:
            raise HttpRefusal(
                400,
                f"The input ({len(ids)} tokens) is longer than the KV cache of this instance can hold "
                f"({self.limits.prompt} tokens); raise --max-total-tokens or send a shorter prompt.",
                TOO_LONG,
            )
        return ids

    def _too_long(self, size: str) -> HttpRefusal:
        context = self.limits.context
        text = f"The input ({size}) is longer than the model's context length ({context} tokens)."
        return HttpRefusal(400, text, TOO_LONG)

    async def _encode(self, text: str, special: bool) -> list[int]:
        fewest = len(text) // self._tokenizer.longest_token
        if fewest >= self.limits.context:
            raise self._too_long(f"{len(text)} characters, at least {fewest} tokens")
        if len(text) <= INLINE_CHARS:
            return self._tokenizer.encode(text, special)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._tokenizer.encode, text, special)

    def _fit(self, option: Options, prompt: int) -> Options:
        """Check a requested answer length against the context, or shrink a default one to what is left of it."""
        wanted, context = option.sampling.max_new_tokens, self.limits.context
        if prompt + wanted <= context:
            return option
        if option.explicit_length:
            raise HttpRefusal(
                400,
                f"Requested token count exceeds the model's maximum context length of {context} tokens. "
                f"You requested a total of {prompt + wanted} tokens: {prompt} tokens from the input messages and "
                f"{wanted} tokens for the completion. Please reduce the number of tokens in the input messages or the "
                "completion to fit within the limit.",
                TOO_LONG,
            )
        return replace(option, sampling=msgspec.structs.replace(option.sampling, max_new_tokens=context - prompt))

    def _dp_rank(self, body: RoutedBody) -> int | None:
        rank = body.data_parallel_rank if body.routed_dp_rank is None else body.routed_dp_rank
        if rank is not None and rank >= self._args.dp_ranks:
            raise HttpRefusal(400, f"routed_dp_rank={rank} out of range [0, {self._args.dp_ranks})")
        return rank


@dataclass(frozen=True, slots=True)
class LengthLimits:
    """In tokens: `context` for prompt and answer together, `prompt` for the longest prompt that fits into the pool."""

    context: int
    prompt: int


def _sample(option: Options, sample: int) -> Options:
    """Vary a given seed by sample: otherwise all samples of a prompt would be the same."""
    seed = option.sampling.seed
    if not sample or seed is None:
        return option
    return replace(option, sampling=msgspec.structs.replace(option.sampling, seed=seed ^ sample))


def _rids(given: str | list[str] | None, prompts: int, samples: int) -> list[str]:
    """sglang: a single rid on a batch becomes rid_0, rid_1, …; a list has one for each prompt."""
    if given is None:
        return [uuid.uuid4().hex for _ in range(prompts * samples)]
    names = [given] if isinstance(given, str) else given
    for name in names:
        problem = rid_problem(name)
        if problem:
            raise HttpRefusal(400, problem)
    if isinstance(given, str):
        return [given] if prompts * samples == 1 else [f"{given}_{index}" for index in range(prompts * samples)]
    if len(given) != prompts:
        raise HttpRefusal(400, "The specified rids length mismatch with the batch_size for batch processing.")
    if len(set(given)) != len(given):
        twice = [name for name, count in Counter(given).items() if count > 1][:8]
        raise HttpRefusal(400, f"Duplicate request IDs detected within the request: {twice}")
    if samples == 1:
        return given
    return [f"{name}_{sample}" for name in given for sample in range(samples)]


@dataclass(frozen=True, slots=True)
class Pairing:
    """The prefill's address and the room that a request carries. Room 0 with the fake host is a health check."""

    host: str | None = None
    port: int | None = None
    room: int | None = None


UNPAIRED = Pairing()


def pairings(body: RoutedBody, args: ServerArgs, rids: list[str], samples: int = 1) -> list[Pairing]:
    """Return one for each request: prompt by prompt, `samples` of each. Raise HttpRefusal (400) with the fix.

    Prefill and decode get the same body, so both derive the same rooms without asking each other.
    """
    if args.disaggregation_mode == "null":
        return [UNPAIRED] * len(rids)
    count = len(rids)
    hosts = _spread("bootstrap_host", body.bootstrap_host, count, samples)
    ports = _spread("bootstrap_port", body.bootstrap_port, count, samples)
    rooms = _rooms(body.bootstrap_room, count, samples)
    pairs = [Pairing(*row) for row in zip(hosts, ports, rooms, strict=True)]
    return [_check(_complete(pair, args), rid, args) for pair, rid in zip(pairs, rids, strict=True)]


def _spread(name: str, value: object, count: int, samples: int) -> list[Any]:
    """Return one value for each request; an entry given for a prompt is used for all of its samples."""
    if not isinstance(value, list):
        return [value] * count
    if len(value) * samples == count:
        return [entry for entry in value for _ in range(samples)]
    if len(value) != count:
        raise HttpRefusal(
            400, f"{name} has {len(value)} entries for {count} request(s); give one for each, or a single value."
        )
    return value


def _rooms(value: int | list[int] | None, count: int, samples: int) -> list[int | None]:
    """sglang: a single room for a batch (or with n > 1) means room, room + 1, …; rooms in a list must differ.

    With one room per prompt and n > 1, SGLang 0.5.23 gives every sample its prompt's room, and all but one of them
    hang. Here the first sample gets that room, and the rooms of the others are derived from it.
    """
    if isinstance(value, int):
        return [value + offset for offset in range(count)]
    rooms: list[int | None]
    if isinstance(value, list) and len(value) != count and len(value) * samples == count:
        rooms = [_sample_room(room, sample) for room in value for sample in range(samples)]
    else:
        rooms = _spread("bootstrap_room", value, count, samples)
    real = [room for room in rooms if room]
    if len(set(real)) != len(real):
        raise HttpRefusal(
            400, "bootstrap_room: two requests of this batch have the same room; a room belongs to one request."
        )
    return rooms


def _sample_room(room: int, sample: int) -> int:
    """Return a room far from `room`: a router that counts its rooms up must not reach it. A value that is not a valid
    room is returned unchanged."""
    if not sample or not 0 < room <= MAX_ROOM:
        return room
    return (room + sample * SAMPLE_STRIDE) & MAX_ROOM or 1


def _complete(pairing: Pairing, args: ServerArgs) -> Pairing:
    """With the fake backend a decode serves requests that name no prefill (sglang 0.5.13+)."""
    if args.disaggregation_transfer_backend == "fake" and pairing.host is None:
        return Pairing(FAKE_BOOTSTRAP_HOST, None, pairing.room or 0)
    return pairing


def _check(pairing: Pairing, rid: str, args: ServerArgs) -> Pairing:
    host, port, room = pairing.host, pairing.port, pairing.room
    if room is None:
        raise HttpRefusal(
            400,
            f"Invalid request: Disaggregated request received without bootstrap room id. req.rid={rid!r}",
            "bootstrap_room_missing",
        )
    if not 0 <= room <= MAX_ROOM:
        raise HttpRefusal(400, f"bootstrap_room {room} is out of range: a room is 1 to 2**63 - 1.")
    if not host:
        raise HttpRefusal(
            400,
            f"bootstrap_host is missing for room {room}: a disaggregated request names its prefill's bootstrap server. "
            "Send the request through a PD router, or add bootstrap_host, bootstrap_port and bootstrap_room.",
            "bootstrap_host_missing",
        )
    if host == FAKE_BOOTSTRAP_HOST:
        return pairing
    if len(host) > MAX_HOST_CHARS or not host.isprintable() or not NOT_IN_HOST.isdisjoint(host):
        raise HttpRefusal(400, f"bootstrap_host {host[:64]!r} is not a host name or address.")
    if port is None and not args.rehearsal.null_port_fallback:
        raise HttpRefusal(
            400,
            f"bootstrap_port is missing for bootstrap_host {host!r} (room {room}); this engine never guesses a port. "
            "Give the router each prefill's bootstrap port (`--prefill URL PORT`); "
            "its /server_info shows it as disaggregation_bootstrap_port.",
            "bootstrap_port_missing",
        )
    if port is not None and not 0 < port < 65536:
        raise HttpRefusal(400, f"bootstrap_port {port} of bootstrap_host {host!r} (room {room}): a port is 1 to 65535.")
    if room == 0:
        raise HttpRefusal(
            400,
            f"bootstrap_room 0 with bootstrap_host {host!r}: room 0 means 'not written yet' in a metadata buffer, "
            "so its transfer could never complete. Draw rooms from 1 to 2**63 - 1.",
        )
    return pairing


class Turns:
    """Splits long work on the event loop into turns, so that others run in between; counts the work of one call."""

    __slots__ = ("_work",)

    def __init__(self) -> None:
        self._work = 0

    async def after(self, tokens: int, requests: int = 1) -> None:
        """Count that much more work, and let other tasks run if it was enough for a turn."""
        self._work += tokens + REQUEST_WORK * requests
        if self._work >= TURN:
            self._work = 0
            await asyncio.sleep(0)


class Pace:
    """Measures how fast requests leave an instance, to estimate when a full queue has room: the 503's Retry-After."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._ends: deque[float] = deque(maxlen=PACE_ENDS)

    def ended(self) -> None:
        """Note that a request has left."""
        self._ends.append(time.monotonic())

    def seconds_until(self, ends: int) -> int:
        """Return the whole seconds, at least 1, until `ends` more requests have left at the pace of PACE_WINDOW."""
        now = time.monotonic()
        while self._ends and self._ends[0] < now - PACE_WINDOW:
            self._ends.popleft()
        if not self._ends:
            return PACE_UNKNOWN
        since = self._ends[0] if len(self._ends) == PACE_ENDS else max(self._began, now - PACE_WINDOW)
        rate = len(self._ends) / max(now - since, 1e-3)
        return max(1, min(PACE_LONGEST, math.ceil(ends / rate)))
