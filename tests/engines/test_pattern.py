from __future__ import annotations

from pdctl.engines.pattern import weaknesses
from tests.cases import for_each


@for_each(
    ("pattern", "literal", "says"),
    [
        (r"(?:Error: )?it failed", b"it failed", "may be missing"),
        (r".*it failed", b"it failed", "may be missing"),
        (r"it (?P<a>(?:x+)*) failed", b"it failed", "a repeat of a group"),
        (r"it (?P<a>.*) of (?P<b>.*) failed (?P<c>\d+)", b" failed ", "two of its repeats"),
        (r"it (?P<a>\S+):(?P<b>\S+):(?P<c>\d+) failed", b" failed", "two of its repeats"),
        (r"it (?P<a>.*)x(?P<b>[^#]*)# failed", b" failed", "can read the same text again"),
        (r"it (?P<what>failed|died)", b"failed", "need not stand"),
        (r"it failed(?: badly)?", b"badly", "need not stand"),
        (r"it failed", b"it", "shorter than 4 bytes"),
        (r"it (?P<a>failed) \1", b"failed", "groupref"),
        (r"it (failed", b"failed", "not a regular expression"),
        (r"it failed a{99999999999999}", b"it failed", "not a regular expression"),
    ],
)
def test_what_is_refused(pattern: str, literal: bytes, says: str) -> None:
    assert any(says in weakness for weakness in weaknesses(pattern, literal))


@for_each(
    ("pattern", "literal"),
    [
        (r"it failed", b"failed"),
        (r"room=(?P<room>\d+) failed after (?P<seconds>[\d.]+)s: (?P<reason>.*)", b" failed after "),
        (r"it failed at (?P<addr>\S+:\d+): (?P<reason>.*)", b"it failed at "),
        (r"it failed for (?P<rid>\S+) in (?P<where>.{0,200}?) of (?P<what>.*)", b"it failed for "),
        (r"obj=\((?=.*?\brid='(?P<rid>[^']*)')?(?=.*?\broom=(?P<room>\d+))?", b"obj=("),
        (r"(?:Lost|Losing) connection with (?P<addr>[^,]+), (?P<n>\d+) affected", b" connection with "),
        (r"(?P<client>[0-9.:]+) - \"GET (?P<path>/[^\s\"]*) HTTP/1\.\d\" (?P<status>\d{3})", b" HTTP/1."),
    ],
)
def test_what_is_good(pattern: str, literal: bytes) -> None:
    assert weaknesses(pattern, literal) == []
