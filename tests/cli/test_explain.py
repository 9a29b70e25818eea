"""`pdctl explain` as it is called."""

from __future__ import annotations

import json
import subprocess

import pytest

from pdctl.catalogue import book
from tests.cases import for_each
from tests.cli.verb import within


def explain(*argv: str) -> subprocess.CompletedProcess[str]:
    return within("explain", *argv)


def test_one_code_is_told_whole() -> None:
    done = explain("bootstrap-port-null")
    assert done.returncode == 0
    assert done.stdout.startswith("PD201 bootstrap-port-null  error\n")
    for word in ("look next", "fix", "--prefill URL PORT", "seen from   topology, router", "sglang#5704"):
        assert word in done.stdout
    assert all(len(line) <= 100 for line in done.stdout.splitlines())


def test_one_that_cannot_be_checked_says_why() -> None:
    assert "not checked pdctl probes SGLang" in explain("PD320").stdout


def test_the_faults_of_releases_are_listed_under_their_code() -> None:
    said = explain("PD317").stdout
    assert "sglang#34692" in said
    assert "0.5.3 to before 0.5.18" in said


def test_several_are_a_list() -> None:
    lines = explain("PD9", "roles-swapped").stdout.splitlines()
    assert lines[0].split() == ["CODE", "SEVERITY", "NAME", "MEANS"]
    assert [line.split()[0] for line in lines[1:]] == ["PD301", "PD901", "PD902", "PD903", "PD904", "PD905"]


def test_json_has_everything_and_a_schema() -> None:
    document = json.loads(explain("--all", "-o", "json").stdout)
    assert document["schema"] == "pdctl.catalogue/1"
    assert [row["code"] for row in document["entries"]] == [entry.code for entry in book.ENTRIES]
    first = document["entries"][0]
    assert set(first) == {
        "code", "slug", "severity", "headline", "explain", "look_next", "fix", "needs", "versions", "source",
        "reports", "not_checked",
    }  # fmt: skip
    assert first["reports"][0] == {"name": "sglang#5704", "url": "https://github.com/sgl-project/sglang/issues/5704"}


@for_each(
    ("argv", "said"),
    [
        (("PD2O1",), "did you mean PD201"),
        (("page-size",), "PD302 (page-size-mismatch) or PD410 (page-size-one)"),
        ((), "no code was named"),
        (("--all", "PD201"), "--all does not go with PD201"),
    ],
)
def test_a_mistake_is_answered_with_the_way_out(argv: tuple[str, ...], said: str) -> None:
    done = explain(*argv)
    assert done.returncode == 2
    assert said in done.stderr
    assert not done.stdout


@pytest.mark.parametrize("columns", ["1", "10", "400"])
def test_any_width_of_a_terminal_will_do(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    done = explain("PD201")
    assert (done.returncode, done.stderr) == (0, "")
    assert "bootstrap-port-null" in done.stdout
