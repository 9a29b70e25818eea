"""The reader of releases on small invented wheels: what it reads, what it says it cannot tell, what it refuses."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from tools.read_release import __main__ as command
from tools.read_release import environment, flags, records, surface, tables
from tools.read_release.environment import Setting
from tools.read_release.flags import Flag
from tools.read_release.records import Field
from tools.read_release.surface import Metric, Route
from tools.read_release.wheel import UnreadableError, Wheel, open_wheel

SERVER_ARGS = "sglang/srt/server_args.py"


def built(folder: Path, files: dict[str, str], version: str = "0.5.3", package: str = "sglang") -> Path:
    path = folder / f"{package}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def wheel(folder: Path, files: dict[str, str], version: str = "0.5.3") -> Wheel:
    return open_wheel(built(folder, files, version))


def called(*lines: str) -> str:
    """A ServerArgs that builds its parser by add_argument, as 0.5.3 does."""
    body = "\n".join(f"        {line}" for line in lines)
    head = "class ServerArgs:\n    port: int = 30000\n    @staticmethod\n    def add_cli_args(parser):\n"
    return f"import argparse\nMODES = ['null', 'prefill']\n{head}{body}\n"


def flag(folder: Path, *lines: str) -> tuple[Flag, ...]:
    found = flags.read(wheel(folder, {SERVER_ARGS: called(*lines)}))
    assert found.doubts == ()
    return found.flags


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "parser.add_argument('--port', type=int, default=ServerArgs.port)",
            [Flag("port", "=", "int", "", "30000")],
        ),
        ("parser.add_argument('--a', '-a', '--b')", [Flag("a", "=", "str", "", ""), Flag("b", "=", "str", "", "")]),
        ("parser.add_argument('--quiet', action='store_true')", [Flag("quiet", "", "", "", "False")]),
        ("parser.add_argument('--urls', nargs='*')", [Flag("urls", "=*", "str", "", "")]),
        ("parser.add_argument('--two', nargs=2, type=int)", [Flag("two", "=*", "int", "", "")]),
        ("parser.add_argument('--maybe', nargs='?')", [Flag("maybe", "=?", "str", "", "")]),
        (
            "parser.add_argument('--mode', choices=MODES + ['decode'])",
            [Flag("mode", "=", "str", "null|prefill|decode", "")],
        ),
        # Choices that a running program counts are any: "?".
        ("parser.add_argument('--mode', choices=registered())", [Flag("mode", "=", "str", "?", "")]),
        (
            "parser.add_argument('--x', action=argparse.BooleanOptionalAction)",
            [Flag("no-x", "", "", "", ""), Flag("x", "", "", "", "")],
        ),
        (
            "for each in ('a', 'b'): parser.add_argument(f'--{each}-tp', type=int)",
            [Flag("a-tp", "=", "int", "", ""), Flag("b-tp", "=", "int", "", "")],
        ),
    ],
)  # fmt: skip
def test_a_flag_that_is_added_by_a_call(tmp_path: Path, line: str, expected: list[Flag]) -> None:
    assert list(flag(tmp_path, line)) == expected


@pytest.mark.parametrize(
    ("line", "doubt"),
    [
        ("parser.add_argument(name_of('x'), type=int)", "line 7: add_argument(name_of('x'), …) names no constant"),
        ("parser.add_argument(f'--{prefix}port')", "line 7: add_argument(f'--{prefix}port', …) names no constant"),
        ("parser.add_argument('--port', **given)", "line 7: --port is given **keywords"),
        (
            "parser.add_argument('--port', action=Elsewhere)",
            "line 7: the action Elsewhere of --port is not in these files",
        ),
        ("parser.add_argument('path')", "line 7: path is a positional argument"),
        ("parser.add_argument(**given)", "line 7: add_argument(**given) names no constant"),
        ("parser.add_argument(*OPTIONS)", "line 7: add_argument(*OPTIONS, …) names no constant"),
    ],
)  # fmt: skip
def test_what_the_reader_cannot_resolve_is_a_doubt(tmp_path: Path, line: str, doubt: str) -> None:
    assert flags.read(wheel(tmp_path, {SERVER_ARGS: called(line)})).doubts == (doubt,)


FIELDS = """
from typing import Annotated as A, Literal, Optional, List
Backend = Literal["nixl", "mooncake"]
class Group:
    _NS_PATH = "disaggregation"
    bootstrap_port: A[int, "help"] = 8998
    ib_device: A[Optional[str], Arg(help="h", aliases=["--ib"])] = None
    transfer: A[Backend, Arg(help="h")] = "mooncake"
    radix: A[bool, "help"] = False
    hosts: "A[List[str], Arg(help='h')]" = None
    inner: A[int, Arg(no_cli=True)] = 1
    odd: A[int, Arg(cli_name=chosen())] = 1
    broken: "A[int," = 1
    plain: int = 1
class NoGroup:
    other: A[int, "help"] = 1
"""


def test_flags_of_annotated_fields(tmp_path: Path) -> None:
    files = {SERVER_ARGS: "class ServerArgs: pass\n", "sglang/srt/arg_groups/fields/pd.py": FIELDS}
    found = flags.read(wheel(tmp_path, files))
    assert found.flags == (
        Flag("bootstrap-port", "=", "int", "", "8998"),
        Flag("hosts", "=*", "str", "", "None"),
        Flag("ib", "=", "str", "", "None"),
        Flag("ib-device", "=", "str", "", "None"),
        Flag("radix", "", "", "", "False"),
        Flag("transfer", "=", "str", "nixl|mooncake", "'mooncake'"),
    )
    assert found.doubts == (
        "line 12: the names of odd are no constants",
        "line 13: the annotation of broken is no Python",
    )


def test_a_wheel_without_server_args_is_a_doubt(tmp_path: Path) -> None:
    found = flags.read(wheel(tmp_path, {"sglang/__init__.py": ""}))
    assert found == ((), ("sglang-0.5.3-py3-none-any.whl has no sglang/srt/server_args.py",))


def test_the_environment_that_a_release_declares_and_asks_for(tmp_path: Path) -> None:
    files = {
        "sglang/srt/environ.py": "SHORT = 5\nclass Envs:\n    SGLANG_WAIT_TIMEOUT = EnvInt(SHORT * 60)\n"
        "    SGLANG_FAST_MODE = EnvBool(False)\n    SGLANG_SHORT_WAIT = EnvFloat(SHORT)\nclass Other:\n"
        "    SGLANG_NOT_MINE = EnvBool(True)\n",
        "sglang/srt/net.py": "import os\na = os.environ['NCCL_IB_HCA']\nb = os.getenv('MC_TCP_PORT', '1')\n"
        "c = 'SGLANG_FAST_MODE' in os.environ\nd = os.getenv(PREFIX + 'LATE')\nos.environ['SET_ONLY_HERE'] = '1'\n",
        "sglang/test/util.py": "import os\nos.getenv('SGLANG_OF_TESTS')\n",
    }
    assert environment.read(wheel(tmp_path, files)) == (
        Setting("MC_TCP_PORT", "", "", ""),
        Setting("NCCL_IB_HCA", "", "", ""),
        Setting("SGLANG_FAST_MODE", "bool", "False", "yes"),
        Setting("SGLANG_SHORT_WAIT", "float", "5", "yes"),
        Setting("SGLANG_WAIT_TIMEOUT", "int", "SHORT * 60", "yes"),  # no value that the tree does not tell
    )


def test_routes_of_the_server_and_of_the_bootstrap_server(tmp_path: Path) -> None:
    files = {
        "sglang/srt/entrypoints/http_server.py": "@app.get('/health')\ndef health(): ...\n"
        "@app.api_route('/flush_cache', methods=['GET', 'POST'])\ndef flush(): ...\n"
        "@app.api_route('/any', methods=counted())\ndef any(): ...\n@app.get(path_of('late'))\ndef late(): ...\n"
        "routes = [Mount('/metrics', app)]\ncache.get('/no/route')\n",
        "sglang/srt/disaggregation/common/conn.py": "app.router.add_route('*', '/route', handle)\n"
        "app.router.add_get('/health', ok)\n",
        "sglang/srt/disaggregation/mini_lb.py": "@app.get('/of_another_program')\ndef f(): ...\n",
    }
    assert surface.routes(wheel(tmp_path, files)) == (
        Route("bootstrap", "/health", "GET"),
        Route("bootstrap", "/route", "*"),
        Route("server", "/any", "*"),
        Route("server", "/flush_cache", "GET"),
        Route("server", "/flush_cache", "POST"),
        Route("server", "/health", "GET"),
        Route("server", "/metrics", "*"),
    )


def test_metrics_with_their_types(tmp_path: Path) -> None:
    text = (
        "a = Gauge(name='sglang:num_running_reqs', documentation='d')\nb = Counter('sglang:aborted_requests', 'd')\n"
        "c = Counter('sglang:prompt_tokens_total', 'd')\nd = prometheus.Histogram(name='sglang:ttft_seconds')\n"
        "e = Gauge(name=named('sglang:late'))\nf = log('sglang:no_metric')\n"
    )
    assert surface.metrics(wheel(tmp_path, {"sglang/srt/metrics.py": text})) == (
        Metric("sglang:aborted_requests_total", "counter"),
        Metric("sglang:num_running_reqs", "gauge"),
        Metric("sglang:prompt_tokens_total", "counter"),
        Metric("sglang:ttft_seconds", "histogram"),
    )


def test_records_with_the_frames_they_are_read_from(tmp_path: Path) -> None:
    info = (
        "class TransferInfo:\n    room: int\n    endpoint: str\n    made: str\n    KEPT: ClassVar[int] = 1\n"
        "    @classmethod\n    def from_zmq(cls, msg):\n        host = msg[1].decode()\n"
        "        return cls(room=int(msg[0]), endpoint=host, made=elsewhere())\n"
    )
    body = "class GenerateReqInput:\n    bootstrap_room: int = None\nclass Other:\n    x: int\n"
    files = {
        SERVER_ARGS: "class ServerArgs:\n    port: int = 1\n",
        "sglang/srt/disaggregation/nixl/conn.py": info,
        "sglang/srt/disaggregation/encode_receiver.py": "class Image:\n    x: int\n",
        "sglang/srt/managers/io_struct.py": body,
    }
    assert records.read(wheel(tmp_path, files)) == (
        Field("ServerArgs", "port", ""),
        Field("io_struct.py GenerateReqInput", "bootstrap_room", ""),
        Field("nixl/conn.py TransferInfo", "endpoint", "1"),
        Field("nixl/conn.py TransferInfo", "made", ""),
        Field("nixl/conn.py TransferInfo", "room", "0"),
    )


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tables of no release, to write to."""
    folder = tmp_path / "releases"
    (folder / "sglang").mkdir(parents=True)
    (tmp_path / "logs").mkdir()
    for kind in (*tables.KINDS, "releases"):
        at = tmp_path / "logs" / "sglang.tsv" if kind == "logs" else folder / "sglang" / f"{kind}.tsv"
        at.write_text("# none\n", encoding="utf-8")
    monkeypatch.setattr(tables, "FOLDER", folder)
    monkeypatch.setattr(tables, "LOGS", tmp_path / "logs")
    return folder / "sglang"


def run(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["read_release", *map(str, words)])
    return command.main()


def rows(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


def test_a_flag_that_came_went_and_changed(
    tmp_path: Path, empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stays = "parser.add_argument('--stays')"
    older = called(stays, "parser.add_argument('--went')", "parser.add_argument('--changed', type=int, default=1)")
    newer = called(
        stays, "parser.add_argument('--came')", "parser.add_argument('--changed', type=int, default=2)",
        "parser.add_argument(late())",
    )  # fmt: skip
    first = built(tmp_path, {SERVER_ARGS: older}, "0.5.9")
    second = built(tmp_path, {SERVER_ARGS: newer}, "0.5.10")
    # Newest first: a release finds its place among those that are in the tables, and 0.5.9 is before 0.5.10.
    assert run(monkeypatch, second, first, second) == 0
    assert rows(empty / "flags.tsv") == [
        "0.5.10\t\tcame\t=\tstr\t\t",
        "0.5.9\t0.5.10\tchanged\t=\tint\t\t1",
        "0.5.10\t\tchanged\t=\tint\t\t2",
        "0.5.9\t\tstays\t=\tstr\t\t",
        "0.5.9\t0.5.10\twent\t=\tstr\t\t",
    ]
    assert [row.split("\t")[:2] for row in rows(empty / "releases.tsv")] == [
        ["0.5.9", first.name],
        ["0.5.10", second.name],
    ]
    last = capsys.readouterr().out.rpartition("sglang 0.5.10 (")[2].splitlines()
    assert last[0].endswith("against 0.5.9")
    assert last[1:5] == [
        "  flags: 2 came, 2 went",
        "    + came · = · str",
        "    ~ changed · = · int · 1 → = · int · 2",
        "    - went · = · str",
    ]
    assert last[-1] == "  not told by the source: line 10: add_argument(late(), …) names no constant"


@pytest.mark.parametrize("harm", ["no zip", "cut", "damaged", "no Python", "zero byte", "another package", "no wheel"])
@pytest.mark.usefixtures("empty")
def test_a_broken_wheel_is_one_clear_line(
    tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = called("parser.add_argument('--port')") * 20
    path = built(tmp_path, {SERVER_ARGS: text})
    data = bytearray(path.read_bytes())
    says = "cannot be read as a wheel: File is not a zip file; download it again"
    if harm == "no zip":
        path.write_bytes(b"<html>not found</html>")
    elif harm == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif harm == "damaged":
        data[80:100] = bytes(20)  # in the compressed text; the directory at the end is whole
        path.write_bytes(data)
        says = f"{SERVER_ARGS} cannot be unpacked: "
    elif harm == "no Python":
        built(tmp_path, {SERVER_ARGS: "class ServerArgs(:\n"})
        says = f"{SERVER_ARGS} is no Python that this Python reads"
    elif harm == "zero byte":
        built(tmp_path, {SERVER_ARGS: "x = 1\0\n"})
        says = f"{SERVER_ARGS} is no Python that this Python reads"
    elif harm == "another package":
        path = built(tmp_path, {"vllm/x.py": ""}, package="vllm")
        says = "vllm is none of sglang, sglang-router, smg"
    else:
        path = path.rename(tmp_path / "download.whl")
        says = "this is no wheel's or source archive's name"
    assert run(monkeypatch, path) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("read_release: ")
    assert says in err
    assert err.count("\n") == 1


def test_a_damaged_file_is_named_by_readers_that_search_first(tmp_path: Path) -> None:
    """`naming` reads the bytes before it asks for a tree."""
    path = built(tmp_path, {"sglang/srt/a.py": "import os\nos.getenv('SGLANG_A_B')\n" * 50})
    data = bytearray(path.read_bytes())
    data[50:60] = bytes(10)
    path.write_bytes(data)
    with pytest.raises(UnreadableError, match=r"sglang/srt/a\.py cannot be unpacked"):
        environment.read(open_wheel(path))


ROUTER = """
import argparse
class RouterArgs:
    policy: str = "random"
    @staticmethod
    def add_cli_args(parser, use_router_prefix=False, exclude_host_port=False):
        prefix = "router-" if use_router_prefix else ""
        group = parser.add_argument_group("x")
        if use_router_prefix:
            parser.add_argument("--only-with-prefix")
        if not exclude_host_port:
            group.add_argument("--host", type=str, default="0.0.0.0")
        group.add_argument(f"--{prefix}policy", f"--{prefix}way", choices=["random"], default=RouterArgs.policy)
        group.add_argument(f"--{prefix}prefill", nargs="+", action="append")
"""


def test_the_flags_of_a_router_are_those_it_takes_without_a_prefix(tmp_path: Path) -> None:
    files = {"sglang_router/router_args.py": ROUTER}
    found = flags.read_router(open_wheel(built(tmp_path, files, "0.3.2", "sglang_router")), "sglang_router")
    assert found.doubts == ()
    assert list(found.flags) == [
        Flag("host", "=", "str", "", "'0.0.0.0'"),
        Flag("policy", "=", "str", "random", "'random'"),
        Flag("prefill", "=*", "str", "", ""),
        Flag("way", "=", "str", "random", "'random'"),
    ]


def test_a_router_without_its_arguments_is_said(tmp_path: Path) -> None:
    found = flags.read_router(open_wheel(built(tmp_path, {"smg/a.py": "x = 1"}, "1.1.0", "smg")), "smg")
    assert found.flags == ()
    assert "has 0 RouterArgs.add_cli_args" in found.doubts[0]
