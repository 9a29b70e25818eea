"""The releases a log row claims are those whose source has its line: rows held against the templates of all of them.

The templates stand in tools/read_release/logs/ and were read from the wheels that releases.tsv names.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from pdctl.engines import versions
from pdctl.engines.base import Speaker
from pdctl.engines.row_matching import ROWS
from pdctl.engines.sglang.logs import health, transfer_libraries
from pdctl.engines.versions import SGLANG, spell
from tests.cases import for_each
from tools.read_release.rows import Templates, cost
from tools.read_release.tables import path_of, unescape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.engines.base import Row

LINES = [row for row in ROWS if row.speaker is Speaker.SGLANG]
# Not SGLang's own words: uvicorn, aiohttp, urllib3, mooncake, NIXL, UCX, torch, zmq, Python itself.
FOREIGN = {row.id for row in (*health.CALLS, *transfer_libraries.COMPLAINTS)} | {
    "uvicorn-running", "process-started", "application-started", "uvicorn-stopping", "process-finished",
    "nixl-agent", "nixl-plugin", "mooncake-tcp-forced", "mooncake-handshake", "mooncake-tcp-port",
    "mooncake-no-local-segment", "bootstrap-request-error", "asgi-exception", "traceback", "traceback-frame",
    "traceback-code", "thread-exception", "room-key-error", "port-taken", "os-port-taken", "zmq-port-taken",
    "flags-unknown", "out-of-memory",
}  # fmt: skip
# Lines whose text the reader of releases does not see, with where their dates come from.
UNSEEN = {
    "server-args": "f'{server_args=}' of a dataclass until 0.5.18: repr() writes its name",
    "server-args-resolved": "a dict from 0.5.19 on: entrypoints/engine.py logs resolved_dict()",
    "request-received": "utils/request_logger.py hands the text to a list of loggers from 0.5.8 on",
    "request-cut-short": "the same",
    "request-finished": "the same",
    "openai-request-received": "the same; in the source from 0.5.10 on",
    "null-bootstrap-host": "Python's words for utils/network.py NetworkAddress(None, …), which came with 0.5.10",
    "failure-recorded": "of no release that was read: the founding incident's build",
    "failure-recorded-decode": "the same",
    "failure-recorded-prefill": "the same",
    **{
        f"{head}-unexplained{age}": "nixl/conn.py raises a RuntimeError up to 0.5.12, a KVTransferError up to 0.5.22"
        for head in ("prefill-bootstrap", "prefill-transfer", "decode-handshake", "decode-transfer")
        for age in ("", "-old")
    },
}
# Letters of a pattern that stand in a value: the repr of a record, a word handed on, another package's message.
VALUES = {
    "rank-fetched": "rank_ip rank_port", "rank-fetched-old": "rank_ip rank_port", "rank-known": "rank_ip rank_port",
    "prefill-times": "prefill", "decode-times": "decode", "prefill-times-old": "prefill", "decode-times-old": "decode",
    "shape-fetch-error": "host port", "shape-fetch-error-old": "host port",
    "shape-refused": "not fully registered", "shape-unreadable": "unexpected keyword argument",
    "kv-chunk-sending": "kv", "request-cut-short-json": "finish_reason type abort",
    "decode-handshake-rank-unreachable": "send_metadata", "decode-transfer-rank-unreachable": "send_metadata",
}  # fmt: skip


@cache
def templates() -> Templates:
    places = {source.version: at for at, source in enumerate(versions.sources())}

    def each() -> Iterator[tuple[str, str, frozenset[int]]]:
        for since, until, template, level, _ in versions.lines(path_of("sglang", "logs")):
            releases = range(places[since], places[until] if until else len(places))
            yield unescape(template), level, frozenset(releases)

    return Templates(each())


def written(row: Row) -> set[str]:
    """The releases whose source has a line this row may read."""
    inside = len(re.sub("[^A-Za-z]", "", VALUES.get(row.id, "")))
    found = templates().fits(row.pattern, row.literal.decode(), inside)
    return {spell(SGLANG[at]) for one in found for at in one.releases}


def claimed(row: Row) -> set[str]:
    return {spell(version) for version in SGLANG if row.span.holds(version)}


@for_each("row", [row for row in LINES if row.id not in FOREIGN | UNSEEN.keys()], ids=lambda row: row.id)
def test_a_row_claims_the_releases_that_write_its_line(row: Row) -> None:
    assert sorted(claimed(row) - written(row)) == [], "no line of theirs is read by this row"
    assert sorted(written(row) - claimed(row)) == [], "they write a line this row reads"


def test_no_exception_outlives_its_reason() -> None:
    held = {row.id: row for row in LINES}
    assert (FOREIGN | UNSEEN.keys() | VALUES.keys()) - held.keys() == set()
    needless = [name for name in UNSEEN if claimed(held[name]) == written(held[name])]
    assert needless == []


@for_each(
    ("pattern", "template", "fits"),
    [
        (r"Request (?P<room>\d+) waiting_timeout", "Request {} waiting_timeout", True),
        (r"Request (?P<room>\d+) waiting_timeout", "Request {} waiting", False),
        (r"Register: DP(?P<dp>\d+) TP(?P<tp>\d+)", "Register: DP{} TP{} PP{}", True),
        # A hole does not stand for words the pattern spells out.
        (r"Register: DP(?P<dp>\d+) CP(?P<cp>\d+) TP(?P<tp>\d+)", "Register: DP{} TP{} PP{}", False),
        (r"Lost, (?P<n>\d+) (?:requests|transfers) affected", "Lost, {} transfers affected", True),
        (r"sending to (?P<agent>\S+)$", "sending to {} with notif {}", False),
        (r"sending to (?P<agent>\S+)$", "sending to {}", True),
        (r"batch, #a: (?P<a>\d+), #b: (?P<b>\d+)", "batch, ⟨#a: {}, ⟩⟨#c: {}, ⟩⟨#b: {}⟩", True),
        (r"batch, #b: (?P<b>\d+), #a: (?P<a>\d+)", "batch, ⟨#a: {}, ⟩⟨#b: {}⟩", False),
    ],
)
def test_when_a_template_fits_a_pattern(pattern: str, template: str, fits: bool) -> None:
    assert (cost(pattern, template) is not None) is fits


def test_a_reason_is_found_in_the_line_that_wraps_it() -> None:
    both = Templates(
        [
            ("Decode failed for {}⟨ with exception {}⟩", "error", frozenset({0, 1, 2})),
            ("Request {} timed out", "raise", frozenset({1, 2, 3})),
        ]
    )
    outer = r"Decode failed for \d+ with exception (?:KVTransferError\(bootstrap_room=\d+\): )?"
    assert {at for one in both.fits(outer + r"Request \d+ timed out", " timed out") for at in one.releases} == {1, 2}
    # As a line of its own it is never written, as the last line of a traceback it is.
    assert both.fits(r"Request \d+ timed out", " timed out") == []
    found = both.fits(r"RuntimeError: Request \d+ timed out", " timed out")
    assert [one.releases for one in found] == [frozenset({1, 2, 3})]
