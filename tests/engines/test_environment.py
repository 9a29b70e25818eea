"""Environment variables: each kind of mistake, and the same variable as it should be."""

from __future__ import annotations

import os
from pathlib import Path

from pdctl.engines.environment import BOOL, FLOAT, INT, VARIABLES, Variable, lint, row_of_release
from pdctl.engines.versions import NEWEST, SGLANG, V0_5_3, V0_5_8, V0_5_13, V0_5_18, V0_5_23, Span, Version, spell
from tests.cases import for_each

WAITING, INTERVAL = "SGLANG_DISAGGREGATION_WAITING_TIMEOUT", "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL"
FAILURES = "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE"


def said(env: dict[str, str], version: Version = NEWEST) -> list[str]:
    return [f"{remark.message}; {remark.fix}" for remark in lint(env, version)]


@for_each(
    ("name", "value", "part"),
    [
        (WAITING, "60", ""),
        (
            WAITING,
            "60s",
            f"is not a whole number; set {WAITING} to a whole number of at least 1, such as its default 300",
        ),
        (WAITING, "1.5", "is not a whole number"),
        (WAITING, "", "is not a whole number"),
        (WAITING, "0", "is not at least 1"),
        (INTERVAL, "2.5", ""),
        (INTERVAL, "0.5", "is not at least 2"),
        ("SGLANG_RUST_SERVER", "True", ""),
        ("SGLANG_RUST_SERVER", "on", "is neither true nor false"),
        ("SGLANG_DISAGGREGATION_NIXL_BACKEND_PARAMS", '{"num_threads": "8"}', ""),
        ("SGLANG_DISAGGREGATION_NIXL_BACKEND_PARAMS", "num_threads=8", "is not a JSON object"),
        ("SGLANG_TEST_DISAGG_FAILURE_PROB", "1.5", "is not from 0 to 1"),
        ("SGLANG_MOONCAKE_CUSTOM_MEM_POOL", "NVLINK", ""),
        ("SGLANG_MOONCAKE_CUSTOM_MEM_POOL", "NVLINKS", "is none of"),
        ("MC_MTU", "4096", ""),
        ("MC_MTU", "9000", "is none of 512, 1024, 2048, 4096"),
        ("MC_GID_INDEX", "3", ""),
        ("MC_GID_INDEX", "auto", "is not a whole number"),
        ("MC_TE_METRIC", "1", ""),
        ("NCCL_DEBUG", "info", ""),
        ("NCCL_DEBUG", "DEBUG", "is none of"),
        ("NCCL_IB_TIMEOUT", "23", "is not from 1 to 22"),
        ("UCX_TLS", "rc,cuda_copy", ""),
        ("UCX_LOG_LEVEL", "verbose", "is none of"),
    ],
)
def test_values(name: str, value: str, part: str) -> None:
    found = said({name: value})
    assert [part in each for each in found] == ([True] if part else [])


@for_each(
    ("name", "part"),
    [
        ("SGLANG_DISAGGREGATION_WAITNG_TIMEOUT", f"rename SGLANG_DISAGGREGATION_WAITNG_TIMEOUT to {WAITING}"),
        ("SGLANG_DISAGGREGATION_TIMEOUT_FOR_PEERS", "TIMEOUT_FOR_PEERS; remove SGLANG_DIS"),
        ("SGLANG_MOONCAKE_CUSTOM_POOL", "rename SGLANG_MOONCAKE_CUSTOM_POOL to SGLANG_MOONCAKE_CUSTOM_MEM_POOL"),
        ("MC_GID_IDX", "rename MC_GID_IDX to MC_GID_INDEX"),
        ("NCCL_SOCKET_IFNAMES", "rename NCCL_SOCKET_IFNAMES to NCCL_SOCKET_IFNAME"),
        ("UCX_NET_DEVICE", "rename UCX_NET_DEVICE to UCX_NET_DEVICES"),
        ("GLOO_SOCKET_IFNAM", "rename GLOO_SOCKET_IFNAM to GLOO_SOCKET_IFNAME"),
        # Families that are only known in part, and other people's.
        ("SGLANG_TORCH_PROFILER_DIR", ""),
        ("NCCL_WORK_FIFO_DEPTH", ""),
        ("UCX_DC_MLX5_NUM_DCI", ""),
        ("HF_TOKEN", ""),
    ],
)
def test_names_nobody_reads(name: str, part: str) -> None:
    found = said({name: "1"})
    assert [part in each for each in found] == ([True] if part else [])


@for_each(
    ("name", "value", "version", "part"),
    [
        ("SGLANG_DISAGGREGATION_ENGINE_INIT_TIMEOUT", "60", V0_5_23, ""),
        ("SGLANG_DISAGGREGATION_ENGINE_INIT_TIMEOUT", "60", V0_5_18, "sglang 0.5.18 does not read"),
        ("SGLANG_DISAGG_STAGING_BUFFER", "1", V0_5_8, "(since 0.5.10); update SGLang to 0.5.10, or remove SGLANG_"),
        ("SGLANG_DISAGGREGATION_NUM_PRE_ALLOCATE_REQS", "4", V0_5_13, ""),
        ("SGLANG_DISAGGREGATION_NUM_PRE_ALLOCATE_REQS", "4", V0_5_18, "(only until 0.5.14); remove SGLANG_"),
        # It was a switch first, and is the name of a kind of memory since.
        ("SGLANG_MOONCAKE_CUSTOM_MEM_POOL", "NVLINK", V0_5_3, "is neither true nor false"),
        ("SGLANG_MOONCAKE_CUSTOM_MEM_POOL", "NVLINK", V0_5_8, ""),
    ],
)
def test_variables_of_other_releases(name: str, value: str, version: Version, part: str) -> None:
    found = said({name: value}, version)
    assert [part in each for each in found] == ([True] if part else [])


@for_each(
    ("env", "part"),
    [
        ({WAITING: "30"}, ""),
        ({WAITING: "8"}, "a dead prefill is noticed after 10 s, when its rooms are given up after 8 s"),
        ({FAILURES: "10000000"}, "a dead prefill is noticed after 5e+07 s"),
        ({INTERVAL: "60", FAILURES: "4", WAITING: "600"}, ""),
        ({INTERVAL: "200", FAILURES: "4", WAITING: "600"}, "after 800 s"),
        (
            {
                "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE": "false",
                "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT": "60",
            },
            "has no effect while",
        ),
        ({"SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT": "60"}, ""),
        ({"MC_MIN_PRC_PORT": "20000", "MC_MAX_PRC_PORT": "21000"}, ""),
        ({"MC_MIN_PRC_PORT": "20000"}, "MC_MIN_PRC_PORT 20000 is above MC_MAX_PRC_PORT 17000"),
    ],
)
def test_settings_that_undo_each_other(env: dict[str, str], part: str) -> None:
    found = said(env)
    assert [part in each for each in found] == ([True] if part else [])


@for_each("version", SGLANG, ids=spell)
def test_every_default_passes(version: Version) -> None:
    env = {row.name: row.default for row in VARIABLES if row.default and row.span.holds(version)}
    assert said(env, version) == []


def test_a_variable_has_one_row_per_release_and_bounds_that_make_sense() -> None:
    for row in VARIABLES:
        assert row.low <= row.high
        assert row.kind in (INT, FLOAT) or (row.low, row.high) == (float("-inf"), float("inf")), row.name
        assert not (row.kind == BOOL and row.choices)
    for version in SGLANG:
        names = [row.name for row in VARIABLES if row.span.holds(version)]
        assert len(names) == len(set(names))
    assert row_of_release(WAITING, V0_5_3) is not None


PAGE = Path(__file__).resolve().parents[2] / "docs" / "sglang.md"
BEGIN, END = "<!-- begin: environment -->\n", "<!-- end -->\n"


def row(one: Variable) -> str:
    until = f" to {spell(one.span.until)} (not in it)" if one.span.until else ""
    releases = "" if one.span == Span() else f"{spell(one.span.since)}{until or ' on'}"
    value = ", ".join(one.choices) or one.kind
    return f"| `{one.name}` | {value} | {one.default} | {releases} | {one.says} |"


def test_the_page_is_current() -> None:
    """`PDCTL_UPDATE=1 pytest tests/engines/test_environment.py` writes it anew."""
    head = "| variable | value | default | SGLang | |\n|---|---|---|---|---|\n"
    wanted = head + "".join(f"{row(one)}\n" for one in VARIABLES if one.says)
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    current, _, after = rest.partition(END)
    if os.environ.get("PDCTL_UPDATE"):
        PAGE.write_text(before + BEGIN + wanted + END + after, "utf-8")
        return
    assert current == wanted
