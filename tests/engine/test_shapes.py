"""Parallel shapes on the engine's command line: what each flag means, and what is refused with the flag to change."""

from __future__ import annotations

from pathlib import Path

import pytest

import pdctl
from pdctl.engine import args as engine_args
from pdctl.engine.args import ServerArgs
from pdctl.engine.ranks import Ranks
from pdctl.engine.whereabouts import Whereabouts
from pdctl.layout.feasibility import check
from pdctl.layout.ranks import place

TINY = str(Path(pdctl.__file__).parent / "checkpoints" / "tiny")


def parse(words: str) -> ServerArgs:
    return engine_args.parse(["--model-path", TINY, *words.split()], {})


def test_the_older_spelling_of_attention_dp() -> None:
    """sglang until 0.5.18; 0.5.23 rewrites it, and /server_info then shows one replica."""
    old, new = parse("--tp-size 4 --dp-size 2 --enable-dp-attention"), parse("--tp-size 4 --attn-dp-size 2")
    assert old == new
    assert (new.dp_size, new.attn_dp_size, new.dp_ranks, new.shape.attn_tp_size) == (1, 2, 2, 2)


def test_attention_dp_groups_share_one_chunk() -> None:
    assert parse("--tp-size 4 --attn-dp-size 4").chunked_prefill_size == 128
    assert parse("--tp-size 4 --dp-size 4").chunked_prefill_size == 512


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--tp-size 4 --attn-dp-size 3", ("--tp-size 4 is not divisible by --attn-dp-size 3", "--attn-dp-size 2")),
        ("--tp-size 4 --ep-size 3", ("--tp-size 4 is not divisible by --ep-size 3", "--ep-size 2")),
        ("--tp-size 4 --attn-dp-size 2 --dp-size 2", ("2 replicas", "--dp-size 1")),
        ("--tp-size 3 --nnodes 2 --dist-init-addr h:1", ("--tp-size 3 x --pp-size 1 on 2 nodes", "try ")),
        ("--tp-size 2 --dp-size 2 --nnodes 2 --dist-init-addr h:1", ("use attention DP", "--attn-dp-size 2")),
        ("--tp-size 6 --pp-size 2 --nnodes 3 --dist-init-addr h:1", ("--pp-size 2 on 3 nodes",)),
        ("--tp-size 2 --nnodes 2", ("needs --dist-init-addr HOST:PORT",)),
        ("--tp-size 2 --nnodes 2 --node-rank 2 --dist-init-addr h:1", ("--node-rank 2", "0 to 1")),
        ("--tp-size 2 --nnodes 2 --dist-init-addr host", ("--dist-init-addr host: give HOST:PORT",)),
        ("--tp-size 2 --nnodes 2 --dist-init-addr h:65530", ("13 more ports above it",)),
        ("--pp-size 0", ("--pp-size 0: must be at least 1",)),
        ("--dp-size 2 --load-balance-method follow_bootstrap_room", ("have a room", "use round_robin")),
        ("--tp-size 8 --attn-dp-size 8 --chunked-prefill-size 64", ("gets 8 tokens", "--page-size 16", "use 128")),
    ],
)
def test_what_cannot_run_is_refused_with_flag_and_fix(
    words: str, said: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        parse(words)
    assert refused.value.code == 2
    told = " ".join(capsys.readouterr().err.split())
    for part in said:
        assert part in told, told


@pytest.mark.parametrize(
    "words",
    [
        "--tp-size 16 --attn-dp-size 8 --ep-size 16 --nnodes 2 --node-rank 1 --dist-init-addr h:20000",
        "--tp-size 8 --attn-dp-size 8 --ep-size 8",
        "--tp-size 4 --pp-size 2 --attn-dp-size 2 --nnodes 2 --dist-init-addr h:20000",
        "--tp-size 2 --dp-size 3 --base-gpu-id 2",
    ],
)
def test_a_shape_that_is_planned_is_accepted(words: str) -> None:
    args = parse(words)
    assert check(args.shape) == ()
    everyone = Whereabouts.all(args.shape)
    assert [here.rank for here in everyone] == list(place(args.shape))
    assert len({here.key for here in everyone}) == len(everyone) == args.shape.gpus
    for here in everyone:
        found = Whereabouts.find(args.shape, here.replica, here.rank.pp_rank, here.rank.tp_rank)
        assert found == here


def test_missing_ranks_are_named_node_by_node(tmp_path: Path) -> None:
    ranks = Ranks(parse("--tp-size 4 --attn-dp-size 2 --nnodes 2 --dist-init-addr h:20000"), tmp_path)
    assert ranks.expected == 4
    assert ranks.missing([(0, 0, 0), (0, 0, 1)]) == "DP1 TP2, DP1 TP3 of node 1"
    assert ranks.missing([(0, 0, 0), (1, 0, 2)]) == "DP0 TP1 of node 0; DP1 TP3 of node 1"
    alone = Ranks(parse("--tp-size 2"), tmp_path)
    assert alone.missing([]) == "TP0, TP1"
