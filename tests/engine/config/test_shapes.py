"""Parallel shapes on the engine's command line: what each flag means, and what is refused with the flag to change."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import pdctl
from pdctl.engine.cluster.rank_processes import Ranks
from pdctl.engine.config import engine_flags
from pdctl.engine.config.engine_flags import BOUNDS
from pdctl.engine.config.instance_args import ReplicaRank, ServerArgs
from pdctl.layout.feasibility import broken_rules
from pdctl.layout.shape import place
from tests.cases import for_each

CHECKPOINTS = Path(pdctl.__file__).parent / "checkpoints"


def parse(words: str, model: str = "tiny-moe") -> ServerArgs:
    return engine_flags.parse(["--model-path", str(CHECKPOINTS / model), *words.split()], {})


def test_the_older_spelling_of_attention_dp() -> None:
    """sglang until 0.5.18; 0.5.23 rewrites it, and /server_info then shows one replica."""
    old, new = parse("--tp-size 4 --dp-size 2 --enable-dp-attention"), parse("--tp-size 4 --attn-dp-size 2")
    assert old == new
    assert (new.dp_size, new.attn_dp_size, new.dp_ranks, new.shape.attn_tp_size) == (1, 2, 2, 2)


def test_attention_dp_groups_share_one_chunk() -> None:
    assert parse("--tp-size 4 --attn-dp-size 4").chunked_prefill_size == 128
    assert parse("--tp-size 4 --dp-size 4").chunked_prefill_size == 512


@for_each(
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
        ("--nnodes 2 --node-rank 5", ("--node-rank 5: an instance with --nnodes 2 has nodes 0 to 1",)),
        ("--node-rank 1", ("--node-rank 1: an instance of one node has node 0 alone",)),
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
    ("model", "words", "said"),
    [
        (
            "tiny",
            "--tp-size 3",
            "num_attention_heads 4 is not divisible by --tp-size 3; try --tp-size 4 or ",
        ),
        ("tiny", "--tp-size 6 --attn-dp-size 2", "--tp-size / --attn-dp-size) 3; try --tp-size 8 or --tp-size 4"),
        ("tiny", "--pp-size 5", "num_hidden_layers 4 are fewer than --pp-size 5 stages; try --pp-size 4"),
        ("tiny", "--tp-size 2 --ep-size 2", "--ep-size 2: LlamaForCausalLM has no experts; try --ep-size 1"),
        ("tiny-moe", "--tp-size 3 --ep-size 3", "is not divisible by --tp-size 3; try --tp-size 4 --ep-size 4"),
        # Sizes that are sound by themselves are no advice where the model does not fit them.
        (
            "tiny",
            "--tp-size 8 --attn-dp-size 3",
            "by --attn-dp-size 3 (the embedded engine needs tp_size % ",
        ),
        ("tiny", "--tp-size 8 --attn-dp-size 3", "== 0); try --attn-dp-size 4 or --attn-dp-size 2"),
    ],
)
def test_a_shape_the_model_cannot_be_cut_into_is_refused_with_sizes_that_work(
    model: str, words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        parse(words, model)
    assert refused.value.code == 2
    *_, told = capsys.readouterr().err.splitlines()
    assert said in told
    for way in told.partition("; try ")[2].split(" or "):
        assert parse(f"{words} {way}", model).shape.gpus


def test_what_is_wrong_is_not_buried_in_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--tp-size 0")
    assert len(capsys.readouterr().err.splitlines()) == 2


@for_each(
    ("words", "said"),
    [
        ("--port 65536", "--port 65536: must be 1 to 65535"),
        ("--page-size -16", "--page-size -16: must be at least 1"),
        ("--chunked-prefill-size 0", "--chunked-prefill-size 0: must be at least 1"),
        ("--disaggregation-transfer-threads 65", "must be 1 to 64, or 0: by cores"),
        ("--base-gpu-id -1", "--base-gpu-id -1: must be at least 0"),
        ("--max-total-tokens -3", "--max-total-tokens -3: must be at least 1, or 0: from the memory at hand"),
        ("--max-total-tokens 15", "--max-total-tokens 15: must be at least one page, --page-size 16"),
        ("--context-length -5", "--context-length -5: must be at least 1, or 0: from the checkpoint"),
        ("--num-threads -3", "--num-threads -3: must be at least 1, or 0: by cores"),
        ("--decode-log-interval 0", "--decode-log-interval 0: must be at least 1"),
        ("--random-seed -1", "--random-seed -1: must be at least 0"),
        ("--dist-timeout 0", "--dist-timeout 0.0: must be 0.001 to 2000000"),
        ("--heartbeat-interval -1", "--heartbeat-interval -1.0: must be 0.001 to 2000000"),
        ("--bootstrap-timeout nan", "--bootstrap-timeout nan: must be 0.001 to 2000000"),
        ("--waiting-timeout inf", "--waiting-timeout inf: must be 0.001 to 2000000"),
        ("--shutdown-grace -1", "--shutdown-grace -1.0: must be 0 to 2000000"),
        ("--dtype int7", "argument --dtype: invalid choice: 'int7'"),
    ],
)
def test_a_number_that_cannot_be_is_refused_with_those_that_can(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        parse(words)
    assert refused.value.code == 2
    assert said in capsys.readouterr().err


def test_every_number_of_the_command_line_is_bounded() -> None:
    numbers = {field.name for field in dataclasses.fields(ServerArgs) if field.type in ("int", "float")}
    assert numbers - {"node_rank"} == set(BOUNDS)  # bounded by --nnodes
    assert all(bound.holds(getattr(ServerArgs(""), name)) for name, bound in BOUNDS.items())


def test_a_variable_that_is_no_number_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("soon", "inf"):
        with pytest.raises(SystemExit):
            engine_flags.parse(
                ["--model-path", str(CHECKPOINTS / "tiny")], {"SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE": word}
            )
        assert f"SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE={word!r} is not a number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.json", None, "no config.json there; give the directory of a Hugging Face checkpoint"),
        ("config.json", "{", "config.json: not JSON"),
        (
            "config.json",
            '{"architectures": ["GPT2LMHeadModel"]}',
            "GPT2LMHeadModel is not served by the ",
        ),
        ("generation_config.json", "[", "generation_config.json: not JSON"),
        ("model.safetensors", None, "neither model.safetensors nor model.safetensors.index.json is there"),
        ("model.safetensors", "version https://", "model.safetensors: not a readable safetensors file: 16 bytes"),
        ("model.safetensors.index.json", "{}", "model.safetensors.index.json: no index of safetensors files"),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_refused_by_its_file(
    file: str, content: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (CHECKPOINTS / "tiny").iterdir():
        if path.name != file:
            (tmp_path / path.name).symlink_to(path)
    if content is not None:
        (tmp_path / file).write_text(content)
    with pytest.raises(SystemExit) as refused:
        engine_flags.parse(["--model-path", str(tmp_path)], {})
    assert refused.value.code == 2
    *_, told = capsys.readouterr().err.splitlines()
    assert "--model-path" in told
    assert said in told


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
    assert broken_rules(args.shape) == ()
    everyone = ReplicaRank.all(args.shape)
    assert [here.rank for here in everyone] == list(place(args.shape))
    assert len({here.key for here in everyone}) == len(everyone) == args.shape.gpus
    for here in everyone:
        found = ReplicaRank.find(args.shape, here.replica, here.rank.pp_rank, here.rank.tp_rank)
        assert found == here


def test_missing_ranks_are_named_node_by_node(tmp_path: Path) -> None:
    ranks = Ranks(parse("--tp-size 4 --attn-dp-size 2 --nnodes 2 --dist-init-addr h:20000"), tmp_path)
    assert ranks.expected == 4
    assert ranks.missing([(0, 0, 0), (0, 0, 1)]) == "DP1 TP2, DP1 TP3 of node 1"
    assert ranks.missing([(0, 0, 0), (1, 0, 2)]) == "DP0 TP1 of node 0; DP1 TP3 of node 1"
    alone = Ranks(parse("--tp-size 2"), tmp_path)
    assert alone.missing([]) == "TP0, TP1"
