"""Logits equal those of transformers on random small models, however the work is cut into steps and pages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pdctl.engine.kvcache.kv_pool import KVPool
from pdctl.engine.model.forward_pass import ForwardBatch, SeqSlice
from pdctl.engine.model.model_runner import ModelRunner
from tests.engine.model.peers import CASES, Case, forward, logits_of, make_peer, make_runner, run_of_pages, token_ids

TOLERANCE = 1e-4
LONGEST = 75  # tokens: several pages of every case but the largest page size


@dataclass(frozen=True)
class Subject:
    case: Case
    runner: ModelRunner
    ids: np.ndarray
    expected: torch.Tensor  # logits after each of `ids`
    pages: np.ndarray  # one run that holds `ids`


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    case: Case = request.param
    directory = tmp_path_factory.mktemp(case.name)
    peer = make_peer(case, directory)
    ids = token_ids(case, LONGEST)
    return Subject(case, make_runner(case, directory), ids, logits_of(peer, ids), run_of_pages(case, 1, LONGEST))


@pytest.fixture
def llama(tmp_path: Path) -> tuple[Case, Path]:
    make_peer(CASES[0], tmp_path)
    return CASES[0], tmp_path


def close(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((got - expected).abs().max() < TOLERANCE)


def test_prefill_in_one_step(subject: Subject) -> None:
    for stop in (1, 2, 16, 17, LONGEST):
        got = forward(subject.runner, (subject.ids, subject.pages, 0, stop))
        assert got.dtype == torch.float32
        assert got.shape == (1, subject.case.vocab)
        assert close(got[0], subject.expected[stop - 1])


def cuts(case: Case, stop: int) -> list[int]:
    """Every token for the first model; for the others what differs: borders of pages, of a row's kernels, the ends."""
    if case is CASES[0]:
        return list(range(1, stop))
    near = {1, 2, 16, 17, stop - 1, *(case.page_size + step for step in (-1, 0, 1))}
    return sorted(cut for cut in near if 0 < cut < stop)


def test_prefill_cut_at_any_token(subject: Subject) -> None:
    stop = 36
    for cut in cuts(subject.case, stop):
        first = forward(subject.runner, (subject.ids, subject.pages, 0, cut))
        second = forward(subject.runner, (subject.ids, subject.pages, cut, stop))
        assert close(first[0], subject.expected[cut - 1])
        assert close(second[0], subject.expected[stop - 1])


def decoded(case: Case) -> list[int]:
    """Every token for the first model; for the others those at the borders of three pages and of the window."""
    if case is CASES[0]:
        return list(range(4, LONGEST + 1))
    window = case.window.get("sliding_window", case.extra.get("sliding_window", case.page_size))
    assert isinstance(window, int)
    borders = (*(case.page_size * page for page in (1, 2, 3)), window)
    near = {16, 17, LONGEST - 1, LONGEST, *(border + step for border in borders for step in (-1, 0, 1, 2))}
    return sorted(stop for stop in near if 3 < stop <= LONGEST)


def test_decode_token_by_token(subject: Subject) -> None:
    """What lies between two decoded tokens is prefilled."""
    done = 0
    for stop in decoded(subject.case):
        for end in (stop - 1, stop) if done < stop - 1 else (stop,):
            got = forward(subject.runner, (subject.ids, subject.pages, done, end))
            assert close(got[0], subject.expected[end - 1])
            done = end


def test_batch_of_different_lengths_decodes_as_each_alone(subject: Subject) -> None:
    lengths, first = (1, 2, 15, 16, 17, 40, 64), 1
    parts = []
    for length in lengths:
        pages = run_of_pages(subject.case, first, LONGEST)
        first = int(pages[-1]) + 1
        parts.append((length, pages))
        if first + len(pages) >= subject.runner.pool.geometry.num_pages:
            break
    for length, pages in parts:
        forward(subject.runner, (subject.ids, pages, 0, length))
    for step in range(3):
        got = forward(subject.runner, *((subject.ids, pages, at + step, at + step + 1) for at, pages in parts))
        assert close(got, subject.expected[[at + step for at, _ in parts]])


def test_scattered_pages_next_to_a_run(subject: Subject) -> None:
    """One sequence whose pages lie backwards, with others between them, and one whose pages are a run."""
    case, runner, ids = subject.case, subject.runner, subject.ids
    run = run_of_pages(case, 1, 40)
    scattered = (run_of_pages(case, 1, LONGEST) * 2 + 40)[::-1].copy()
    scattered = (
        scattered if case.page_size > 1 else np.random.default_rng(1).permutation(150)[:LONGEST].astype(np.int32) + 45
    )
    forward(runner, (ids, scattered, 0, 21), (ids, run, 0, 5))
    forward(runner, (ids, run, 5, 30), (ids, scattered, 21, 60))
    got = forward(runner, (ids, scattered, 60, 61), (ids, run, 30, 31))
    assert close(got, subject.expected[[60, 30]])


def test_prefill_continuation_and_decode_in_one_step(subject: Subject) -> None:
    case, ids = subject.case, subject.ids
    pages = [run_of_pages(case, 1, 40)]
    for _ in range(2):
        pages.append(run_of_pages(case, int(pages[-1][-1]) + 1, 40))
    forward(subject.runner, (ids, pages[0], 0, 33), (ids, pages[1], 0, 10))
    got = forward(subject.runner, (ids, pages[0], 33, 34), (ids, pages[1], 10, 38), (ids, pages[2], 0, 7))
    assert close(got, subject.expected[[33, 37, 6]])


def test_an_answer_does_not_depend_on_the_batch_it_is_in(subject: Subject) -> None:
    """Bit for bit: a greedy answer must be the same alone and among others."""
    case, runner, ids = subject.case, subject.runner, subject.ids
    others = [run_of_pages(case, 1, 20)]
    for _ in range(4):
        others.append(run_of_pages(case, int(others[-1][-1]) + 1, 20))
    for pages in others:
        forward(runner, (ids, pages, 0, 18))
    alone = forward(runner, (ids, others[0], 18, 19))
    among = forward(runner, *((ids, pages, 18, 19) for pages in others))
    assert torch.equal(alone[0], among[0])


def test_bfloat16_is_as_close_to_float32_as_transformers_is(llama: tuple[Case, Path]) -> None:
    case, directory = llama
    peer = make_peer(case, directory)
    ids = token_ids(case, 50)
    exact = logits_of(peer, ids)
    theirs = logits_of(peer.to(torch.bfloat16), ids).float()
    runner = make_runner(case, directory, dtype=torch.bfloat16)
    pages = run_of_pages(case, 1, 50)
    ours = torch.stack([forward(runner, (ids, pages, 0, stop))[0] for stop in range(1, 51)])
    assert (ours - exact).square().mean() <= 1.5 * (theirs - exact).square().mean()
    decoded = forward(runner, (ids, pages, 49, 50))
    assert (decoded[0] - exact[49]).abs().max() <= 2 * (theirs - exact).abs().max()


def test_cache_in_bfloat16_under_a_float32_model(llama: tuple[Case, Path]) -> None:
    case, directory = llama
    exact = make_runner(case, directory)
    pool = KVPool(replace(exact.pool.geometry, itemsize=2), dtype=torch.bfloat16)
    small = ModelRunner(exact.config, directory, pool, exact.groups)
    ids, pages = token_ids(case, 40), run_of_pages(case, 1, 40)
    for cut in (0, 20, 39):
        for runner in (exact, small):
            if cut:
                forward(runner, (ids, pages, 0, cut))
        difference = forward(small, (ids, pages, cut, 40)) - forward(exact, (ids, pages, cut, 40))
        assert 0 < difference.abs().max() < 0.2


def test_work_that_does_not_fit_its_pages_is_refused(llama: tuple[Case, Path]) -> None:
    case, directory = llama
    runner = make_runner(case, directory, pages=40)
    pages = np.array([1], np.int32)
    with pytest.raises(ValueError, match="1 pages of 16 tokens do not hold that"):
        runner.forward(ForwardBatch([1] * 17, [SeqSlice(pages, 0, 17)]))
    with pytest.raises(ValueError, match="2 input ids for sequences that extend by 1"):
        runner.forward(ForwardBatch([1, 2], [SeqSlice(pages, 0, 1)]))
    with pytest.raises(ValueError, match="extends by at least 1"):
        runner.forward(ForwardBatch([], [SeqSlice(pages, 3, 0)]))
    with pytest.raises(ValueError, match="257 tokens; this model and pool hold 256"):
        runner.forward(ForwardBatch([1], [SeqSlice(np.arange(1, 30, dtype=np.int32), 256, 1)]))
