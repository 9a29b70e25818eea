"""Merged streams give the logs of their sources back, line by line, with their numbers in the stream."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pdctl.logs import merged_stream
from pdctl.logs.blocks import LineNumbers
from pdctl.logs.source import open_logs
from pdctl.logs.window import UNLIMITED, lines
from tests.logs import merged
from tests.trace.engines import at, engine
from tests.trace.recordings import ROOMS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pdctl.logs.source import Log

COLOUR = re.compile("\x1b\\[[0-9;:]*[A-Za-z]")
LOGS = merged.read(sorted(str(path) for path in (ROOMS / "2p1d-missing-ports-info-sgl0523").glob("*.log*")))


def text(log: Log) -> list[str]:
    return [
        raw.line.decode("utf-8", "replace")
        for part in log.parts
        for raw in lines(part, 0, UNLIMITED, LineNumbers(part))
    ]  # fmt: skip


def opened(folder: Path, stream: str, name: str = "all.log") -> dict[str, Log]:
    path = folder / name
    path.write_text(stream)
    return {log.instance: log for log in open_logs([str(path)])}


@pytest.mark.parametrize(
    "form", [merged.kubectl, merged.stern, merged.tagged, merged.pdsh, merged.compose], ids=lambda form: form.__name__
)
def test_each_source_has_its_own_lines_in_their_order(form: Callable[..., str], tmp_path: Path) -> None:
    found = opened(tmp_path, form(LOGS))
    assert set(found) == set(LOGS)
    for name, wanted in LOGS.items():
        assert [COLOUR.sub("", line) for line in text(found[name])] == [COLOUR.sub("", line) for line in wanted]


@pytest.mark.parametrize("form", [merged.loki, merged.fluent_bit, merged.journal_json], ids=lambda form: form.__name__)
def test_a_record_becomes_a_line_behind_the_collectors_stamp(form: Callable[..., str], tmp_path: Path) -> None:
    found = opened(tmp_path, form(LOGS))
    assert set(found) == set(LOGS)
    for name, wanted in LOGS.items():
        told = text(found[name])
        assert [line.split(" ", 1)[-1].strip() for line in told] == [line.strip() for line in wanted]
        assert all(line.startswith("2026-11-2") for line in told)


def clean(line: str) -> str:
    """Without colour and without what JSON does to a string."""
    if line.startswith("{"):
        line = line.replace("\\u001b", "\x1b").replace('\\"', '"').replace("\\\\", "\\").replace("\\ufffd", "\ufffd")
    return COLOUR.sub("", line)


@pytest.mark.parametrize("form", [*merged.NAMED, merged.cat], ids=lambda form: form.__name__)
def test_a_line_keeps_its_number_and_the_streams_path(form: Callable[..., str], tmp_path: Path) -> None:
    stream = form(LOGS).split("\n")
    for log in opened(tmp_path, "\n".join(stream)).values():
        for part in log.parts:
            for raw in list(lines(part, 0, UNLIMITED, LineNumbers(part)))[::7]:
                assert raw.place.path == str(tmp_path / "all.log")
                assert clean(raw.line.decode("utf-8", "replace"))[-30:] in clean(stream[raw.place.line - 1])
                assert str(raw.place) == f"{tmp_path}/all.log:{raw.place.line}"


def test_a_log_as_its_process_wrote_it_is_left_alone() -> None:
    recorded = ROOMS.parent / "logs"
    for path in sorted([*ROOMS.glob("*/*.log*"), *recorded.glob("*.log")]):
        (log,) = open_logs([str(path)])
        assert log.instance == path.name.removesuffix(".gz").removesuffix(".log")
        assert [part.numbers for part in log.parts] == [None]
        assert not log.notes


def test_sidecars_are_sources_of_their_own(tmp_path: Path) -> None:
    stream = "".join(
        f"[pod/{pod}/{container}] {line}\n"
        for pod, container, line in (
            ("decode-0", "engine", f"{at(1)} one"), ("decode-0", "istio-proxy", "two"),
            ("prefill-0", "engine", "three"),
        )
    )  # fmt: skip
    assert set(opened(tmp_path, stream)) == {"decode-0:engine", "decode-0:istio-proxy", "prefill-0"}


def test_a_line_without_a_name_belongs_to_the_source_above(tmp_path: Path) -> None:
    stream = "a  | one\na  | two\n  File x.py\nb  | three\nb  | four\n"
    found = opened(tmp_path, stream)
    assert text(found["a"]) == ["one", "two", "  File x.py"]
    assert text(found["b"]) == ["three", "four"]


def test_the_same_source_in_two_files_of_a_directory_is_one_log(tmp_path: Path) -> None:
    for name, second in (("k.log.1", 1), ("k.log", 2)):
        (tmp_path / name).write_text("".join(f"[pod/{pod}/e] {at(second)} x\n" for pod in ("a", "b")))
    found = {log.instance: log for log in open_logs([str(tmp_path)])}
    assert set(found) == {"a", "b"}
    assert text(found["a"]) == [f"{at(1)} x", f"{at(2)} x"]


def test_a_stream_may_be_compressed_or_come_through_a_pipe(tmp_path: Path) -> None:
    import gzip
    import io

    stream = merged.kubectl(LOGS).encode()
    (tmp_path / "all.log.gz").write_bytes(gzip.compress(stream))
    assert {log.instance for log in open_logs([str(tmp_path / "all.log.gz")])} == set(LOGS)
    assert {log.instance for log in open_logs(["-"], stdin=io.BytesIO(stream))} == set(LOGS)


def test_a_log_that_was_started_twice_is_still_one(tmp_path: Path) -> None:
    first = engine("decode", 30002, 8999, until=60)
    again = [line.replace(at(0), at(90)).replace(at(1), at(91)) for line in engine("decode", 30002, 8999, until=900)]
    assert set(opened(tmp_path, "\n".join([*first, *again]), "decode.log")) == {"decode"}


def test_a_clock_that_was_set_back_makes_no_second_log(tmp_path: Path) -> None:
    stream = [*engine("decode", 30002, 8999, until=900), f"{at(30)} Decode batch, x", f"{at(40)} y"]
    assert set(opened(tmp_path, "\n".join(stream), "decode.log")) == {"decode"}


def test_files_pasted_together_are_named_by_role_and_port(tmp_path: Path) -> None:
    logs = {
        "a": engine("prefill", 30000, 8998, until=60), "b": engine("prefill", 30001, 8999, until=50),
        "c": engine("decode", 30002, 9000, until=70),
    }  # fmt: skip
    found = opened(tmp_path, merged.cat(logs))
    assert set(found) == {"prefill:30000", "prefill:30001", "decode"}
    assert any("lines 1-" in note for log in found.values() for note in log.notes)
    for log, name in zip(found.values(), logs, strict=True):
        assert text(log) == logs[name]


def test_lines_that_alternate_without_names_stay_one_log(tmp_path: Path) -> None:
    assert set(opened(tmp_path, merged.nameless(LOGS))) == {"all"}


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\n", b"{", b"[pod/", b"\0" * 70000, b"{}\n" * 50, b'{"log": 1}\n' * 20, b"[" * 100000 + b"\n",
        b'{"log":"x","kubernetes":{"pod_name":["a"]}}\n' * 5, b'{"MESSAGE":[1,2,300,-1,"x"],"_PID":"1"}\n' * 5,
        b'{"message":"x","timestamp":"99999-99-99"}\n' * 5,
        b'{"__REALTIME_TIMESTAMP":"99999999999999999","MESSAGE":"x"}\n',
        b"a | b\n" + b"x" * 3_000_000, b"\xfd\xfe | x\n" * 9, (b'{"a":' * 5000) + b"\n", b"| \n| \n", b"- | x",
    ],
    ids=range(17),
)  # fmt: skip
def test_odd_bytes_are_read_without_harm(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "odd.log"
    path.write_bytes(data)
    for log in open_logs([str(path)]):
        text(log)


def test_random_bytes_are_read_without_harm(tmp_path: Path) -> None:
    random_bytes = random.Random(7)
    seeds = [form(LOGS).encode()[:3000] for form in (*merged.NAMED, *merged.PASTED)]
    path = tmp_path / "odd.log"
    for seed in seeds * 6:
        data = bytearray(seed)
        for _ in range(30):
            data[random_bytes.randrange(len(data))] = random_bytes.randrange(256)
        path.write_bytes(data)
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            continue
        for log in open_logs([str(path)]):
            text(log)


def test_more_sources_than_the_table_holds_are_said_to_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merged_stream, "SOURCES", 3)
    found = opened(tmp_path, "".join(f"[pod/p{each}/e] x\n" for each in range(10)))
    assert set(found) == {"p0", "p1", "p2"}
    assert any("7 lines of the others were left out" in note for log in found.values() for note in log.notes)


def test_a_stream_that_is_too_long_is_said_to_be_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_stream, "LIMIT", 1 << 20)
    found = opened(tmp_path, "[pod/a/e] x\n[pod/b/e] y\n" * 200_000)
    assert any("its first 1 MiB were read" in note for log in found.values() for note in log.notes)


def test_a_name_that_leads_elsewhere_is_only_a_name(tmp_path: Path) -> None:
    stream = "".join(
        json.dumps({"log": "x", "kubernetes": {"pod_name": pod, "container_name": "e"}}) + "\n"
        for pod in ("../../etc/passwd", "/abs", "b")
    )
    for name in opened(tmp_path, stream):
        assert "/" not in name or not name.startswith(("/", "..")), name


def test_old_newlines_and_stamps_do_not_reverse_a_stream(tmp_path: Path) -> None:
    """Only where most steps go back is the newest line first."""
    records = [("a", 1), ("b", 2), ("a", 1), ("b", 3), ("a", 4)]
    stream = "".join(
        json.dumps({"line": f"{who}{second}", "labels": {"pod": who}, "timestamp": f"2026-11-21T02:00:0{second}Z"})
        + "\n"
        for who, second in records
    )
    assert [line.rpartition(" ")[2] for line in text(opened(tmp_path, stream)["a"])] == ["a1", "a1", "a4"]


def test_an_array_of_records_is_read_like_lines(tmp_path: Path) -> None:
    """As consoles download them."""
    records = [{"line": f"x{at}", "labels": {"pod": "ab"[at % 2]}} for at in range(6)]
    found = opened(tmp_path, "[\n" + ",\n".join(json.dumps(record) for record in records) + "\n]\n")
    assert text(found["a"]) == ["x0", "x2", "x4"]
    assert text(found["b"])[:3] == ["x1", "x3", "x5"]


def test_what_cannot_be_written_or_opened_is_said_with_the_way_out(tmp_path: Path) -> None:
    stream = tmp_path / "all.log"
    stream.write_text("".join(f"[pod/p{each}/e] x\n" for each in range(100)))
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))\nfrom pdctl.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "diagnose", str(stream)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 4, done.stderr
    assert "ulimit -n" in done.stderr
    assert "Traceback" not in done.stderr
    code = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n" + code.replace(
        "RLIMIT_NOFILE, (60, 60)", "RLIMIT_FSIZE, (4096, 4096)"
    )
    stream.write_text("".join(f"[pod/p{each % 2}/e] {'x' * 50}\n" for each in range(1000)))
    done = subprocess.run(
        [sys.executable, "-c", code, "diagnose", str(stream)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 4, done.stderr
    assert "TMPDIR" in done.stderr
