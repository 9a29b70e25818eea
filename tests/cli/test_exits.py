"""How pdctl leaves when the world around it refuses: full disks, closed pipes, Ctrl-C at any moment."""

from __future__ import annotations

import os
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pdctl.cli import exits
from tests.cases import for_each
from tests.cli.verb import within

HEALTHY = "tests/data/rooms/2p1d-healthy-info-sgl0523"
PLAN = [sys.executable, "-m", "pdctl", "plan", "1p1d"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_behind_standard_output() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(PLAN, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (
        4,
        "error: standard output: No space left on device\n  fix: free space there\n",
    )


@pytest.mark.parametrize("verb", [["explain", "--all"], ["dialect", "show", "sglang"]], ids=lambda words: words[0])
def test_a_reader_that_leaves_in_the_middle_is_no_failure(verb: list[str]) -> None:
    """More than a pipe holds, of which `head -1` reads one line."""
    process = subprocess.Popen([*PLAN[:3], *verb], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=60), said) == (0, "")


REPEATED = [
    *("--trace X", "--trace burst:X", "--trace step --policy X", "--trace step --X 3"),
    *(f"--trace step {flag} X" for flag in ("--limit", "--setting", "--loading", "--interval", "--slo", "--routing")),
    *(f"--trace step {flag} X" for flag in ("--seeds", "--profile", "--file", "--set", "--park")),
    *(f"--trace step {flag}" for flag in ("--limit prefill=X", "--slo ttft=X", "--setting a.b=X", "--setting X.b=3")),
]
VERBS = ["X", "plan X", "plan 1p1d --set X=1", "plan 1p1d -o X", "status X", "down X", "rooms --since X", "explain X"]
ADVISE = [f"autoscale advise {flag} X" for flag in ("--policy", "--interval", "--replay", "--settings")]


@for_each(
    "words", [*(f"simulate 1p1d {one}" for one in REPEATED), *VERBS, *ADVISE, "trace-room X", "doctor --select X"]
)
def test_what_an_error_repeats_of_the_command_line_is_short(
    words: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    environ = {**os.environ, "PDCTL_HOME": str(tmp_path_factory.mktemp("home"))}
    done = within(*words.replace("X", "x" * 3000).split(), env=environ)
    assert done.returncode != 0
    assert 0 < len(done.stdout + done.stderr) < 1500


FOLLOWERS = ("doctor --router http://127.0.0.1:9 --watch {}", "doctor --router http://127.0.0.1:9 -o jsonl --watch {}")


@for_each("verb", FOLLOWERS)
@pytest.mark.parametrize("interval", ["1s", "10m"])
def test_a_verb_that_watches_ends_when_its_reader_leaves(verb: str, interval: str) -> None:
    """Although nothing changes any more, hence nothing is written any more."""
    argv = [*PLAN[:3], *verb.format(interval).split()]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            process.stdout.close()
            assert process.wait(timeout=60) == 0
            assert process.stderr is not None
            assert process.stderr.read() == ""
        finally:
            process.kill()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@for_each("verb", FOLLOWERS)
def test_a_full_disk_ends_a_verb_that_watches(verb: str) -> None:
    with open("/dev/full", "wb") as full:
        argv = [*PLAN[:3], *verb.format("1s").split()]
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    said = "error: standard output: No space left on device\n  fix: free space there\n"
    assert (done.returncode, done.stderr) == (4, said)


@for_each(
    ("argv", "code"),
    [
        ("diagnose {logs}", 1),
        ("diagnose {logs} -o json", 1),
        ("diagnose {logs} --verbose 2>&1", 1),
        ("trace-room 999 {logs} -o json", 5),
        ("topology check nothing.yaml 2>&1", 2),
        ("explain --all", 0),
        ("doctor --static {logs}/broken.yaml 2>&1", 2),
    ],
)
def test_a_reader_that_left_does_not_change_the_exit_code(argv: str, code: int, tmp_path: Path) -> None:
    """`pdctl diagnose … | head -1` in a script with pipefail must still say that something died."""
    (tmp_path / "decode-0.log").write_text(
        "[2026-11-21 19:44:33] The server is fired up and ready to roll!\n"
        "[2026-11-21 19:44:40] Scheduler hit an exception: Traceback (most recent call last):\nMemoryError\n"
    )
    (tmp_path / "broken.yaml").write_text("prefill: 1\n")
    words = f"{shlex.quote(sys.executable)} -m pdctl {argv.format(logs=shlex.quote(str(tmp_path)))}"
    for reader in (" | true", " | head -1") if argv.startswith("diagnose {logs} ") else (" | head -1",):
        command = ["bash", "-c", f"{words}{reader}; exit ${{PIPESTATUS[0]}}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, (reader, done.stdout, done.stderr)


def test_a_terminal_without_the_letters() -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "TERM": "dumb", "COLUMNS": "1"}
    done = subprocess.run(PLAN, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not limit address space")
@for_each(
    ("argv", "said"),
    [
        ("doctor --router http://localhost:9", "no more threads or processes can be started"),
        ("plan 1p1d", "out of memory"),
    ],
)
def test_limits_of_the_shell_are_no_bug_of_pdctl(argv: str, said: str) -> None:
    """How much is too little differs from machine to machine: halved until pdctl speaks, instead of the interpreter."""
    too_little, enough = 10_000, 250_000
    while enough - too_little > 1_000:
        kibibytes = (enough + too_little) // 2
        words = f"ulimit -v {kibibytes}; exec {shlex.quote(sys.executable)} -m pdctl {argv}"
        done = subprocess.run(["sh", "-c", words], capture_output=True, text=True, timeout=60, check=False)
        if done.stderr.startswith("error: "):
            break
        if done.stderr:  # the interpreter's own words
            too_little = kibibytes
        else:
            enough = kibibytes
    assert done.returncode == 4, done.stderr
    assert done.stderr.startswith((f"error: {said}\n  fix: ", "error: out of memory\n  fix: "))


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not limit address space")
def test_whatever_python_raises_without_memory_is_no_bug_of_pdctl() -> None:
    """There an import ends on a SystemError or half a module, and the report of a bug would fail too."""
    for kibibytes in range(16_000, 26_000, 2_000):
        words = f"ulimit -v {kibibytes}; exec {shlex.quote(sys.executable)} -m pdctl ls"
        done = subprocess.run(["sh", "-c", words], capture_output=True, text=True, timeout=60, check=False)
        assert "bug in pdctl" not in done.stderr, kibibytes
        last = done.stderr.rstrip().rpartition("\n")[2]
        if last.startswith(("MemoryError", "SystemError")) and "exits.py" not in done.stderr:
            continue  # raised before or while pdctl's own handler is entered, where nothing can be done
        if "pdctl" in done.stderr and "No module named" not in done.stderr:  # Python itself has started
            assert done.returncode in (0, 4), f"{kibibytes} KiB: {done.stderr}"


# pdctl as `-m pdctl` runs it, which stops at the import of its verb until somebody ends it.
HALF_IMPORTED = """
import runpy, sys, time
class Stops:
    def find_spec(self, name, path=None, target=None):
        if name == "pdctl.cli.ask":
            print("importing", flush=True)
            time.sleep(600)
sys.meta_path.insert(0, Stops())
sys.argv = ["pdctl", "ask", "-"]
runpy.run_module("pdctl", run_name="__main__")
"""
# pdctl that says when its verb reads the question.
READING = """
import runpy, sys
class Told:
    def __init__(self, given): self.given = given
    def __getattr__(self, name):
        if name == "buffer":
            print("reading", flush=True)
        return getattr(self.given, name)
sys.stdin = Told(sys.stdin)
sys.argv = ["pdctl", "ask", "-"]
runpy.run_module("pdctl", run_name="__main__")
"""


def test_an_interrupt_while_importing_leaves_no_traceback() -> None:
    """Before pdctl's first line the interpreter itself answers; from there on there is no traceback."""
    with subprocess.Popen(
        [sys.executable, "-c", HALF_IMPORTED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (-signal.SIGINT, "")


@for_each("words", [["plan", "1p1d"], ["--version"], ["--help"]])
def test_an_interrupt_between_the_import_of_the_entry_and_its_call_leaves_no_traceback(words: list[str]) -> None:
    """As of the console script that pip writes: it imports `main`, and calls it a few lines later."""
    script = "import os, signal, sys; from pdctl.__main__ import main; os.kill(os.getpid(), signal.SIGINT); main()"
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_module_that_a_one_file_build_starts_has_the_handler_of_python() -> None:
    script = "import signal, sys; sys.argv[1:] = ['-m', 'pdctl.units']; from pdctl.__main__ import main; main(); " + (
        "print(signal.getsignal(signal.SIGINT).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "default_int_handler\n"), done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="signal masks are read from /proc")
def test_an_interrupt_of_a_running_verb_leaves_no_traceback() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", READING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        assert catches(process.pid)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert "Traceback" not in error
    assert process.returncode in (-signal.SIGINT, 130)


def catches(pid: int) -> bool:
    """Whether the process has a handler for SIGINT."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGINT - 1) & 1)


@for_each(
    ("closed", "argv", "code"),
    [
        ("<&-", "plan 1p1d", 0),
        ("2>&-", "plan 1p1d", 0),
        (">&-", "topology check nothing.yaml", 4),
        (">&-", "launch nothing.yaml", 2),
        ("<&- >&- 2>&-", "plan 1p1d", 4),
        ("2>&-", "plan nothing.yaml", 2),
        ("<&- >&- 2>&-", "plan nothing.yaml", 2),
        ("2>/dev/full", "plan nothing.yaml", 2),
        ("2>/dev/full", "nonsense", 2),
    ],
)
def test_streams_that_the_caller_closed_or_that_are_full(closed: str, argv: str, code: int) -> None:
    command = f"{shlex.quote(sys.executable)} -m pdctl {argv} {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "bug" not in done.stderr


@for_each(
    "argv",
    [
        "plan 1p1d", "--version", "--help", "plan --help", "doctor --static 1p1d", "rooms {logs}", "diagnose {logs}",
        "trace-room 5 {logs} -o json", "explain PD201", "ls -o json", "topology schema", "completion bash",
        "dialect show sglang", "import {logs}/run.sh", "launch 1p1d --dry-run", "self check",
    ],
)  # fmt: skip
def test_an_answer_for_which_there_is_no_standard_output_is_an_error(argv: str, tmp_path: Path) -> None:
    (tmp_path / "decode-0.log").write_text("[2026-11-21 19:44:33] The server is fired up and ready to roll!\n")
    (tmp_path / "run.sh").write_text(
        "python3 -m sglang.launch_server --model-path m --disaggregation-mode prefill --port 30000 &\n"
        "python3 -m sglang.launch_server --model-path m --disaggregation-mode decode --port 30001\n"
    )
    words = f"{shlex.quote(sys.executable)} -m pdctl {argv.format(logs=shlex.quote(str(tmp_path)))} >&-"
    done = subprocess.run(["sh", "-c", words], capture_output=True, text=True, timeout=60, check=False)
    said = "error: standard output: Bad file descriptor\n  fix: write to a file or a pipe: >FILE\n"
    assert (done.returncode, done.stderr[-len(said) :]) == (4, said)


@for_each(
    "argv",
    [
        "diagnose -", "rooms -", "trace-room 5 -", "dialect check -", "import -", "doctor -", "plan -", "launch -",
        "topology check -", "render kubernetes -", "ask -",
        "doctor --prefill http://127.0.0.1:9,1 --decode http://127.0.0.1:9 --reached -",
    ],
)  # fmt: skip
def test_a_closed_standard_input_is_not_an_empty_one(argv: str) -> None:
    words = f"{shlex.quote(sys.executable)} -m pdctl {argv} <&-"
    done = subprocess.run(["sh", "-c", words], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "error: `-` means standard input, and there is none")


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-"])
def test_a_closed_stream_leaves_no_warning_of_python(closed: str) -> None:
    command = f"{shlex.quote(sys.executable)} -W error -m pdctl plan 1p1d {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_stream_keeps_its_number() -> None:
    """The next file or socket would become standard output, and be printed to."""
    code = "import os; from pdctl import __main__ as m; m.open_closed_streams(); assert os.open('.', os.O_RDONLY) > 2"
    command = f'{shlex.quote(sys.executable)} -c "{code}; import sys; sys.exit(os.fstat(1).st_rdev)" <&- >&-'
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (os.stat(os.devnull).st_rdev & 0xFF, "")


def test_our_own_letters_have_plain_ones() -> None:
    error = UnicodeEncodeError("ascii", "a → b… \udcff€", 0, 12, "")
    assert exits.plain(error) == ("a -> b... \\xff\\u20ac", 12)


def test_no_letter_of_ours_is_escaped() -> None:
    """Every one that a module of the terminal's writes has a plain one."""
    root = Path(exits.__file__).parents[1]
    used = {
        letter
        for room in ("cli", "render", "launch", "doctor", "trace", "catalogue")
        for file in (root / room).rglob("*.py")
        for letter in file.read_text(encoding="utf-8")
        if not letter.isascii()
    }
    assert used - set(exits.PLAIN) == set()


def test_a_python_without_what_pdctl_needs() -> None:
    argv = [sys.executable, "-S", "-m", "pdctl", "plan", "1p1d"]
    env = {**os.environ, "PYTHONPATH": str(Path(exits.__file__).parents[2])}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {sys.executable} has no module `")
    assert "fix: use the Python that pdctl was installed for" in done.stderr


def test_an_interrupt_that_the_caller_ignores_stays_ignored() -> None:
    code = "import signal, subprocess, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); " + (
        "p = subprocess.Popen([sys.executable, '-m', 'pdctl', 'plan', '1p1d'], stdout=subprocess.DEVNULL); "
        "[p.send_signal(signal.SIGINT) for _ in range(3)]; sys.exit(p.wait())"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_a_report_that_cannot_be_written_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        exits._report()
    error = capsys.readouterr().err
    assert error.startswith("error: this is a bug in pdctl: ZeroDivisionError")
    assert "report: above, because it could not be written" in error
    assert "test_exits.py" in error


def unwritable(*argv: str, stdin: bytes = b"", **environ: str) -> subprocess.CompletedProcess[bytes]:
    """A run that can write to no file, hence has no directory for temporary ones: of a read-only root without /tmp."""
    return subprocess.run(
        [*PLAN[:3], *argv], input=stdin, capture_output=True, timeout=60, check=False, env={**os.environ, **environ},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )  # fmt: skip


@pytest.mark.parametrize("verb", [["rooms"], ["trace-room", "1"], ["diagnose"]], ids=lambda words: words[0])
def test_small_logs_need_no_temporary_directory(verb: list[str]) -> None:
    usual = subprocess.run([*PLAN[:3], *verb, HEALTHY], capture_output=True, timeout=60, check=False)
    done = unwritable(*verb, HEALTHY)
    assert (done.returncode, done.stdout, done.stderr) == (usual.returncode, usual.stdout, usual.stderr)


@pytest.mark.parametrize("verb", [["rooms"], ["trace-room", "1"], ["diagnose"]], ids=lambda words: words[0])
def test_a_stream_needs_a_temporary_directory(verb: list[str]) -> None:
    done = unwritable(*verb, "-", stdin=Path(HEALTHY, "prefill0.log").read_bytes())
    assert done.returncode == 4
    assert done.stderr.startswith(b"error: No usable temporary directory found in [")
    assert done.stderr.endswith(b"  fix: set TMPDIR to a directory that can be written to: TMPDIR=DIR\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_version_that_cannot_be_written_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pdctl", "--version"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
            check=False,
        )  # fmt: skip
    said = "error: standard output: No space left on device\n  fix: free space there\n"
    assert (done.returncode, done.stderr) == (4, said)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@for_each(
    "argv",
    [
        ("doctor", "2p1d", "--static", "--output-file", "/dev/full"),
        ("simulate", "2p1d", "--trace", "step:duration=1", "--write-trace", "/dev/full"),
    ],
)
def test_a_full_disk_under_a_named_file_says_so(argv: tuple[str, ...]) -> None:
    done = subprocess.run([*PLAN[:3], *argv], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 4, done
    assert "/dev/full: No space left on device" in done.stderr
    assert "free space there" in done.stderr


def test_a_prompt_without_end_is_refused() -> None:
    with Path("/dev/zero").open("rb") as endless:
        argv = [*PLAN[:3], "ask", "--url", "http://127.0.0.1:1", "-"]
        done = subprocess.run(argv, stdin=endless, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "error: standard input has more than 32 MiB")


def test_a_prompt_is_utf_8_whatever_the_locale_says() -> None:
    """Nobody listens at the URL: what matters is that the prompt was read, and what is no text is refused before."""
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    for prompt, code, said in (("grün".encode(), 4, "connection refused"), (b"gr\xfcn", 2, "the prompt is not UTF-8")):
        done = subprocess.run(
            [sys.executable, "-m", "pdctl", "ask", "--url", "http://127.0.0.1:9", "-"], input=prompt, env=ascii_only,
            capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert said in done.stderr.decode(), done
        assert done.returncode == code


def test_a_prompt_on_the_command_line_is_utf_8_whatever_the_locale_says() -> None:
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for prompt, code, said in (("Käse".encode(), 4, "connection refused"), (b"K\xe4se", 2, "the prompt is not UTF-8")):
        done = subprocess.run(
            [sys.executable, "-m", "pdctl", "ask", "--url", "http://127.0.0.1:9", prompt], env=ascii_only,
            capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert said in done.stderr.decode(), done
        assert done.returncode == code


def test_a_yaml_document_is_utf_8_whatever_the_locale_says(tmp_path: Path) -> None:
    server = "python3 -m sglang.launch_server --model-path /models/Größe --disaggregation-mode"
    script = tmp_path / "start.sh"
    script.write_text(
        f"{server} prefill --port 30000\n{server} decode --port 30001\npython3 -m sglang_router.launch_router "
        "--pd-disaggregation --prefill http://127.0.0.1:30000 8998 --decode http://127.0.0.1:30001\n",
        encoding="utf-8",
    )
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "pdctl", "import", str(script)], env=ascii_only, capture_output=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert "path: /models/Größe" in done.stdout.decode()


@for_each("verb", ["plan 1p1d -o json", "simulate 1p1d --trace burst -o json", "explain --all"])
@for_each("unbuffered", ["", "1"])
def test_a_disk_that_takes_a_part_of_the_answer(verb: str, unbuffered: str) -> None:
    """Without a buffer a write that was cut short looks like a whole one."""
    words = f"ulimit -f 1; exec {shlex.quote(sys.executable)} -m pdctl {verb}"
    with tempfile.TemporaryFile() as file:
        env = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(["sh", "-c", words], env=env, stdout=file, stderr=subprocess.PIPE, text=True, timeout=60)
        assert 0 < file.seek(0, os.SEEK_END) <= 1024
    assert done.returncode == 4
    assert done.stderr.startswith("error: standard output: File too large\n")


def test_a_locale_of_ascii_alone(tmp_path: Path) -> None:
    """As under cron: files of pdctl's own are UTF-8 whatever the locale."""
    bare = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    argv = [*PLAN[:3], "simulate", "1p1d", "--trace", "burst", "--out", str(tmp_path)]
    done = subprocess.run(argv, env={**os.environ, **bare}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
