"""A simulation as a table and as a page: every figure of its policies, and nothing that a name could smuggle in."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from pdctl.render import simulation_table
from pdctl.render.simulation_page import to_html
from pdctl.render.term import Term, uncoloured
from pdctl.simulation.simulation_document import UnfinishedRun
from tests.simulation.made_up import outcome

if TYPE_CHECKING:
    from pathlib import Path

POLICIES = ("blitz", "static", "dynamo-load")


def text(*policies: str, seeds: int = 3, tty: bool = False) -> str:
    stream = io.StringIO()
    if tty:
        stream.isatty = lambda: True  # type: ignore[method-assign]
    told = outcome(policies, seeds)
    simulation_table.show(told._replace(unfinished=[UnfinishedRun("kpa", "live", 2)]), Term(stream))
    return stream.getvalue()


def test_the_table_has_a_row_for_each_policy_with_its_intervals() -> None:
    said = text(*POLICIES)
    assert said.startswith("burst:rate=8,factor=5: on 2p1d (2 prefill and 2 decode of 8 replicas), profile gpu-8b, ")
    assert "wanted: TTFT 2 s, TBT 50 ms\n" in said
    for name in POLICIES:
        service, cost = (line for line in said.splitlines() if line.startswith(name))
        assert re.search(r" \d\d\.\d% \(\d\d\.\d–\d\d\.\d%\) ", service), service
        assert re.search(r" \d+ s \(\d+–\d+ s\) ", cost), cost
    assert "means over 3 seeds with their 95 % intervals" in said
    assert said.endswith("not finished: kpa live, seed 2\n")


def test_of_many_runs_that_did_not_end_the_first_are_named() -> None:
    stream = io.StringIO()
    many = [UnfinishedRun("kpa", "live", seed) for seed in range(1000)]
    simulation_table.show(outcome(POLICIES)._replace(unfinished=many), Term(stream))
    lines = [line for line in stream.getvalue().splitlines() if line.startswith("not finished")]
    assert lines[0] == "not finished: kpa live, seed 0"
    assert lines[-1] == f"not finished: {1000 - len(lines) + 1} more; -o json names all"
    assert len(lines) < 10


def test_one_seed_says_nothing_of_chance() -> None:
    said = text("blitz", seeds=1)
    assert "(" not in said.split("SERVICE")[1].split("figures:")[0]
    assert "one seed; --seeds 5 shows the spread" in said


def test_a_narrow_terminal_gets_a_list_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    said = text(*POLICIES, tty=True)
    assert max(map(len, uncoloured(said).splitlines())) <= 60
    assert said.count("MEAN GPUS: ") == 3


def test_times_and_sizes_in_words() -> None:
    assert [simulation_table.duration(each) for each in (0, 0.0123, 0.9994, 0.9996, 12.34, 4567)] == [
        "0 ms", "12.3 ms", "999 ms", "1 s", "12.3 s", "4,567 s"
    ]  # fmt: skip
    assert [simulation_table.volume(each) for each in (0, 999, 1e3, 2.5e9, 16e12)] == [
        "0 B", "999 B", "1 kB", "2.5 GB", "16 TB"
    ]  # fmt: skip


def test_the_page_stands_alone_and_escapes_what_it_was_given() -> None:
    told = outcome(POLICIES)
    hostile = "</title><script>alert(1)</script>\u202e"
    page = to_html(told._replace(setup=told.setup._replace(trace=hostile)))
    own = re.sub(r"<script.*?</script>", "", page.replace(hostile, "LEAKED"), flags=re.DOTALL)
    assert "LEAKED" not in page.replace(hostile, "LEAKED")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e" in own
    assert not re.search(r"(?:src|href)=|@import|url\(", own), "nothing is loaded from elsewhere"
    assert "default-src 'none'" in own
    for name in POLICIES:
        assert f"<tr><th>{name}</th>" in own
        assert f"Replicas by state: {name}" in own
    assert own.count('class="plotly-graph-div"') == 6 + len(POLICIES)


@pytest.mark.heavy
def test_a_browser_draws_every_plot_of_the_page_within_its_width(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    assert browser is not None, "no browser is installed: apt-get install chromium"
    (tmp_path / "page.html").write_text(to_html(outcome(POLICIES)), encoding="utf-8")
    for width in (1400, 400):
        frame = tmp_path / f"{width}.html"
        frame.write_text(
            f'<iframe src="page.html" width={width} height=900></iframe><script>onload = () => setTimeout(() => {{'
            "const inside = frames[0].document; const plots = [...inside.querySelectorAll('.js-plotly-plot')];"
            "document.title = [plots.length, inside.documentElement.scrollWidth, plots.filter("
            "one => one.querySelector('.main-svg').getBoundingClientRect().width > 200).length].join(' ')}, 3000)"
            "</script>"
        )
        argv = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
                "--virtual-time-budget=20000", "--dump-dom", frame.as_uri()]  # fmt: skip
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
        title = re.search(r"<title>(.*?)</title>", done.stdout)
        assert title is not None, done.stdout[:500]
        plots, across, drawn = map(int, title[1].split())
        assert (plots, drawn) == (9, 9)
        assert across <= width
