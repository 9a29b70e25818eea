"""A plan on a terminal and in a pipe."""

from __future__ import annotations

import io
import shlex

import pytest

from pdctl.layout.instance_plan import Plan
from pdctl.layout.planner import plan_shape, plan_topology
from pdctl.layout.shape import Shape
from pdctl.render.plan_table import show
from pdctl.render.term import Term, spans, table
from pdctl.topology.resolve import load, topology_file


class Screen(io.StringIO):
    """A terminal, or a pipe, that remembers what was written to it."""

    encoding = "utf-8"

    def __init__(self, tty: bool) -> None:
        super().__init__()
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")


def shown(plan: Plan, tty: bool, wide: bool = False) -> str:
    screen = Screen(tty)
    show(Term(screen), plan, wide)
    return screen.getvalue()


def wide_plan() -> Plan:
    return plan_topology(load([topology_file("deepseek-v3-wide", {})], environ={}))


def test_a_terminal_gets_a_row_per_node_for_many_ranks() -> None:
    text = shown(plan_shape(Shape(tp=32, dp=16)), tty=True)
    assert text.splitlines()[1:] == [
        "NODE  GPU  TP     ATTN_DP  ATTN_TP  EP",
        "0     0-7  0-7    0-3      0-1      0",
        "1     0-7  8-15   4-7      0-1      0",
        "2     0-7  16-23  8-11     0-1      0",
        "3     0-7  24-31  12-15    0-1      0",
    ]
    assert shown(plan_shape(Shape(tp=32, dp=16)), tty=True, wide=True).count("\n") == 34


def test_a_pipe_gets_every_rank_port_and_command() -> None:
    lines = shown(wide_plan(), tty=False).splitlines()
    assert len([line for line in lines if line.startswith("python -m sglang.launch_server")]) == 8
    assert len([line for line in lines if line.split()[:1] in (["0"], ["1"], ["2"], ["3"])]) == 16 + 32
    assert "h100-0  prefill-0  20013  worker-handshake  zmq" in lines
    assert not any(mark in line for line in lines for mark in "│┃─━┌+|…")
    assert max(map(len, lines)) > 400


def test_a_terminal_is_told_how_further_nodes_differ() -> None:
    lines = shown(wide_plan(), tty=True).splitlines()
    assert len([line for line in lines if line.startswith("python -m sglang.launch_server")]) == 3
    assert "# decode-0 nodes 1 to 3 on h100-5, h100-6, h100-7: the same but for --node-rank" in lines
    ports = "bootstrap 8998, dist-init..load-collector 20000-20006, worker-handshake 20013, nccl 20031, http 30000"
    first = next(at for at, line in enumerate(lines) if line.startswith("h100-0  prefill-0 "))
    told = " ".join(line.removeprefix("h100-0  prefill-0 ").strip() for line in lines[first : first + 4])
    assert ports in told, "folded, not cut"


def test_a_folded_command_is_still_one_command() -> None:
    lines = shown(wide_plan(), tty=True).splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("python -m sglang.launch_server"))
    end = next(at for at in range(start, len(lines)) if not lines[at].endswith("\\"))
    folded = shlex.split("\n".join(lines[start : end + 1]).replace("\\\n", ""))
    assert tuple(folded) == wide_plan().instances[0].commands[0].argv
    assert end > start


def test_instances_alike_share_a_table() -> None:
    text = shown(wide_plan(), tty=False)
    assert (
        "prefill-0, prefill-1: tp_size 16, attn_dp_size 8, attn_tp_size 2, ep_size 16, 16 GPUs on 2 nodes each" in text
    )
    assert text.count("NODE  GPU") == 2


def test_figures_are_told() -> None:
    text = shown(wide_plan(), tty=False)
    assert "deepseek-v3-wide: feasible, sglang 0.5.23, 8 hosts, 64 GPUs used, 0 idle" in text
    assert "54.853 GiB  70,272 B  9.147 GiB   139,712  1,117,696        279" in text
    assert "4,032 tokens move 283,336,704 B (0.264 GiB) per request, in 7.08 ms over 1 NIC" in text
    assert "20 requests/s need 45.3 Gb/s of 10,240.0 Gb/s" in text
    assert "400 requests decode at once" in text


def test_dimensions_in_use_get_columns() -> None:
    text = shown(plan_shape(Shape(tp=4, pp=2, cp=2)), tty=False)
    assert text.splitlines()[1] == "NODE  GPU  PP  TP  ATTN_DP  ATTN_CP  ATTN_TP  EP"
    assert "REPLICA" in shown(plan_shape(Shape(tp=2, replicas=2)), tty=False)


def test_pipelines_and_context_parallel_ranks_in_the_links() -> None:
    text = shown(plan_shape(Shape(tp=4, pp=2, cp=2), Shape(tp=2)), tty=False)
    header, row = next(
        (line.split("  "), after.split())
        for line, after in zip(text.splitlines(), text.splitlines()[1:], strict=False)
        if line.startswith("DECODE")
    )
    assert [name.strip() for name in header if name.strip()][-3:] == ["PP", "FROM PP", "FROM CP"]
    assert row[-3:] == ["0", "1,0", "0"]


def test_colour_only_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_shape(Shape(tp=16, dp=3))
    assert "\x1b" not in shown(plan, tty=True)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[31;1minfeasible:\x1b[0m" in shown(plan, tty=True)
    assert "\x1b" not in shown(plan, tty=False)


def test_columns_that_are_too_wide_are_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    rows = [["a-rather-long-instance-name-0", 7], ["a-rather-long-instance-name-1", 12]]
    narrow = table(Term(Screen(True)), ["INSTANCE", "N"], rows)
    assert narrow == [
        "INSTANCE                     N",
        "a-rather-long-instance-nam   7",
        "e-0",
        "a-rather-long-instance-nam  12",
        "e-1",
    ]
    assert table(Term(Screen(False)), ["INSTANCE", "N"], rows)[1] == "a-rather-long-instance-name-0   7"


def test_runs_of_numbers() -> None:
    assert spans([0, 1, 2, 3]) == "0-3"
    assert spans([3, 1, 1, 7, 8]) == "1,3,7-8"
    assert spans([5]) == "5"
