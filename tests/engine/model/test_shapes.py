"""Every parallel shape computes what one rank computes, over real processes; a rank's answer is its group's alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pdctl.engine.model.forward_pass import ForwardBatch, Share
from pdctl.engine.model.parallel import Groups
from tests.engine.checkpoints import KINDS, make_checkpoint
from tests.engine.model import forked_ranks
from tests.engine.model.passes import FEWEST_PAGES, PASSES, RANKS, WORLDS, Piece, World, make_runner, run
from tests.ports import free_block

TOLERANCE = 1e-4

Logits = dict[Piece, torch.Tensor]
CASES = [pytest.param(world, kind, id=f"{world.name} {kind}") for world in WORLDS for kind in world.kinds]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("shapes")
    for kind in KINDS:
        make_checkpoint(kind, directory / kind)
    return directory


@pytest.fixture(scope="module")
def alone(checkpoints: Path) -> dict[str, Logits]:
    """What one rank computes."""
    groups = Groups.single()
    return {kind: run(make_runner(checkpoints / kind, groups), groups) for kind in KINDS}


@pytest.fixture(scope="module")
def ranks(checkpoints: Path) -> list[dict[tuple[str, str], Logits]]:
    forked_ranks.run("tests.engine.model.shape_rank", RANKS, str(free_block(len(WORLDS))), str(checkpoints))
    return [torch.load(checkpoints / f"rank{rank}.pt", weights_only=False) for rank in range(RANKS)]


@pytest.mark.parametrize(("world", "kind"), CASES)
def test_a_shape_computes_what_one_rank_computes(
    ranks: list[dict[tuple[str, str], Logits]], alone: dict[str, Logits], world: World, kind: str
) -> None:
    got: Logits = {}
    for rank in ranks:
        got |= rank[world.name, kind]
    assert got.keys() == alone[kind].keys()
    for piece, logits in got.items():
        expected = alone[kind][piece]
        assert (logits - expected).abs().max() < TOLERANCE, piece
        assert logits.argmax() == expected.argmax(), piece


@pytest.mark.parametrize(("world", "kind"), CASES)
def test_ranks_with_the_same_tokens_hold_the_same_logits(
    ranks: list[dict[tuple[str, str], Logits]], world: World, kind: str
) -> None:
    """Bit for bit: each of them samples for itself and must take the same token."""
    first: Logits = {}
    compared = 0
    for rank in ranks:
        for piece, logits in rank[world.name, kind].items():
            compared += piece in first
            assert torch.equal(first.setdefault(piece, logits), logits), piece
    assert bool(compared) == (world.shape.attn_tp_size > 1)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_a_sum_over_ranks_does_not_depend_on_the_rows_beside_it(ranks: list[dict], world: World) -> None:
    for rank in ranks:
        fewest, *others = rank["sums", world.name]
        for rows in (fewest, *others):
            assert torch.equal(rows, fewest[:1].expand_as(rows))


def test_only_the_last_stage_has_logits(ranks: list[dict[tuple[str, str], Logits]]) -> None:
    pieces = sum(len(work) for works in PASSES for work in works)
    assert [len(rank["tp2 pp2", "gqa"]) for rank in ranks] == [0, 0, pieces, pieces]


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_every_rank_has_as_many_pages_as_the_one_with_the_least_room(
    ranks: list[dict[tuple[str, str], tuple[int, int]]], world: World
) -> None:
    room, agreed = zip(*(rank["pages", world.name] for rank in ranks), strict=True)
    assert len(set(room)) == RANKS
    assert set(agreed) == {min(room)} == {FEWEST_PAGES}


def test_a_batch_that_contradicts_its_shares_is_refused(checkpoints: Path) -> None:
    """Groups that count differently would wait for each other for ever."""
    runner = make_runner(checkpoints / "gqa", Groups.single())
    with pytest.raises(ValueError, match="2 shares for 1 attention DP groups"):
        runner.forward(ForwardBatch([], [], (Share(0, 0, False), Share(3, 1, True))))
