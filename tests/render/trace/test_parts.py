"""What the views are made of: rows of ranks, lanes, places, the axis, the progress line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdctl.cli.log_sources import Scanning
from pdctl.engines.base import Phase
from pdctl.render.trace import wording
from pdctl.render.trace.html_page import GAP_SHARE, Axis
from pdctl.render.trace.perfetto import to_perfetto
from pdctl.render.trace.steps import Lanes, collapsed, gap_row, lanes, named
from pdctl.render.trace.wording import Places
from pdctl.trace.room import LongestGap
from tests.cases import for_each
from tests.render.trace import samples


def test_ranks_that_say_the_same_in_one_second_share_a_row() -> None:
    steps = [
        samples.step("prefill0", Phase.BOOTSTRAP, 1.0, 10 + at, f"room=7 engine_rank={at}", f"TP{at}", role="prefill")
        for at in range(8)
    ]
    (row,) = collapsed(steps)
    assert row.step is steps[0]
    assert named(row.ranks) == "TP0-7 ×8"


def test_a_rank_that_says_it_twice_gets_a_row_for_each() -> None:
    twice = [samples.step("prefill0", Phase.BOOTSTRAP, 1.0, line, "room=7", "TP0") for line in (1, 2)]
    assert [row.step.line for row in collapsed(twice)] == [1, 2]


def test_rows_of_two_seconds_instances_or_texts_stay_apart() -> None:
    first = samples.step("prefill0", Phase.BOOTSTRAP, 1.0, 1, "room=7", "TP0")
    others = [
        first._replace(rank="TP1", t=(first.t or 0) + 1),
        first._replace(rank="TP1", t=(first.t or 0) + 1, instance="prefill1"),
        first._replace(rank="TP2", t=(first.t or 0) + 1, text="another"),
    ]
    assert len(collapsed([first, *others])) == 4


def test_interleaved_ranks_are_found_within_their_second() -> None:
    texts = ("got info room=7", "room=7 is bootstrapped")
    steps = [
        samples.step("prefill0", Phase.HANDSHAKE, 1.0, 2 * rank + at, text, f"TP{rank}")
        for rank in range(4)
        for at, text in enumerate(texts)
    ]
    assert [(row.step.text, named(row.ranks)) for row in collapsed(steps)] == [(text, "TP0-3 ×4") for text in texts]


@for_each(
    ("ranks", "name"),
    [
        ((), ""),
        (("DP1 TP3",), "DP1 TP3"),
        (("DP1 TP0", "DP1 TP1"), "DP1 TP0-1 ×2"),
        (("DP0 TP0", "DP1 TP1"), "2 ranks"),
        (("TP0", "PP1"), "2 ranks"),
        (("TP0", "TP2", "TP4"), "TP0,2,4 ×3"),
    ],
)
def test_the_name_of_several_ranks(ranks: tuple[str, ...], name: str) -> None:
    assert named(ranks) == name


def test_lanes_stand_in_order_with_the_prefill_that_was_asked_first() -> None:
    assert [lane.instance for lane in lanes(samples.wrong_prefill())] == ["router", "prefill1", "prefill0", "decode0"]


def test_a_lane_without_a_line_is_a_lane_too() -> None:
    term, _ = samples.screen()
    legend = "\n".join(Lanes(samples.wrong_prefill(), term).legend(0))
    assert "prefill1" in legend
    assert "got the request, but no TransferInfo" in legend


def test_the_gap_stands_behind_the_last_line_before_it() -> None:
    room = samples.wrong_prefill()
    rows = collapsed(room.events)
    assert gap_row(rows, room.gap) == 4
    assert gap_row(rows, None) == -1
    assert gap_row(rows, LongestGap(20.0, 320.0, 300.0, 1.0, "failed", "", "prefill1")) == len(rows)


def test_places_are_short_where_that_is_clear_and_links_where_there_is_a_file(tmp_path: Path) -> None:
    term, _ = samples.screen()
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "router.log").touch()
    (tmp_path / "a" / "my decode.log").touch()
    files = [str(tmp_path / name) for name in ("a/router.log", "b/router.log", "a/my decode.log")]
    places = Places([*files, "-"], term)
    assert places.text(files[0], 3) == str(Path("a/router.log:3"))
    assert places.text(files[2], 3) == "my decode.log:3"
    uri = (tmp_path / "a" / "my decode.log").as_uri()
    assert places.link(files[2], 3, "here") == f"\x1b]8;;{uri}#3\x1b\\here\x1b]8;;\x1b\\"
    assert "%20" in uri
    assert places.link("-", 3, "stdin:3") == "stdin:3"


def test_a_pipe_gets_paths_as_given_and_no_links(tmp_path: Path) -> None:
    term, _ = samples.screen(tty=False)
    file = tmp_path / "decode.log"
    file.touch()
    places = Places([str(file)], term)
    assert places.text(str(file), 3) == f"{file}:3"
    assert places.link(str(file), 3, "here") == "here"


def test_a_long_gap_leaves_room_for_what_happened_around_it() -> None:
    room = samples.wrong_prefill()
    axis = Axis.of(room)
    assert room.gap is not None
    assert axis.broken
    start, end = axis.place(room.gap.start), axis.place(room.gap.end)
    assert end - start == pytest.approx(100 * GAP_SHARE)
    assert start > 10
    assert axis.place(0) == 0
    assert axis.place(10_000) == 100
    places = [axis.place(at / 10) for at in range(220)]
    assert places == sorted(places)


def test_a_short_room_is_to_scale() -> None:
    axis = Axis.of(samples.healthy())
    assert not axis.broken
    assert axis.place(0.1) == pytest.approx(2 * axis.place(0.05))
    assert [seconds for seconds, _ in axis.ticks()] == pytest.approx([0.0, 0.05, 0.1, 0.15, 0.2, 0.25], abs=0.01)


@for_each(
    ("start", "end"),
    [(0.0, 20.0), (0.0, 21.0), (1.0, 21.0), (0.0, 0.0), (5.0, 100.0), (-300.0, 0.0), (-1.0, 30.0)],
    ids=str,
)
def test_any_gap_has_an_axis(start: float, end: float) -> None:
    room = samples.wrong_prefill()._replace(gap=LongestGap(start, end, end - start, 1.0, "a", "b", "decode0"))
    axis = Axis.of(room)
    assert 0 <= axis.place(start) <= axis.place(end) <= 100
    assert all(0 <= percent <= 100 for _, percent in axis.ticks())


def test_perfetto_gets_tracks_slices_and_instants() -> None:
    told = json.loads(to_perfetto([samples.healthy(), samples.wrong_prefill()]))
    events = told["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "i"}
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    threads = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    for event in events:
        if event["ph"] == "M":
            continue
        assert event["pid"] in names
        assert (event["pid"], event["tid"]) in threads
        assert isinstance(event["ts"], int)
        assert event["ts"] >= 0
    (transfer,) = (event for event in events if event["name"] == "transfer" and event["ph"] == "X")
    assert names[transfer["pid"]] == "prefill-0"
    assert (transfer["ts"], transfer["dur"]) == (42_100, 87_100)
    assert transfer["args"]["gb_s"] == 15.41
    late = next(event for event in events if event["name"] == "timed_out")
    assert late["args"]["file"] == "logs/decode0.log:75"


def test_lines_without_a_time_are_counted_not_placed() -> None:
    told = json.loads(to_perfetto([samples.blind()]))
    assert told["otherData"]["untimed_lines"] == 1
    assert not [event for event in told["traceEvents"] if event["ph"] != "M"]


def test_figures_show_no_more_than_the_clock_told() -> None:
    assert wording.exact(19.7, 1.0) == "+20s"
    assert wording.exact(0.0123, 0.001) == "+0.012s"
    assert wording.exact(-1.0, 1.0) == "-1s"
    assert wording.exact(None, 1.0) == "?"
    assert wording.doubt(1.0) == "±1s"
    assert wording.doubt(0.001) == ""
    assert wording.took(300.0, 1.0) == "300 s"
    assert wording.took(0.0871) == "87.1 ms"
    assert wording.rfc3339(samples.BEGAN) == "2026-11-21T01:34:20.000Z"


def test_progress_waits_a_second_and_leaves_nothing_behind() -> None:
    now = [0.0]
    term, stream = samples.screen()
    scanning = Scanning(term, clock=lambda: now[0])
    scanning(10, 4_000_000_000)
    assert stream.getvalue() == ""
    now[0] = 2.0
    scanning(1_000_000_000, 4_000_000_000)
    now[0] = 2.01
    scanning(1_100_000_000, 4_000_000_000)
    assert stream.getvalue() == "\rreading ━━━━━━╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌ 1 GB of 4 GB, 0.5 GB/s\x1b[K"
    scanning.close()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_progress_is_silent_in_a_pipe() -> None:
    now = [0.0]
    term, stream = samples.screen(tty=False)
    scanning = Scanning(term, clock=lambda: now[0])
    now[0] = 9.0
    scanning(1, 2)
    scanning.close()
    assert stream.getvalue() == ""
