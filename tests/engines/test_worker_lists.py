"""A router's list of workers on several lines is one line again, however it was wrapped."""

from __future__ import annotations

from pdctl.engines.identify import ListedPrefill, identify
from pdctl.engines.routers.sglang_router import LIST_BYTES, LIST_LINES, join_list, opens_list
from pdctl.engines.row_matching import speech
from tests.cases import for_each

LINE = (
    b"2026-11-21 04:40:01  INFO smg::server: src/server.rs:794: Starting router on 0.0.0.0:80 | mode: PrefillDecode { "
    b'prefill_urls: [("http://10.1.0.1:31000", None), ("http://10.1.0.2:31000", Some(9001))], decode_urls: '
    b'["http://10.1.0.3:31000"], prefill_policy: Some(RoundRobin), decode_policy: None } | policy: RoundRobin'
)
PREFILLS = (ListedPrefill("http://10.1.0.1:31000", None), ListedPrefill("http://10.1.0.2:31000", 9001))


def unwrapped(lines: list[bytes]) -> list[bytes]:
    at = next(at for at, line in enumerate(lines) if opens_list(line))
    whole, taken = join_list(lines[at:])
    return [*lines[:at], whole, *lines[at + taken :]]


def test_a_whole_line_is_left_alone() -> None:
    assert not opens_list(LINE)
    assert not opens_list(
        b'Starting router on 0.0.0.0:1 | mode: Regular { worker_urls: ["http://10.1.0.1:31000"] } | policy'
    )
    assert not opens_list(b"[2026-11-21 02:06:49] Prefill batch, #new-seq: 1")


@for_each("columns", range(40, 240, 7))
def test_a_terminal_breaks_it_anywhere(columns: int) -> None:
    lines = [LINE[at : at + columns] for at in range(0, len(LINE), columns)]
    found = identify(unwrapped(lines), speech())
    assert found.prefills == PREFILLS
    assert found.decodes == ("http://10.1.0.3:31000",)


@for_each("lead", [b"", b"router-0  | ", b"[pod/router-6d9/router] "])
def test_a_pretty_printer_breaks_it_at_every_bracket(lead: bytes) -> None:
    text = LINE.replace(b"[", b"[\n    ").replace(b"(", b"(\n        ").replace(b", ", b",\n   ").replace(b")", b"\n)")
    lines = [lead + line for line in text.split(b"\n")]
    found = identify(unwrapped(lines), speech())
    assert (found.prefills, found.decodes) == (PREFILLS, ("http://10.1.0.3:31000",))
    assert found.role == "router"


def test_what_follows_is_another_line() -> None:
    behind = b"2026-11-21 04:40:02  INFO smg::server: src/server.rs:985: Router ready | workers: []"
    lines = [b"Prefill nodes: [", b'  ("http://10.1.0.1:31000", None),', behind]
    assert unwrapped(lines) == [b'Prefill nodes: [("http://10.1.0.1:31000", None),', behind]


def test_a_list_without_an_end_is_given_up() -> None:
    lines = [b"prefill_urls: ["] + [b'("http://10.1.0.1:31000", None),'] * (2 * LIST_LINES)
    whole, taken = join_list(lines)
    assert taken <= LIST_LINES
    assert len(whole) <= LIST_BYTES
    assert join_list([b"prefill_urls: [", b"nothing of the kind"] * 3) == (b"prefill_urls: [", 1)
