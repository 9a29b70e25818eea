from __future__ import annotations

from pdctl.logs.source import generation, is_log, stem
from tests.cases import for_each


@for_each(
    ("names", "base"),
    [
        (["d.log.3.gz", "d.log.2.gz", "d.log.1", "d.log"], "d.log"),  # logrotate, RotatingFileHandler
        (["d.log-20261119.gz", "d.log-20261120", "d.log"], "d.log"),  # logrotate dateext
        (["d-20261119.log", "d-20261120.log", "d.log"], "d.log"),  # dateformat in front of the extension
        (["d.log.2026-11-19", "d.log.2026-11-20", "d.log"], "d.log"),  # TimedRotatingFileHandler
        (["d.log.2026-11-20_04", "d.log.2026-11-20_05", "d.log"], "d.log"),
        (["0.log.20261120-044619.gz", "0.log.20261120-052000", "0.log"], "0.log"),  # kubelet
        (["d.2026-11-20_04-46-19_123456.log", "d.2026-11-20_05-00-00_1.log.zst", "d.log"], "d.log"),  # loguru
        (["d.log.old", "d.log"], "d.log"),
        (["d.log.1", "d.log", "d.g2.log", "d.g10.log"], "d.log"),  # pdctl launch on Slurm: the second start
    ],
)
def test_generations_of_one_log_sort_oldest_first(names: list[str], base: str) -> None:
    found = [generation(name) for name in names]
    assert {each.base for each in found} == {base}
    assert sorted(found, key=lambda each: each.order) == found
    assert len({each.order for each in found}) == len(found)


@for_each("name", ["prefill-1.log", "decode0.log", "prefill.1.log", "tp8-dp4.log", "run-12345678.log"])
def test_a_number_in_a_name_is_not_a_generation(name: str) -> None:
    assert generation(name).base == name


def test_the_stem_names_the_instance() -> None:
    assert [stem(name) for name in ("prefill-0.log", "x.txt", "serve.out", "plain", ".log")] == [
        "prefill-0", "x", "serve", "plain", ".log",
    ]  # fmt: skip


@for_each(
    ("name", "read"),
    [
        ("decode.log", True), ("decode.log.7", True), ("decode.log.2026-11-20", True), ("notes.txt", True),
        ("serve.out.1.gz", True), ("x.zst", True), ("decode-20261120.log", True),
        ("wire.jsonl", False), ("README.md", False), ("src.tar.gz", False), (".decode.log.swp", False), ("core", False),
    ],
)  # fmt: skip
def test_what_a_directory_is_read_for(name: str, read: bool) -> None:
    assert is_log(name) is read
