"""Intake makes requests of a body's prompts: many of them in turns with everything else, none that have no room."""

from __future__ import annotations

import asyncio
from array import array

import pytest

from pdctl.engine.config.instance_args import ServerArgs
from pdctl.engine.frontend.intake import MAX_BATCH, Intake, LengthLimits
from pdctl.engine.frontend.request_bodies import HttpRefusal, RoutedBody
from pdctl.engine.frontend.request_state import GenerationJob, Options, PromptInput
from pdctl.engine.frontend.tokenizer import Tokenizer
from pdctl.engine.ipc.messages import Sampling
from tests.engine.frontend import checkpoint

OPTIONS = [Options(Sampling(max_new_tokens=1))]


def take(
    intake: Intake, prompts: list[PromptInput], options: list[Options] = OPTIONS
) -> tuple[tuple[GenerationJob, ...], int]:
    """The jobs, and how often somebody else had a turn of the event loop meanwhile."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def run() -> tuple[GenerationJob, ...]:
        other = asyncio.create_task(count())
        jobs = await intake.jobs(prompts, options, RoutedBody(), lambda count: None)
        other.cancel()
        return jobs

    return asyncio.run(run()), turns


def make() -> Intake:
    intake = Intake(ServerArgs("/nowhere"), Tokenizer(checkpoint.tokenizer(), checkpoint.VOCAB))
    intake.limits = LengthLimits(context=4096, prompt=4096)
    return intake


@pytest.mark.parametrize(
    "prompt",
    [
        PromptInput(ids=[1]),
        PromptInput(ids=[1] * 500),
        PromptInput(ids=array("i", [1] * 500)),
        PromptInput(text="a" * 500),
    ],
    ids=["short", "ids", "array", "text"],
)
def test_a_large_batch_is_made_in_turns_with_everything_else(prompt: PromptInput) -> None:
    jobs, turns = take(make(), [prompt] * MAX_BATCH)
    assert len(jobs) == MAX_BATCH
    assert turns > MAX_BATCH * len(jobs[0].message.input_ids) // 5000


def test_samples_count_as_requests() -> None:
    jobs, turns = take(make(), [PromptInput(ids=[1])] * 32, [Options(Sampling(max_new_tokens=1), n=128)])
    assert len(jobs) == MAX_BATCH
    assert turns > 20


def test_a_batch_that_has_no_room_is_refused_before_it_is_tokenized() -> None:
    asked: list[int] = []

    def refuse(count: int) -> None:
        asked.append(count)
        raise HttpRefusal(503, "full")

    async def run() -> None:
        await make().jobs([PromptInput(ids=[10**9])] * 300, OPTIONS, RoutedBody(), refuse)

    with pytest.raises(HttpRefusal, match="full"):
        asyncio.run(run())
    assert asked == [300]
