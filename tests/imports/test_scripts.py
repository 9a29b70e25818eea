"""Start scripts: variables, loops, several files, nodes that contradict each other."""

from __future__ import annotations

import pytest

from pdctl.errors import UsageError
from pdctl.imports.found import Sort
from pdctl.imports.importer import import_texts
from tests.cases import for_each
from tests.imports.made import DECODE, PREFILL, ROUTER, imported

ALL_PORTS = "--prefill http://127.0.0.1:30000 8998 --decode http://127.0.0.1:30001"


def test_three_files_are_one_topology() -> None:
    made = imported(
        f"""\
        #!/bin/bash
        export MC_TE_METRIC=1
        {PREFILL} --tp 2 --page-size 64 \\
          --trust-remote-code --chunked-prefill-size 8192 \\
          --disaggregation-transfer-backend mooncake > prefill.log 2>&1 &
        """,
        f"""\
        export MC_TE_METRIC=1
        {DECODE} --tp 4 --dp-size 4 --enable-dp-attention --base-gpu-id 2 \\
          --trust-remote-code --page-size 64 --cuda-graph-bs-decode 1 2 4 --disaggregation-transfer-backend mooncake &
        """,
        f"{ROUTER} {ALL_PORTS} --policy random --port 9000 --log-level debug",
    )
    assert made.values == {
        "version": "pdctl/v1",
        "name": "test",
        "model": {"path": "Qwen/Qwen3-8B"},
        "engine": {
            "kind": "sglang",
            "traceable": False,
            "args": {"trust-remote-code": True},
            "env": {"MC_TE_METRIC": "1"},
        },
        "roles": {
            "prefill": {"instances": 1, "tp": 2, "page-size": 64, "args": {"chunked-prefill-size": 8192}},
            "decode": {
                "instances": 1, "tp": 4, "dp": 4, "page-size": 64, "args": {"cuda-graph-bs-decode": [1, 2, 4]}
            },
        },
        "router": {"kind": "sglang-router", "port": 9000, "policy": "random", "args": {"log-level": "debug"}},
        "transfer": {"backend": "mooncake"},
    }  # fmt: skip
    assert made.plan().feasible
    assert not made.said(Sort.SUSPECT)
    assert not made.said(Sort.LEFT_OUT)


def test_loops_arrays_and_sums_are_gone_through() -> None:
    made = imported(
        f"""\
        COMMON=(--model-path "$MODEL" --trust-remote-code)
        BASE=30000
        for i in 0 1; do
          CUDA_VISIBLE_DEVICES=$((i + 4)) python3 -m sglang.launch_server "${{COMMON[@]}}" "$@" \\
            --disaggregation-mode prefill --port $((BASE + i)) --disaggregation-bootstrap-port $((8998 + i)) &
        done
        CUDA_VISIBLE_DEVICES=6 \\
          python3 -m sglang.launch_server "${{COMMON[@]}}" --disaggregation-mode decode --port 30002 &
        {ROUTER} --prefill http://127.0.0.1:30000 8998 --prefill http://127.0.0.1:30001 8999 \\
          --decode http://127.0.0.1:30002 --port 8000
        """,
        known={"MODEL": "org/model"},
    )
    assert made.values["model"]["path"] == "org/model"
    assert made.values["roles"]["prefill"]["instances"] == 2
    assert made.values["targets"] == {"local": {"gpus": [4, 5, 6]}}
    assert not made.said(Sort.CHANGED)
    assert [one.numbers.http for one in made.plan().instances] == [30000, 30001, 30002]


def test_a_file_that_others_source_gives_them_its_variables() -> None:
    made = imported("MODEL=org/model\nTP=2\n", f"source a.sh\n{PREFILL} --tp $TP", f". ./a.sh\n{DECODE} --tp ${{TP}}")
    assert made.values["roles"]["prefill"]["tp"] == made.values["roles"]["decode"]["tp"] == 2


def node(role: str, rank: int, flags: str = "", env: str = "") -> str:
    return (
        f"{env} python3 -m sglang.launch_server --model-path /m/deepseek --disaggregation-mode {role} --tp 16 "
        f"--host $HOST --port 30000 --nnodes 2 --node-rank {rank} --dist-init-addr $HEAD_{role.upper()}:5000 {flags}\n"
    )


def test_nodes_that_meet_at_one_address_are_one_instance() -> None:
    made = imported("".join(node(role, rank) for role in ("prefill", "decode") for rank in (0, 1)))
    assert made.values["pools"] == {"prefill": {"gpus-per-host": 8}, "decode": {"gpus-per-host": 8}}
    plan = made.plan()
    assert [(one.name, one.nnodes) for one in plan.instances] == [("prefill-0", 2), ("decode-0", 2)]
    assert made.values["model"] == {"path": "/m/deepseek", "served-name": "/m/deepseek"}
    assert not made.said(Sort.SUSPECT)


def test_nodes_that_contradict_each_other_are_told_with_their_place() -> None:
    made = imported(
        node("prefill", 0, "--mem-fraction-static 0.8 --page-size 64", "NCCL_IB_HCA=mlx5_0")
        + node("prefill", 1, "--mem-fraction-static 0.85 --trust-remote-code", "NCCL_IB_HCA=mlx5_1")
        + node("decode", 0)
        + node("decode", 1)
    )
    assert made.said(Sort.SUSPECT) == [
        "a.sh:2: --mem-fraction-static is 0.85 on node 1 of a prefill and 0.8 on node 0, whose value is taken",
        "a.sh:1: --page-size 64 is missing on node 1 of a prefill: given to all its nodes, as on node 0",
        "a.sh:2: --trust-remote-code given stands on node 1 of a prefill alone: left out, as on node 0",
        "a.sh:2: NCCL_IB_HCA is mlx5_1 on node 1 of a prefill, mlx5_0 on node 0, whose value is taken",
    ]
    assert made.values["roles"]["prefill"]["mem-fraction"] == 0.8


def test_instances_of_a_role_that_differ_are_told() -> None:
    made = imported(
        f"{PREFILL} --page-size 64 --disaggregation-bootstrap-port 8998 &",
        f"{PREFILL.replace('30000', '30001')} --page-size 32 --disaggregation-bootstrap-port 8999 &",
        DECODE.replace("30001", "30002"),
    )
    assert made.said(Sort.SUSPECT) == [
        "b.sh:1: --page-size 32 here, and 64 at a.sh:1: a role has one setting, the latter is taken"
    ]


def test_what_the_roles_have_to_agree_on_and_do_not() -> None:
    made = imported(f"{PREFILL} --kv-cache-dtype fp8_e4m3\n{DECODE} --kv-cache-dtype bf16 --context-length 4096\n")
    assert made.said(Sort.SUSPECT) == [
        "a.sh:2: --kv-cache-dtype bf16 on decode and fp8_e4m3 on prefill: both get the latter"
    ]
    assert made.said(Sort.CHANGED) == [
        "a.sh:2: --context-length 4096 is given to prefill too: it has one place for both"
    ]


def test_a_router_without_bootstrap_ports_is_told_and_mended() -> None:
    made = imported(PREFILL, DECODE, f"{ROUTER} --prefill http://127.0.0.1:30000 --decode http://127.0.0.1:30001")
    (said,) = made.said(Sort.SUSPECT)
    assert said.startswith("c.sh:1: no bootstrap port for http://127.0.0.1:30000: the router sends null")
    router = made.plan().router
    assert router is not None
    assert "8998" in router.command.argv


def test_a_router_with_the_ports_of_others_is_told() -> None:
    made = imported(
        f"{PREFILL} --disaggregation-bootstrap-port 9000\n{PREFILL.replace('30000', '30005')} "
        "--disaggregation-bootstrap-port 9001\n",
        DECODE,
        f"{ROUTER} --prefill http://127.0.0.1:30000 9001 --prefill http://127.0.0.1:30005 9001 "
        "--decode http://127.0.0.1:30001 --port 8000",
    )
    assert made.said(Sort.SUSPECT) == [
        "c.sh:1: bootstrap port 9001 for http://127.0.0.1:30000, which listens on 9000; pdctl gives that one"
    ]


def test_addresses_of_hosts_do_not_vanish_in_silence() -> None:
    made = imported(
        "python3 -m sglang.launch_server --model-path m --disaggregation-mode prefill --host 10.0.0.5 --port 30000",
        "python3 -m sglang.launch_server --model-path m --disaggregation-mode decode --host 10.0.0.6 --port 30000",
        "python3 -m sglang_router.launch_router --pd-disaggregation --prefill http://10.0.0.5:30000 8998 "
        "--decode http://10.0.0.6:30000",
    )
    said = "hosts (prefill on 10.0.0.5, decode on 10.0.0.6) became pools: the target says which hosts they are"
    assert said in made.said(Sort.CHANGED)


def test_hosts_of_a_router_are_pools() -> None:
    made = imported(
        f"{PREFILL} --tp 8",
        f"{DECODE.replace('30001', '30000')} --tp 4",
        f"""{ROUTER} --prefill http://gpu-0:30000 8998 --prefill http://gpu-1:30000 8998 \\
          --decode http://$DECODE_HOST:30000""",
    )
    assert made.values["pools"] == {"gpu": {"gpus-per-host": 8}, "decode": {"gpus-per-host": 4}}
    assert made.said(Sort.ASSUMED)[0] == (
        "c.sh:1: one more prefill at http://gpu-1:30000, started like the one at a.sh:1"
    )
    assert [one.host_name for one in made.plan().instances] == ["gpu-0", "gpu-1", "decode-0"]


@pytest.mark.parametrize(
    ("prefill", "decode", "why"),
    [
        (f"{PREFILL} --tp 2", DECODE.replace("30001", "30000"), "two of them listen on port 30000"),
        (f"{PREFILL} --tp 8", f"{DECODE} --tp 8", "together they take 16 GPUs"),
    ],
)
def test_scripts_for_hosts_nobody_names(prefill: str, decode: str, why: str) -> None:
    made = imported(prefill, decode)
    assert f"every instance runs on a host of its own: {why}" in made.said(Sort.ASSUMED)
    assert [one.host_name for one in made.plan().instances] == ["prefill-0", "decode-0"]


def test_what_hangs_on_an_unknown_variable_is_left_out_and_can_be_given() -> None:
    text = f"{PREFILL} --tp $GPUS --max-running-requests ${{MOST}} --enable-metrics $EXTRA\n{DECODE}\n"
    made = imported(text)
    assert made.said(Sort.LEFT_OUT) == [
        "a.sh:1: --max-running-requests ${MOST}: nobody says what that is; give it with --var NAME=VALUE"
    ]
    assert "a.sh:1: --tp $GPUS: taken as 1; give it with --var NAME=VALUE" in made.said(Sort.ASSUMED)
    given = imported(text, known={"GPUS": "4", "MOST": "64"})
    assert given.values["roles"]["prefill"] == {
        "instances": 1, "tp": 4, "args": {"max-running-requests": 64, "enable-metrics": True}
    }  # fmt: skip


def test_flags_of_an_older_release_choose_the_release() -> None:
    made = imported(f"{PREFILL}\n{DECODE} --cuda-graph-max-bs 64\n")
    assert made.values["engine"]["version"] == "0.5.19"
    assert made.plan().feasible


def test_flags_no_release_has_are_left_out() -> None:
    made = imported(f"{PREFILL} --disaggregation-decode-url http://d:1 --enable-metrics yes\n{DECODE} --trust-remote\n")
    assert made.said(Sort.SUSPECT) == [
        "a.sh:1: --disaggregation-decode-url http://d:1: no release of SGLang has this flag; left out",
        "a.sh:1: --enable-metrics yes: the flag stands alone, SGLang refuses a value",
    ]
    assert made.values["roles"]["decode"]["args"] == {"trust-remote-code": True}


def test_flags_of_another_router_are_left_out() -> None:
    router = f"{ROUTER} {ALL_PORTS} --port 8000 --enable-mesh --log-level debug --service-discovery --timeout 5"
    made = imported(PREFILL, DECODE, router)
    assert made.values["router"]["args"] == {"log-level": "debug"}
    assert made.said(Sort.SUSPECT) == [
        "c.sh:1: --enable-mesh: sglang-router has no such flag; left out",
        "c.sh:1: --timeout 5: sglang-router has no such flag; left out",
    ]


def test_ports_that_pdctl_counts_otherwise_are_told() -> None:
    router = f"{ROUTER} --port 8000 {ALL_PORTS.replace('30001', '30010')}"
    made = imported(PREFILL, DECODE.replace("30001", "30010"), router)
    assert made.said(Sort.CHANGED) == [
        "b.sh:1: port of decode-0: 30001 instead of 30010, for pdctl counts up from the first"
    ]


def test_a_port_that_would_meet_another_is_left_to_pdctl() -> None:
    made = imported(f"{PREFILL} --disaggregation-bootstrap-port 30001\n{DECODE.replace('30001', '30005')}\n")
    assert made.said(Sort.CHANGED)[-1].startswith("ports.bootstrap 30001: two servers would meet there")
    assert made.plan().feasible


def test_what_makes_it_traceable_stays_one_word() -> None:
    flags = "--enable-request-time-stats-logging --log-requests --log-requests-level 0 --enable-metrics"
    made = imported(f"{PREFILL} {flags}\n{DECODE} {flags}\n")
    assert made.values["engine"] == {"kind": "sglang"}


def test_dynamo_becomes_plain_sglang() -> None:
    text = "".join(
        f"python3 -m dynamo.sglang --model-path m --disaggregation-mode {role} --skip-tokenizer-init --endpoint a.b &\n"
        for role in ("prefill", "decode")
    )
    made = imported(f"python3 -m dynamo.frontend &\n{text}")
    assert made.said(Sort.LEFT_OUT)[:2] == [
        "a.sh:2: --skip-tokenizer-init: a router needs tokens from SGLang",
        "a.sh:2: --endpoint a.b: Dynamo's, not SGLang's",
    ]
    assert made.values["router"]["kind"] == "sglang-router"


def test_a_container_around_a_command_is_taken_apart() -> None:
    made = imported(
        f"docker run -d --gpus all -e HF_HOME=/hf --env A=b lmsysorg/sglang:v0.5.18 {PREFILL}\n"
        f"docker run -d --gpus all -e HF_HOME=/hf --env A=b lmsysorg/sglang:v0.5.18 {DECODE}\n"
    )
    assert made.values["engine"]["env"] == {"HF_HOME": "/hf", "A": "b"}
    assert made.values["engine"]["version"] == "0.5.18"


def test_an_interpreter_of_its_own_is_kept() -> None:
    made = imported("\n".join(text.replace("python3", "/srv/sglang/bin/python3") for text in (PREFILL, DECODE)))
    assert made.values["engine"]["command"] == ["/srv/sglang/bin/python3", "-m", "sglang.launch_server"]


def test_a_command_for_another_host_is_found() -> None:
    made = imported(f"ssh p0 '{PREFILL} --tp 2'\nssh d0 \"{DECODE} --tp 2\"\necho 'now run {DECODE} --tp 4'\n")
    assert made.values["roles"]["decode"] == {"instances": 1, "tp": 2}


@for_each(
    ("texts", "said"),
    [
        ([PREFILL], "no decode engine is started"),
        ([f"{ROUTER} {ALL_PORTS}"], "no prefill and no decode engine is started"),
        (["echo hello\n"], "nothing in 0.sh starts an SGLang engine or a router"),
        ([""], "nothing in 0.sh starts"),
        (["version: pdctl/v1\nroles: {}\n"], "0.sh is a topology already"),
        ([PREFILL, f"python3 -m pdctl.engine {DECODE[34:]}"], "the engines are of two kinds: embedded and sglang"),
    ],
)
def test_what_cannot_be_imported_is_refused(texts: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        import_texts([(f"{at}.sh", text) for at, text in enumerate(texts)], {}, "x", {})


def test_a_routers_command_alone_is_no_topology_and_says_what_is_wrong_with_it() -> None:
    """As a write-up prints it: one command, continued lines, no engine."""
    text = """\
sglang-router launch --pd-disaggregation \\
  --prefill http://10.1.0.3:31000 \\
  --prefill http://10.1.0.3:31001 \\
  --decode http://10.1.0.4:31000 --port 8100
"""
    with pytest.raises(UsageError) as caught:
        import_texts([("start.sh", text)], {}, "test", {})
    said, fix = caught.value.message, caught.value.fix
    assert "no prefill and no decode engine is started in these files" in said
    assert "start.sh:2: PD201 bootstrap-port-null: no bootstrap port for http://10.1.0.3:31000" in said
    assert "start.sh:3: PD201 bootstrap-port-null: no bootstrap port for http://10.1.0.3:31001" in said
    assert "--prefill http://10.1.0.3:31000 PORT --prefill http://10.1.0.3:31001 PORT" in fix
    with_ports = text.replace("31000 \\", "31000 9001 \\").replace("31001 \\", "31001 9002 \\")
    with pytest.raises(UsageError) as caught:
        import_texts([("start.sh", with_ports)], {}, "test", {})
    assert "PD201" not in caught.value.message
