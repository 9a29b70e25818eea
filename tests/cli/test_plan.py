"""`pdctl plan` as a user and as a script see it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdctl.cli import exits
from pdctl.cli.plan import IN_TOPOLOGY
from tests.cases import for_each

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests" / "data" / "models"


class Said:
    """One run in this process: exit code, standard output, standard error."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *argv: str) -> None:
        self.code = 0
        try:
            exits.run(["plan", *argv])
        except SystemExit as left:
            self.code = int(left.code or 0)
        self.out, self.err = capsys.readouterr()

    @property
    def document(self) -> Any:
        return json.loads(self.out)


SEED_16_8 = """\
prefill-0: tp_size 16, attn_dp_size 8, attn_tp_size 2, ep_size 1, 16 GPUs on 2 nodes, sglang 0.5.23
NODE  GPU  TP  ATTN_DP  ATTN_TP  EP
   0    0   0        0        0   0
   0    1   1        0        1   0
   0    2   2        1        0   0
   0    3   3        1        1   0
   0    4   4        2        0   0
   0    5   5        2        1   0
   0    6   6        3        0   0
   0    7   7        3        1   0
   1    0   8        4        0   0
   1    1   9        4        1   0
   1    2  10        5        0   0
   1    3  11        5        1   0
   1    4  12        6        0   0
   1    5  13        6        1   0
   1    6  14        7        0   0
   1    7  15        7        1   0
"""


def rows(text: str) -> list[list[str]]:
    """The rank table, cell by cell."""
    lines = text.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("NODE"))
    return [line.split() for line in lines[start + 1 :] if line.strip() and line.split()[0].isdigit()]


def test_the_walkthrough_table(capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "--tp", "16", "--dp", "8")
    assert (said.code, said.out, said.err) == (0, SEED_16_8, "")


def test_one_dp_rank_per_node(capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "--tp", "16", "--dp", "2")
    assert "attn_tp_size 8" in said.out
    assert [(row[0], row[3], row[4]) for row in rows(said.out)] == [
        (str(tp // 8), str(tp // 8), str(tp % 8)) for tp in range(16)
    ]


def test_experts_are_shown_as_they_would_be_launched(capsys: pytest.CaptureFixture[str]) -> None:
    assert [row[5] for row in rows(Said(capsys, "--tp", "16", "--dp", "8", "--ep", "16").out)] == list(
        map(str, range(16))
    )
    assert [row[5] for row in rows(Said(capsys, "--tp", "16", "--dp", "8", "--deepep").out)] == list(
        map(str, range(16))
    )


@pytest.mark.parametrize(("dp", "ranks"), [("8", "0,1"), ("2", "0,1,2,3,4,5,6,7")])
def test_the_link_matrix(capsys: pytest.CaptureFixture[str], dp: str, ranks: str) -> None:
    said = Said(capsys, "--tp", "16", "--dp", dp, "--decode-tp", "32", "--decode-dp", "32")
    assert said.code == 0
    row = next(line.split() for line in said.out.splitlines() if line.startswith("decode-0  0-31"))
    assert row[:6] == ["decode-0", "0-31", "0", "prefill-0", ranks, "-"]
    assert "Performance is NOT guaranteed when using different TP sizes for non-MLA models." in said.out


KEYS = {
    "instances": {"name", "role", "nnodes", "attn_tp_size", "attn_dp_size", "ranks", "ports", "commands", "memory"},
    "links": {"prefill", "decode", "decode_rank", "prefill_ranks", "dummy_ranks"},
}
RANK = {"node", "gpu", "pp_rank", "tp_rank", "attn_dp_rank", "attn_cp_rank", "attn_tp_rank", "moe_ep_rank"}
PORT = {"node", "port", "purpose", "protocol"}


@for_each(
    "argv",
    [
        ("--tp", "16", "--dp", "8", "--decode-tp", "32", "--decode-dp", "32"),
        ("2p1d",),
        ("deepseek-v3-wide",),
        ("--tp", "16", "--dp", "3"),
    ],
    ids=" ".join,
)
def test_the_document_keeps_its_contract(capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]) -> None:
    said = Said(capsys, *argv, "-o", "json")
    document = said.document
    assert document["schema"] == "pdctl.plan/1"
    assert document["feasible"] is (said.code == 0)
    assert set(document) >= {"problems", "instances", "links", "transfer"}
    for name, keys in KEYS.items():
        assert all(set(entry) >= keys for entry in document[name])
    for instance in document["instances"]:
        assert all(set(rank) >= RANK for rank in instance["ranks"])
        assert all(set(port) >= PORT for port in instance["ports"])
        assert len(instance["commands"]) == instance["nnodes"]
    assert yaml.safe_load(Said(capsys, *argv, "-o", "yaml").out) == document


def test_links_of_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("--tp", "16", "--dp", "8", "--decode-tp", "32", "--decode-dp", "32", "-o", "json")
    links = Said(capsys, *argv).document["links"]
    assert [link["decode_rank"] for link in links] == list(range(32))
    assert all(link["prefill_ranks"] == [0, 1] for link in links)


@for_each("form", ["table", "json", "yaml", "shell"])
def test_infeasible_in_every_form(capsys: pytest.CaptureFixture[str], form: str) -> None:
    said = Said(capsys, "--tp", "16", "--dp", "3", "--sglang-version", "0.5.18", "-o", form)
    assert said.code == 1
    assert said.err == ""
    assert "tp_size 16 is not divisible by dp_size 3 (sglang 0.5.18 asserts tp_size % dp_size == 0)" in said.out
    assert "--tp 16 --dp 4" in said.out


def test_an_infeasible_shell_script_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Said(capsys, "--tp", "16", "--dp", "3", "-o", "shell").out.splitlines()
    assert all(line.startswith("#") for line in lines)


def test_the_shell_form_is_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    script = Said(capsys, "2p1d", "-o", "shell").out
    subprocess.run(["sh", "-n"], input=script, text=True, check=True, timeout=20)
    commands = [line for line in script.splitlines() if not line.startswith("#")]
    assert len(commands) == 4
    assert all(command.startswith(sys.executable) for command in commands)


def test_memory_and_transfer_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("--tp", "1", "--decode-tp", "1", "--model", str(MODELS / "llama-3-8b"))
    hardware = ("--gpu-memory", "80GiB", "--mem-fraction", "0.85", "--page-size", "64", "--nic", "400Gbps")
    document = Said(capsys, *shape, *hardware, "--isl", "4096", "-o", "json").document
    memory = document["instances"][0]["memory"]
    assert (memory["kv_bytes_per_token"], memory["tokens"], memory["verdict"]) == (131_072, 434_496, "OK")
    assert memory["parameters"] == 8_030_261_248
    transfer = document["transfer"]
    assert transfer["bytes_per_request"] == 536_870_912
    assert transfer["line_rate_seconds"] == pytest.approx(0.01074, abs=1e-5)
    assert transfer["seconds"] == pytest.approx(0.01342, abs=1e-5)


def test_weights_that_do_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "--tp", "8", "--model", str(MODELS / "deepseek-v3"), "--gpu-memory", "80GiB")
    assert said.code == 1
    assert "infeasible: memory: prefill: weights of 79.29 GiB per rank do not fit 68.00 GiB" in said.out
    assert "  nearest: --tp 16\n" in said.out


@for_each(
    ("argv", "message", "fix"),
    [
        ((), "no topology and no --tp", "pdctl plan --tp 16 --dp 8"),
        (("2p1d", "--tp", "4"), "--tp does not go with a topology", "--set"),
        (("--tp", "4", "--target", "pools"), "--target goes with a topology", "pdctl plan 2p1d"),
        (("--tp", "4", "--set", "a=b"), "--set goes with a topology", "pdctl plan 2p1d"),
        (("--tp", "4", "-F", "x.yaml"), "--file goes with a topology", "pdctl plan 2p1d"),
        (("--tp", "4", "--decode-batch", "2"), "--decode-batch goes with a topology", "pdctl plan 2p1d"),
        (("--prefill-tp", "4"), "no option `--prefill-tp`", "did you mean `--tp`?"),
        (("--tp", "4", "--decode-dp", "2"), "--decode-dp without --decode-tp", "--decode-tp"),
        (("--tp", "4", "--gpu-memory", "80"), "--gpu-memory 80: 80 has no unit", "80GiB"),
        (("--tp", "4", "--nic", "50GB/s"), "--nic 50GB/s", "400Gbps"),
        (("--tp", "4", "--sglang-version", "0.4.0"), "older than 0.5.3", "0.5.23"),
        (("--tp", "4", "--model", "/nowhere"), "cannot read", "config.json"),
        (("--tp", "4", "--model", str(MODELS / "llama-3-8b"), "--kv-dtype", "int3"), "int3 is unknown", "bf16"),
    ],
)
def test_usage_errors(capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str, fix: str) -> None:
    said = Said(capsys, *argv)
    assert (said.code, said.out) == (2, "")
    assert message in said.err
    assert fix in said.err


LLAMA = ("--model", str(MODELS / "llama-3-8b"))


@for_each(
    ("argv", "note"),
    [
        (("--nic-count", "4"), "--nic-count has no effect without --nic"),
        (("--nic", "400Gbps"), "--nic has no effect without --model and --decode-tp"),
        (("--gpu-memory", "80GiB"), "--gpu-memory has no effect without --model"),
        (("--isl", "100"), "--isl has no effect without --model and --gpu-memory or --model and --decode-tp"),
        (("--mla",), "--mla has no effect without --decode-tp"),
        (("--gqa", "--decode-tp", "8", *LLAMA), "--mla and --gqa have no effect with --model, which says it"),
        (("--wide",), "--wide has no effect on -o json, which is always whole"),
        (("--isl", "100", "--nic", "400Gbps", "--rate", "5", "--decode-tp", "8", *LLAMA), ""),
    ],
)
def test_a_flag_that_changes_nothing_is_told(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], note: str
) -> None:
    """The plan without the flag is the same, as the note says."""
    said = Said(capsys, "--tp", "8", *argv, "-o", "json")
    assert said.err == (f"note: {note}\n" if note else "")
    without = argv[2:] if argv[0] in ("--nic-count", "--nic", "--gpu-memory", "--isl") else argv[1:]
    same = Said(capsys, "--tp", "8", *without, "-o", "json").document == said.document
    assert same == bool(note)


def test_settings_and_overlays_reach_the_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    overlay = tmp_path / "site.yaml"
    overlay.write_text("roles: {decode: {instances: 2}}\n")
    document = Said(capsys, "2p1d", "-F", str(overlay), "--set", "ports.http=31000", "-o", "json").document
    assert [one["http_port"] for one in document["instances"]] == [31000, 31001, 31002, 31003]
    assert document["router"]["command"]["argv"].count("--decode") == 2


def test_a_target_that_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "deepseek-v3-wide", "--target", "local")
    assert said.code == 1
    assert "the instances need 64 GPUs, this machine has 8" in said.out


def test_measured_rates_give_a_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "deepseek-v3-wide", "--prefill-rate", "40000", "--decode-batch", "64", "-o", "json")
    assert said.document["ratio"]["prefill_instances"] == 3
    assert said.document["ratio"]["decode_instances"] == 7


def test_a_shape_alone_loads_no_figures_and_no_topology() -> None:
    probe = (
        "import sys; sys.argv = ['pdctl', 'plan', '--tp', '16', '--dp', '8']\n"
        "from pdctl.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True)
    late = {"json", "yaml", "dataclasses", "pdctl.topology", "pdctl.layout.gpu_memory"}
    late |= {"pdctl.layout.handover", "pdctl.layout.commands", "pdctl.engines.sglang.refusals"}
    assert not set(done.stderr.split()) & late


@for_each(
    ("flag", "value"),
    [
        ("--mem-fraction", "nan"), ("--mem-fraction", "1.5"), ("--mem-fraction", "0"), ("--isl", "-5"),
        ("--isl", "0"), ("--rate", "nan"), ("--rate", "inf"), ("--rate", "0"), ("--page-size", "0"),
        ("--page-size", "-1"), ("--nic-count", "0"), ("--kv-dtype", "fp9"), ("--gpu-memory", f"{10**30}TiB"),
    ],
)  # fmt: skip
def test_a_number_that_no_machine_has_is_refused(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(MODELS.parents[2] / "pdctl" / "checkpoints" / "tiny" / "config.json")
    for words in ([], ["--model", model, "--gpu-memory", "1GiB"]):
        said = Said(capsys, "--tp", "1", *words, f"{flag}={value}")
        assert (said.code, said.out) == (2, ""), said.err
        assert said.err.startswith("error: ")
        assert "  fix: " in said.err


def test_a_plan_has_a_bound(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["--tp", "1000000"],
        ["deepseek-v3-wide", "--set", "roles.prefill.tp=4096", "--set", "roles.prefill.instances=99"],
    ):
        said = Said(capsys, *words)
        assert said.code == 2
        assert "GPUs; a plan has 65536 at most" in said.err


def test_the_flag_that_was_typed_is_named_with_its_own_way_into_a_topology(capsys: pytest.CaptureFixture[str]) -> None:
    assert "note: --gqa has no effect without --decode-tp" in Said(capsys, "--tp", "8", "--gqa").err
    assert "note: --gqa has no effect without --decode-tp" in Said(capsys, "--tp=8", "--gqa", "--wide").err
    for flag, key in (("--rate", "workload.rate=20"), ("--nic-count", "pools.POOL.nic.count=8")):
        said = Said(capsys, "deepseek-v3-wide", flag, "5")
        assert f"error: {flag} does not go with a topology" in said.err
        assert f"--set {key}\n" in said.err
    assert "--set" not in Said(capsys, "deepseek-v3-wide", "--gqa").err


def test_every_way_into_a_topology_that_is_advised_works(capsys: pytest.CaptureFixture[str]) -> None:
    for flag, written in IN_TOPOLOGY.items():
        whole = ["--set", "workload.isl=4096", "--set", "workload.osl=256"] if written.startswith("workload.") else []
        said = Said(capsys, "deepseek-v3-wide", *whole, "--set", written.replace("POOL", "h100"))
        assert said.code in (0, 1), (flag, said.err)
