"""What a layer with a sliding window reads, attention sinks, and that a row's result does not depend on its batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pdctl.engine.config.layer_kinds import FULL
from pdctl.engine.model import forward_pass as sinks_module
from pdctl.engine.model.forward_pass import SeqSlice, attend_with_sinks, stretches
from tests.engine.model.peers import CASES, Case, forward, logits_of, make_peer, make_runner, run_of_pages, token_ids

NAMED = {case.name: case for case in CASES}
ALL_WINDOWED = NAMED["mistral-window-within-a-page"]
WINDOW = 5
GPT_OSS = NAMED["gpt-oss-window-within-a-page"]


def test_a_stretch_begins_where_the_first_new_tokens_window_does() -> None:
    pages = np.arange(10, 20, dtype=np.int32)
    (whole,) = stretches([SeqSlice(pages, 9, 3)], 4, FULL)
    assert (whole.pages.tolist(), whole.skip, whole.length) == ([10, 11, 12], 0, 12)
    (part,) = stretches([SeqSlice(pages, 9, 3)], 4, 5)  # token 9 attends to 5, 6, 7, 8 and itself
    assert (part.pages.tolist(), part.skip, part.length) == ([11, 12], 1, 7)
    (short,) = stretches([SeqSlice(pages, 2, 1)], 4, 5)
    assert (short.pages.tolist(), short.skip, short.length) == ([10], 0, 3)
    (alone,) = stretches([SeqSlice(pages, 8, 1)], 4, 1)
    assert (alone.pages.tolist(), alone.skip, alone.length) == ([12], 0, 1)


@pytest.mark.parametrize("layout", ["layer-major", "page-major", "head-major"])
def test_decode_does_not_read_pages_before_the_window(tmp_path: Path, layout: str) -> None:
    """What lies on pages that no window reaches may be anything."""
    case = Case("windowed", "mistral", (4, 2), 12, 4, layout, window=ALL_WINDOWED.window)
    peer, runner = make_peer(case, tmp_path), make_runner(case, tmp_path)
    ids, pages = token_ids(case, 40), run_of_pages(case, 1, 40)
    forward(runner, (ids, pages, 0, 39))
    first = (39 + 1 - WINDOW) // case.page_size
    for layer in range(runner.config.layers):
        for slab in (runner.pool.k(layer), runner.pool.v(layer)):
            slab[pages[:first].tolist()] = float("nan")
    got = forward(runner, (ids, pages, 39, 40))
    assert (got[0] - logits_of(peer, ids)[39]).abs().max() < 1e-4


@pytest.mark.parametrize("name", [ALL_WINDOWED.name, GPT_OSS.name, "qwen3-full-layer-last"])
def test_greedy_tokens_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    case = NAMED[name]
    peer, runner = make_peer(case, tmp_path), make_runner(case, tmp_path)
    prompt = token_ids(case, 20)
    given = torch.from_numpy(prompt)[None]
    options = {"max_new_tokens": 30, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with torch.inference_mode():
        # The mask says that a token 0 in the prompt is no padding.
        expected = peer.generate(given, attention_mask=torch.ones_like(given), **options)[0].numpy()
    pages = run_of_pages(case, 1, 50)
    ids = prompt
    logits = forward(runner, (ids, pages, 0, 20))
    while len(ids) < 50:
        ids = np.append(ids, int(logits.argmax()))
        logits = forward(runner, (ids, pages, len(ids) - 1, len(ids)))
    assert ids.tolist() == expected.tolist()


@pytest.mark.parametrize("name", [CASES[0].name, ALL_WINDOWED.name, GPT_OSS.name, "qwen2-moe-shared-expert-gate"])
def test_a_decoding_row_does_not_notice_a_prefill_in_its_batch(tmp_path: Path, name: str) -> None:
    """Bit for bit."""
    case = NAMED[name]
    make_peer(case, tmp_path)
    runner = make_runner(case, tmp_path)
    ids, pages = token_ids(case, 60), run_of_pages(case, 1, 60)
    other = run_of_pages(case, int(pages[-1]) + 1, 60)
    forward(runner, (ids, pages, 0, 30))
    alone = forward(runner, (ids, pages, 30, 31))
    among = forward(runner, (ids, other, 0, 17), (ids, pages, 30, 31))
    assert torch.equal(alone[0], among[1])


@pytest.mark.parametrize("masking", ["none", "causal", "mask"])
def test_sinks_take_their_share_of_the_softmax(masking: str) -> None:
    """The kernel's sums give what a softmax with one more column gives."""
    torch.manual_seed(3)
    query, key, value = torch.randn(1, 4, 7, 12), torch.randn(1, 4, 7, 12), torch.randn(1, 4, 7, 12)
    sinks = torch.randn(1, 4, 1) * 3
    hidden = torch.zeros(7, 7).masked_fill_(torch.ones(7, 7).tril(-3).bool(), float("-inf"))
    arguments = (query, key, value, sinks, hidden if masking == "mask" else None, masking == "causal")
    scores = query @ key.transpose(-1, -2) / 12**0.5
    if masking == "mask":
        scores += hidden
    elif masking == "causal":
        scores.masked_fill_(torch.ones(7, 7).triu(1).bool(), float("-inf"))
    shares = torch.cat((scores, sinks.unsqueeze(-1).expand(1, 4, 7, 1)), -1).softmax(-1)[..., :-1]
    for compute in (attend_with_sinks, sinks_module._plain):
        assert torch.allclose(compute(*arguments), shares @ value, atol=1e-6)
