"""The two views of a start, the log prefix, and the tables: what a user sees, as text."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys

import pytest
from rich.console import Console

from pdctl.cli.log_sources import Scanning
from pdctl.doctor.request import Progress
from pdctl.launch.deployment import Deployment
from pdctl.launch.log_tail import LogLine
from pdctl.launch.run_record import EventKind, RunEvent, StartStage
from pdctl.render.board import TerminalView
from pdctl.render.findings import report_text
from pdctl.render.foreground import LaunchProgress, choose
from pdctl.render.run_view import NamePrefix, PlainView, View
from pdctl.render.term import ESCAPE, Term, table, write_table
from tests.launch.conftest import deploy


class Screen(io.StringIO):
    """A terminal, or a pipe, that remembers what was written to it."""

    encoding = "utf-8"

    def __init__(self, tty: bool) -> None:
        super().__init__()
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture
def deployment() -> Deployment:
    return deploy(prefills=2)


def reach(name: str, stage: StartStage, at: float, detail: str, seconds: float = 0.0) -> RunEvent:
    return RunEvent(at, EventKind.STAGE, name, stage, detail, seconds)


STORY = (
    reach("prefill-0", StartStage.STARTED, 100.0, "pid 11"),
    reach("prefill-1", StartStage.STARTED, 100.0, "pid 12"),
    reach("decode-0", StartStage.STARTED, 100.0, "pid 13"),
    reach("prefill-0", StartStage.BOUND, 101.0, "port 30000", 1.0),
    reach("prefill-0", StartStage.WEIGHTS, 103.5, "weights loaded", 2.5),
    reach("prefill-0", StartStage.REGISTERED, 103.6, "bootstrap registered 1/1", 0.1),
    reach("prefill-0", StartStage.READY, 103.8, "ready", 0.2),
    reach("decode-0", StartStage.BOUND, 101.0, "port 30002", 1.0),
    reach("decode-0", StartStage.READY, 102.0, "ready", 1.0),
)


def board(deployment: Deployment, *more: RunEvent, color: bool = False) -> list[str]:
    """The rows of the live view at 104.0, the line of names first."""
    view = TerminalView(deployment, Term(Screen(tty=True)), attached=True)
    for event in (*STORY, *more):
        view.event(event)
    view.close()
    file = io.StringIO()
    Console(file=file, width=100, color_system="standard" if color else None).print(view.board(now=104.0))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def cells(row: str) -> list[str]:
    return [cell for cell in re.split(r"  +", row) if cell]


def test_the_causal_list_of_every_process(deployment: Deployment) -> None:
    rows = board(deployment)
    port = {spec.name: str(spec.port) for spec in deployment.specs}
    assert [cells(row) for row in rows] == [
        ["", "port", "bound", "weights", "registered", "workers", "ready"][1:],
        ["prefill-0", "✓", port["prefill-0"], "3.8 s", "1.0 s", "2.5 s", "1/1 0.10 s", "0.20 s"],
        ["prefill-1", "…", port["prefill-1"], "4.0 s", "…", "…", "…", "…"],
        ["decode-0", "✓", port["decode-0"], "2.0 s", "1.0 s", "–", "1.0 s"],
        ["router", port["router"], "…", "…", "…"],
        ["2 pairs to verify"],
    ]
    for name, text in (("registered", "1/1 0.10 s"), ("ready", "0.20 s"), ("weights", "2.5 s")):
        assert rows[0].index(name) == rows[1].index(text)


def test_the_slowest_stage_is_bold(deployment: Deployment) -> None:
    row = board(deployment, color=True)[1]
    assert re.search(r"\x1b\[1m2\.5 s *\x1b\[0m", row)
    assert row.count("\x1b[1m") == 1


def test_a_death_freezes_the_list(deployment: Deployment) -> None:
    rows = board(deployment, RunEvent(103.0, EventKind.DIED, "prefill-1", detail="left with exit code 1"))
    port = {spec.name: str(spec.port) for spec in deployment.specs}
    assert cells(rows[2]) == ["prefill-1", "✗", port["prefill-1"], "3.0 s", "–", "–", "–", "–"]
    assert cells(rows[4]) == ["router", port["router"], "–", "–", "–"]
    assert len(rows) == 5  # no pairs will be verified any more


def test_verified_pairs_are_one_row(deployment: Deployment) -> None:
    rows = board(
        deployment,
        RunEvent(105.0, EventKind.PAIR, "prefill-0 → decode-0", detail="answered", seconds=0.041),
        RunEvent(105.0, EventKind.PAIR, "prefill-1 → decode-0", detail="decode-0: connection refused", seconds=0.1),
    )
    assert rows[-1] == "✓ prefill-0 → decode-0 0.04 s   ✗ prefill-1 → decode-0 0.10 s"


def test_one_line_per_transition_where_nothing_can_be_redrawn(deployment: Deployment) -> None:
    screen = Screen(tty=False)
    view = PlainView(deployment, Term(screen), attached=True)
    for event in (
        *STORY[:1],
        *STORY[3:6],
        RunEvent(1.0, EventKind.PAIR, "prefill-0 → decode-0", detail="answered", seconds=0.041),
        RunEvent(1.0, EventKind.SERVING, detail="http://127.0.0.1:8000"),
        RunEvent(1.0, EventKind.DIED, "decode-0", detail="was killed by SIGKILL"),
        RunEvent(1.0, EventKind.RESTARTING, "decode-0", detail="restarts in 1.0 s (1 of 3)"),
        RunEvent(1.0, EventKind.STOPPING, detail="3 requests in flight"),
        RunEvent(1.0, EventKind.STOPPED, "router", seconds=0.5),
        RunEvent(1.0, EventKind.KILLED, "decode-0", seconds=15.0),
        RunEvent(1.0, EventKind.ENDED, detail="nothing left: 4 processes gone, 6 ports free", seconds=15.6),
    ):
        view.event(event)
    view.line(LogLine("prefill-1", "hello"))
    lines = screen.getvalue().splitlines()
    assert all(line[2] == ":" and line[8] == " " for line in lines[:-1])
    assert [line[9:] for line in lines[:-1]] == [
        "prefill-0 started, pid 11",
        "prefill-0 port 30000  1.0 s",
        "prefill-0 weights loaded  2.5 s",
        "prefill-0 bootstrap registered 1/1  0.10 s",
        "prefill-0 → decode-0 answered  0.04 s",
        "decode-0  ✗ was killed by SIGKILL",
        "decode-0  restarts in 1.0 s (1 of 3)",
        "stopping: router first, then decode and prefill (3 requests in flight); Ctrl-C again ends everything now",
        "router    stopped  0.50 s",
        "decode-0  killed  15.0 s",
        "ended after 15.6 s; nothing left: 4 processes gone, 6 ports free",
    ]
    assert lines[-1] == "prefill-1 │ hello"


def test_a_terminal_is_redrawn_in_place_and_then_left_alone(deployment: Deployment) -> None:
    screen = Screen(tty=True)
    view = TerminalView(deployment, Term(screen), attached=True)
    for event in STORY:
        view.event(event)
    view.event(RunEvent(105.0, EventKind.SERVING, detail="http://127.0.0.1:8000"))
    frozen = screen.getvalue()
    assert frozen.count("\x1b[1A") >= 5  # six lines, drawn over
    assert "\x1b[?1049h" not in frozen  # no alternate screen: the list stays in the scrollback
    assert frozen.endswith("\x1b[?25h")  # the cursor is back
    view.event(reach("decode-0", StartStage.READY, 110.0, "ready", 1.0))  # a restart: told below, the list stays
    view.close()
    told = screen.getvalue()[len(frozen) :]
    assert "\x1b[1A" not in told
    assert "ready" in told


def test_no_color_leaves_only_the_movements(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Screen(tty=True)
    view = TerminalView(deployment, Term(screen), attached=True)
    for event in STORY:
        view.event(event)
    view.close()
    assert "0.20 s" in screen.getvalue()
    assert not re.search(r"\x1b\[[0-9;]*m", screen.getvalue())


def test_a_reader_that_left_is_an_error_not_the_end(deployment: Deployment) -> None:
    """The supervisor goes on unwatched after an OSError; rich alone would end the program."""

    class Deserted(Screen):
        gone = False

        def write(self, text: str) -> int:
            if self.gone:
                raise BrokenPipeError
            return super().write(text)

    screen = Deserted(tty=True)
    view = TerminalView(deployment, Term(screen), attached=True)
    screen.gone = True
    with pytest.raises(BrokenPipeError):
        view.event(RunEvent(105.0, EventKind.STOPPING))
    view.close()


def test_the_view_fits_the_stream(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    def kind(progress: LaunchProgress, tty: bool) -> type:
        view = choose(progress, deployment, Term(Screen(tty)), attached=True)
        view.close()
        return type(view)

    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("COLUMNS", "79")
    assert kind(LaunchProgress.AUTO, tty=True) is TerminalView
    assert kind(LaunchProgress.AUTO, tty=False) is PlainView
    assert kind(LaunchProgress.TTY, tty=False) is TerminalView
    assert kind(LaunchProgress.PLAIN, tty=True) is PlainView
    assert kind(LaunchProgress.NONE, tty=True) is View
    monkeypatch.setenv("LINES", "7")  # too low for six rows and the headline above them
    assert kind(LaunchProgress.AUTO, tty=True) is PlainView
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("COLUMNS", "70")  # too narrow for every stage
    assert kind(LaunchProgress.AUTO, tty=True) is PlainView
    monkeypatch.setenv("COLUMNS", "79")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("LINES", "24")
    assert kind(LaunchProgress.AUTO, tty=True) is PlainView


def test_a_terminal_that_cannot_erase_gets_no_progress_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, drawn in (("xterm", True), ("dumb", False)):
        monkeypatch.setenv("TERM", name)
        monkeypatch.setattr(report_text, "PATIENCE", 0.0)
        scanned, looked = Screen(tty=True), Screen(tty=True)
        times = iter((0.0, 10.0)).__next__
        Scanning(Term(scanned), times)(1, 2)
        report_text.Looking(Term(looked))(Progress("logs", 4, 4))
        assert ("\x1b[K" in scanned.getvalue(), "\x1b[K" in looked.getvalue()) == (drawn, drawn)


def test_hue_by_role_and_weight_by_instance(deployment: Deployment) -> None:
    prefix = NamePrefix(deployment, Term(Screen(tty=True)))
    assert prefix.name("prefill-0") == "\x1b[34mprefill-0\x1b[0m"
    assert prefix.name("prefill-1") == "\x1b[34;1mprefill-1\x1b[0m"
    assert prefix.name("decode-0") == "\x1b[32mdecode-0 \x1b[0m"
    assert prefix.name("router") == "\x1b[35mrouter   \x1b[0m"


def test_plain_symbols_where_the_terminal_knows_no_others(deployment: Deployment) -> None:
    screen = Screen(tty=False)
    screen.encoding = "ascii"
    assert NamePrefix(deployment, Term(screen)).line(LogLine("router", "x")) == "router    | x"


def test_tables_are_aligned_on_terminals_and_tabbed_elsewhere() -> None:
    rows = [("a", "\x1b[31mlong\x1b[0m", "x"), ("bbbb", "b", "y")]
    pipe, screen = Screen(tty=False), Screen(tty=True)
    write_table(("N", "M", "O"), rows, Term(pipe))
    assert pipe.getvalue().splitlines()[2] == "bbbb\tb\ty"
    write_table(("N", "M", "O"), rows, Term(screen))
    assert screen.getvalue().splitlines()[2] == "bbbb  b     y"


def test_a_start_that_is_given_up_waits_for_no_pairs(deployment: Deployment) -> None:
    rows = board(deployment, RunEvent(104.0, EventKind.STOPPING))
    assert [row.split()[0] for row in rows[1:]] == ["prefill-0", "prefill-1", "decode-0", "router"]


@pytest.mark.parametrize("width", [40, 60, 80])
@pytest.mark.parametrize("kind", ["status", "columns"])
def test_a_narrow_terminal_gets_everything(width: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    missing = "does not answer (for 3 s): its process (pid 4711) is stopped. Continue: kill -CONT 4711"
    head = ("NAME", "ROLE", "PID", "PORT", "HEALTH", "MISSING")
    rows = [("prefill-0", "prefill", "4711", "30000", "silent", missing), ("router", "router", "4712", "8", "200", "-")]
    screen = Screen(tty=True)
    if kind == "status":
        write_table(head, rows, Term(screen))
    else:
        screen.write("\n".join(table(Term(screen), head, rows)))
    lines = ESCAPE.sub("", screen.getvalue()).splitlines()
    assert max(map(len, lines)) <= width
    for cell in (*missing.split(), "prefill-0", "30000", "router", "4712"):
        assert cell in " ".join(lines)


def test_a_pipe_gets_the_same_whatever_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    screen = Screen(tty=False)
    write_table(("NAME", "MISSING"), [("prefill-0", "x" * 100)], Term(screen))
    assert screen.getvalue() == f"NAME\tMISSING\nprefill-0\t{'x' * 100}\n"


def test_the_home_of_a_path_is_short_if_there_is_one() -> None:
    """Of a uid that no passwd entry has and without HOME, as in a pod with runAsUser."""
    say = (
        "import os; from pathlib import Path; from pdctl.render.run_view import tilde; import sys; "
        "uid = int(sys.argv[1]); uid and os.setuid(uid); print(tilde(Path('/home/ann/logs')))"
    )
    environ = {name: value for name, value in os.environ.items() if name != "HOME"}

    def said(uid: int, **more: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", say, str(uid)], env={**environ, **more}, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        return done.stdout.strip() or done.stderr

    assert said(0, HOME="/home/ann") == "~/logs"
    if os.geteuid() == 0:
        assert said(54321) == "/home/ann/logs"
