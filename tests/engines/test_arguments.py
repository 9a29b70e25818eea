"""The flags of every SGLang release: what is there, what is gone, and what stands in its place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pdctl.engines import versions
from pdctl.engines.routers import router_flags as routers
from pdctl.engines.sglang.arguments import SPELLINGS, SUCCESSORS, argument, arguments, choices, full_name, gap
from pdctl.engines.versions import SGLANG, Release, Version, parse, resolve, spell
from tests.cases import for_each

# What an installed release's own parser takes: flag → "", "=", "=*" or "=?", and its choices.
DUMP = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
found = {}
for action in parser._actions:
    bare = action.nargs == 0
    takes = "" if bare else {"+": "=*", "*": "=*", "?": "=?"}.get(action.nargs, "=")
    for option in action.option_strings:
        if option.startswith("--") and option != "--help":
            found[option[2:]] = [takes, [str(choice) for choice in action.choices or ()]]
print("FLAGS", json.dumps(found))
"""


def told(name: str, release: str) -> str:
    found = gap(name, resolve(release))
    return "" if found is None else f"{found.why}; {found.instead}; {'sure' if found.sure else 'in doubt'}"


@for_each(
    ("name", "release", "expected"),
    [
        ("tp-size", "0.5.3", ""),
        ("tensor-parallel-size", "0.5.23", ""),
        ("disaggregation-decode-tp", "0.5.9", ""),
        ("disaggregation-decode-tp", "0.5.10", "only until 0.5.10; ; sure"),
        ("disaggregation-decode-tp", "0.5.13", "only until 0.5.10; ; sure"),
        ("attn-dp-size", "0.5.18", "since 0.5.22; ; sure"),
        ("attn-dp-size", "0.5.22", ""),
        ("optimistic-prefill-attempts", "0.5.13", "since 0.5.16; it has --optimistic-prefill-retries; sure"),
        ("optimistic-prefill-retries", "0.5.23", "only until 0.5.16; it has --optimistic-prefill-attempts; sure"),
        ("cuda-graph-max-bs", "0.5.18", ""),
        ("cuda-graph-max-bs", "0.5.23", "only until 0.5.20; it has --cuda-graph-max-bs-decode; sure"),
        ("enable-deepep-moe", "0.5.23", "only until 0.5.4.post1; write `moe-a2a-backend: deepep`; sure"),
        ("enable-ep-moe", "0.5.8", "only until 0.5.4.post1; it has the key `ep`; sure"),
        ("nsa-prefill", "0.5.8", "only until 0.5.4; it has --nsa-prefill-backend; sure"),
        ("nsa-prefill", "0.5.23", "only until 0.5.4; it has --dsa-prefill-backend; sure"),
        ("enable-nsa-prefill-context-parallel", "0.5.23", "only until 0.5.20; it has --enable-prefill-cp; sure"),
        ("enable-metrix", "0.5.23", "no release pdctl knows has it; did you mean --enable-metrics?; sure"),
        ("warp-drive", "0.5.23", "no release pdctl knows has it; ; sure"),
        # Between two releases that were read, or above the newest, a flag that is not known may well be there.
        ("attn-dp-size", "0.5.20.post1", "since 0.5.22; ; in doubt"),
        ("attn-dp-size", "0.5.20", "since 0.5.22; ; sure"),
        ("warp-drive", "0.6.1", "no release pdctl knows has it; ; in doubt"),
        ("disaggregation-decode-tp", "0.5.15", "only until 0.5.10; ; sure"),
    ],
)
def test_what_a_release_does_not_have(name: str, release: str, expected: str) -> None:
    assert told(name, release) == expected


def test_a_beginning_counts_where_only_one_flag_has_it() -> None:
    assert told("mem-fraction", "0.5.23") == ""  # --mem-fraction-static
    assert "flags begin so: --disaggregation-decode-" in told("disaggregation-decode", "0.5.23")


@for_each("version", SGLANG, ids=spell)
def test_what_pdctl_writes_itself_exists(version: Version) -> None:
    for row in SPELLINGS:
        if row.span.holds(version):
            for word in row.words:
                assert not word.startswith("--") or argument(word[2:], version) is not None, (row.meaning, word)


def test_spans_of_one_flag_do_not_overlap() -> None:
    for name, rows in arguments().items():
        for version in SGLANG:
            assert sum(row.span.holds(version) for row in rows) <= 1, name


def test_a_successor_is_a_flag_of_a_later_release() -> None:
    for old, words in SUCCESSORS.items():
        assert old in arguments(), old
        new = words.partition(":")[0]
        assert " " in new or new in arguments(), (old, words)


@for_each(
    ("name", "release", "allowed"),
    [
        ("disaggregation-transfer-backend", "0.5.8", "mooncake nixl ascend fake"),
        ("disaggregation-transfer-backend", "0.5.9", "mooncake nixl ascend fake mori"),
        ("disaggregation-transfer-backend", "0.5.23", "mooncake nixl ascend fake mori mooncake_tcp"),
        ("load-balance-method", "0.5.7", "round_robin decode_round_robin shortest_queue minimum_tokens"),
        ("disaggregation-decode-allocation-policy", "0.5.22", "early prefill_complete"),
        ("disaggregation-decode-allocation-policy", "0.5.21", ""),
        ("log-requests-level", "0.5.3", "0 1 2 3"),
        ("reasoning-parser", "0.5.23", ""),  # only the running server knows
    ],
)
def test_the_values_a_flag_may_have(name: str, release: str, allowed: str) -> None:
    assert " ".join(choices(name, parse(release))) == allowed


HOME = Path(os.environ.get("PDCTL_TEST_SGLANG_HOME", "/nonexistent"))


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", SGLANG, ids=spell)
def test_the_table_is_the_installed_releases_own(version: Version) -> None:
    """PDCTL_TEST_SGLANG_HOME holds VERSION/bin/sglang-python for each installed release (docs/new-release.md)."""
    python = HOME / spell(version) / "bin" / "sglang-python"
    if not python.is_file():
        pytest.skip(f"PDCTL_TEST_SGLANG_HOME has no {spell(version)}/bin/sglang-python")
    done = subprocess.run([python, "-c", DUMP], capture_output=True, text=True, timeout=500)
    line = next((line for line in done.stdout.splitlines() if line.startswith("FLAGS ")), "")
    assert line, done.stderr[-2000:]
    installed = json.loads(line.removeprefix("FLAGS "))
    ours = {name: row.takes for name in arguments() if (row := argument(name, version)) is not None}
    assert sorted(set(ours) - set(installed)) == [], "the release refuses them"
    assert sorted(set(installed) - set(ours)) == [], "the release has them"
    assert ours == {name: takes for name, (takes, _) in installed.items()}
    for name in ours:
        known = choices(name, version)
        assert not known or set(known) == set(installed[name][1]), name


ROUTER_DUMP = """
import argparse, json
from sglang_router.router_args import RouterArgs
from sglang_router.version import __version__
parser = argparse.ArgumentParser()
RouterArgs.add_cli_args(parser)
nargs = {"+": "=*", "*": "=*", "?": "=?", 0: ""}
found = {
    option[2:]: nargs.get(action.nargs, "=") for action in parser._actions for option in action.option_strings
    if option.startswith("--") and option != "--help"
}
print("FLAGS", json.dumps([__version__, found]))
"""


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", SGLANG, ids=spell)
def test_the_table_is_the_installed_routers_own(version: Version) -> None:
    """The sglang-router that stands beside an installed release of SGLang, whichever that is."""
    python = HOME / spell(version) / "bin" / "sglang-python"
    if not python.is_file():
        pytest.skip(f"PDCTL_TEST_SGLANG_HOME has no {spell(version)}/bin/sglang-python")
    done = subprocess.run([python, "-c", ROUTER_DUMP], capture_output=True, text=True, timeout=500)
    if "No module named 'sglang_router'" in done.stderr:
        pytest.skip(f"sglang {spell(version)} stands there without a router")
    line = next((line for line in done.stdout.splitlines() if line.startswith("FLAGS ")), "")
    assert line, done.stderr[-2000:]
    release, installed = json.loads(line.removeprefix("FLAGS "))
    names = versions.names("flags", parse(release), package="sglang-router")
    if release == versions.sources("sglang-router")[-1].version:
        assert routers.arguments("sglang-router") == installed
    assert set(names) == set(installed)


def test_a_release_is_what_it_says() -> None:
    assert gap("tp-size", Release("0.5.23", parse("0.5.23"))) is None


def test_a_flag_that_no_release_has_is_not_compared_with_each_of_each_release() -> None:
    """A script of a few KiB repeats such flags thousands of times."""
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event.endswith("call")

    assert (full_name("x", None), gap("x", None) is None) == ("x", False)  # the tables are read once
    sys.setprofile(count)
    try:
        full_name("x", None)
        gap("x", None)
    finally:
        sys.setprofile(None)
    assert 0 < calls < 3000
