"""Lists of workers in a log: joined where it begins, at a later start, and without end nowhere."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from pdctl.logs.library import Library
from pdctl.logs.source import open_logs

if TYPE_CHECKING:
    from pathlib import Path

START = ["Starting router on 0.0.0.0:8100 | mode: PrefillDecode {", "  prefill_urls: [", '    ("{url}", None)', "  ],"]
END = ["  decode_urls: [", '    "http://10.1.0.3:31000"', "  ],", "}"]


def start(url: str) -> list[str]:
    return [line.replace("{url}", url) for line in (*START, *END)]


def library(folder: Path, lines: list[str]) -> Library:
    path = folder / "router.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    return Library(open_logs([str(path)]), tz=dt.timezone.utc, index=False)


def test_each_start_is_one_line_at_its_place(tmp_path: Path) -> None:
    said = "2026-11-21 04:40:02  INFO smg::server: src/server.rs:985: Router ready | workers: []"
    logs = library(tmp_path, [*start("http://10.1.0.1:31000"), *[said] * 400, *start("http://10.1.0.2:31000")])
    listed = [(one.place.line, one.values["prefill"]) for one in logs.starts if one.row.id == "router-starting"]
    assert listed == [(1, '("http://10.1.0.1:31000", None)'), (409, '("http://10.1.0.2:31000", None)')]
    around = logs.context(float("-inf"), float("inf"))
    assert [one.row.id for one in around].count("router-starting") == 2
    assert {one.row.id for one in around} == {"router-starting", "router-ready"}
    assert logs.identity(logs.logs[0]).role == "router"


def test_a_log_of_nothing_but_beginnings_is_read_in_one_pass(tmp_path: Path) -> None:
    logs = library(tmp_path, ["prefill_urls: [ x"] * 20_000)
    assert logs.identity(logs.logs[0]).prefills == ()
    assert len(tuple(logs.context(float("-inf"), float("inf")))) <= 20_000
