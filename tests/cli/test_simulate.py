"""`pdctl simulate` as a user types it: documents, tables, files, Ctrl-C and mistakes."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.cases import for_each
from tests.cli.verb import within

SHORT = "step:rate=4,duration=20"


def pdctl(*words: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "pdctl", "simulate", *words]
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, encoding="utf-8", env=env)


def document(*words: str, hash_seed: str = "0") -> dict[str, Any]:
    done = pdctl(*words, "-o", "json", hash_seed=hash_seed)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_policies_and_seeds_side_by_side_give_what_they_give_alone() -> None:
    """Runs in processes of their own, whatever finishes first, against each of them alone in another process."""
    told = document("2p1d", "--trace", SHORT, "--policy", "static,blitz", "--seeds", "2", "--jobs", "3")
    assert told["schema"] == "pdctl.simulation/1"
    assert [(one["policy"], one["seeds"]) for one in told["policies"]] == [("static", 2), ("blitz", 2)]
    for one in told["policies"]:
        assert [run["seed"] for run in one["runs"]] == [0, 1]
        for run in one["runs"]:
            words = ("2p1d", "--trace", SHORT, "--policy", one["policy"], "--seed", str(run["seed"]))
            alone = document(*words, hash_seed="7")
            assert alone["digest"] == run["digest"]
            assert alone["policies"][0]["ttft_s"] == run["ttft_s"]
    digests = {run["digest"] for one in told["policies"] for run in one["runs"]}
    assert len(digests) > 1, "another seed is another run"


def test_every_request_of_the_trace_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    written = within("simulate", "2p1d", "--trace", SHORT, "--write-trace", file)
    rows = file.read_text(encoding="utf-8").splitlines()
    said = f"note: {len(rows)} requests are in {file}; nothing was simulated\n"
    assert (written.returncode, written.stdout, written.stderr) == (0, "", said)
    told = json.loads(within("simulate", "2p1d", "--trace", file, "-o", "json").stdout)
    (policy,) = told["policies"]
    assert policy["requests"] == len(rows) > 40
    assert policy["unserved"] == 0
    shorter = json.loads(within("simulate", "2p1d", "--trace", file, "--rows", "10", "-o", "json").stdout)
    assert shorter["policies"][0]["requests"] == 10


def test_a_trace_is_not_written_over_the_file_it_is_read_from(tmp_path: Path) -> None:
    file, other, link = tmp_path / "trace.jsonl", tmp_path / "hard.jsonl", tmp_path / "soft.jsonl"
    text = '{"timestamp": 0, "input_length": 100, "output_length": 5, "hash_ids": [1]}\n' * 2
    file.write_text(text, encoding="utf-8")
    other.hardlink_to(file)
    link.symlink_to(file)
    for target in (file, other, link):
        done = within("simulate", "2p1d", "--trace", file, "--rows", "1", "--write-trace", target)
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: --write-trace {target} is the file that --trace {file} reads\n  fix: ")
        assert file.read_text(encoding="utf-8") == text
    new = tmp_path / "new.jsonl"
    assert within("simulate", "2p1d", "--trace", file, "--rows", "1", "--write-trace", new).returncode == 0
    assert within("simulate", "2p1d", "--trace", SHORT, "--write-trace", file).returncode == 0, (
        "nothing is read from it"
    )


def test_without_plotly_no_page_of_an_earlier_simulation_is_left(tmp_path: Path) -> None:
    (tmp_path / "plotly.py").write_text("raise ModuleNotFoundError('no plotly', name='plotly')", encoding="utf-8")
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.html").write_text("earlier", encoding="utf-8")
    argv = [sys.executable, "-m", "pdctl", "simulate", "1p1d", "--trace", SHORT, "--out", str(out)]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, encoding="utf-8")
    assert done.returncode == 0
    assert done.stderr.startswith(f"note: {out / 'report.html'} is not written: plotly is not installed (")
    assert sorted(each.name for each in out.iterdir()) == ["simulation.json", "static-0.decisions.jsonl"]


def test_a_request_that_fits_nowhere_is_said(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    sizes = ((100, 5), (900_000, 5))
    rows = ({"timestamp": 0, "input_length": one, "output_length": two, "hash_ids": []} for one, two in sizes)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    done = within("simulate", "2p1d", "--trace", file)
    assert done.returncode == 0, done.stderr
    assert "static: 1 of 2 requests did not end; no replica has room for 1 of them\n" in done.stdout


def test_gpu_time_and_limits_follow_the_gpus_of_the_topologys_instances() -> None:
    """Two prefills of one GPU and a decode of two; the profile's costs are those of one."""
    words = ("simulate", "2p1d-decode-tp2", "--trace", SHORT, "-o", "json")
    done = within(*words)
    assert done.returncode == 0
    note = "note: GPUs of an instance: 1 of a prefill, 2 of a decode, by which GPU-time and limits are counted; the "
    assert done.stderr.startswith(note)
    told = json.loads(done.stdout)
    assert abs(told["policies"][0]["mean_gpus"] - 4) < 1e-9
    assert (told["limits"]["gpus"], told["fleet"]["replicas"]) == (4, 3)
    told = json.loads(within(*words, "--limit", "gpus=9").stdout)
    assert (told["limits"]["gpus"], told["fleet"]["replicas"]) == (9, 8), "a decode of two and seven prefills of one"
    refused = within(*words, "--limit", "gpus=3").stderr
    assert "the topology begins with 2 prefill and 1 decode, which have 4 GPUs\n  fix: give at least gpus=4" in refused
    assert within("simulate", "2p1d", "--trace", SHORT).stderr == ""


def test_bad_rows_are_named_or_counted(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    good = '{"timestamp": 0, "input_length": 100, "output_length": 5, "hash_ids": [1]}'
    file.write_text(f"{good}\n{good.replace('100', '-1')}\n{good}\n", encoding="utf-8")
    refused = within("simulate", "2p1d", "--trace", file)
    assert refused.returncode == 2
    assert f"{file}:2" in refused.stderr
    done = within("simulate", "2p1d", "--trace", file, "--skip-bad-rows", "-o", "json")
    assert json.loads(done.stdout)["skipped_rows"] == 1
    assert "1 rows of the file skipped" in within("simulate", "2p1d", "--trace", file, "--skip-bad-rows").stdout


def test_the_directory_gets_the_document_the_decisions_and_the_page(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "first"
    words = ("simulate", "2p1d", "--trace", SHORT, "--policy", "blitz", "--limit", "prefill=1..4,decode=1..4")
    done = within(*words, "--out", out)
    assert done.returncode == 0, done.stderr
    assert sorted(each.name for each in out.iterdir()) == ["blitz-0.decisions.jsonl", "report.html", "simulation.json"]
    told = json.loads((out / "simulation.json").read_text(encoding="utf-8"))
    assert told == json.loads(within(*words, "-o", "json").stdout)
    assert told["fleet"] == {"prefills": 2, "decodes": 1, "replicas": 8}
    assert "Replicas by state: blitz" in (out / "report.html").read_text(encoding="utf-8")
    decisions = [json.loads(line) for line in (out / "blitz-0.decisions.jsonl").read_text("utf-8").splitlines()]
    assert decisions, "the arrivals are too few for two prefills"
    assert all(one["schema"] == "pdctl.decision/1" and one["policy"] == "blitz" for one in decisions)
    assert [one["time_s"] for one in decisions] == sorted(one["time_s"] for one in decisions)


def test_files_that_cannot_be_written_cost_no_figure(tmp_path: Path) -> None:
    """The limit is between what the document takes and what a page does, or below the decisions of a run."""
    words = ["1p1d", "--trace", SHORT, "--policy", "blitz,static", "--out", tmp_path, "--jobs", "2"]
    earlier = within("simulate", *words)
    assert (earlier.returncode, earlier.stderr) == (0, "")
    kept = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    for blocks, lost in ((512, ["report.html"]), (0, sorted(name for name, data in kept.items() if data))):
        argv = [sys.executable, "-m", "pdctl", "simulate", *map(str, words), "--seed", "0"]
        limited = ["sh", "-c", f'ulimit -f {blocks}; exec "$@"', "sh", *argv]
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # Python would cut the modules it keeps
        done = subprocess.run(limited, env=env, capture_output=True, text=True, timeout=120, encoding="utf-8")
        assert (done.returncode, done.stdout) == (4, earlier.stdout)
        told = ", ".join(f"{name} (file too large)" for name in lost)
        said, _, fix = done.stderr.partition("\n")
        head, _, names = said.partition(": not written: ")
        assert (head, sorted(names.split(", "))) == (f"error: --out {tmp_path}", told.split(", "))
        assert fix.startswith("  fix: free space there")
        assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == kept, "and no drafts"


def test_what_the_directory_has_stays_until_the_runs_are_over(tmp_path: Path) -> None:
    (tmp_path / "simulation.json").write_text("of an earlier run", encoding="utf-8")
    words = ["2p1d", "--trace", "steady:rate=8,duration=20000", "--seeds", "2", "--jobs", "2", "--out", str(tmp_path)]
    argv = [sys.executable, "-m", "pdctl", "simulate", *words]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while len(children(process.pid)) < 2:
            assert time.monotonic() < deadline, "two runs go on side by side"
            time.sleep(0.05)
        process.kill()
    assert [file.name for file in tmp_path.iterdir()] == ["simulation.json"]
    assert (tmp_path / "simulation.json").read_text("utf-8") == "of an earlier run"


def test_ctrl_c_while_the_page_is_written_comes_after_the_figures(tmp_path: Path) -> None:
    """The page is a pipe that somebody opened and does not read."""
    page = tmp_path / "report.html"
    os.mkfifo(page)
    held = os.open(page, os.O_RDONLY | os.O_NONBLOCK)
    argv = [sys.executable, "-m", "pdctl", "simulate", "1p1d", "--trace", SHORT, "--out", str(tmp_path)]
    try:
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            watched = select.poll()
            watched.register(held, select.POLLIN)
            assert watched.poll(60_000), "the page is written"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
    finally:
        os.close(held)
    assert (process.returncode, err) == (-signal.SIGINT, "")
    assert out.startswith(SHORT)
    assert (tmp_path / "simulation.json").stat().st_size > 0


def test_the_directory_keeps_nothing_of_an_earlier_simulation(tmp_path: Path) -> None:
    """And all that another has put there, whatever its name is like."""
    out = tmp_path / "runs"
    words = ("simulate", "2p1d", "--trace", SHORT, "--out", out)
    assert within(*words, "--policy", "static,blitz", "--loading", "peer,disk").returncode == 0
    assert (out / "blitz-disk-0.decisions.jsonl").exists()
    own = ["mine.decisions.jsonl", "blitz.decisions.jsonl", "notes.md"]
    for name in own:
        (out / name).write_text("mine", encoding="utf-8")
    assert within(*words).returncode == 0
    left = ["report.html", "simulation.json", "static-0.decisions.jsonl", *own]
    assert sorted(each.name for each in out.iterdir()) == sorted(left)


def test_a_run_that_longest_cuts_is_said() -> None:
    words = ("simulate", "2p1d", "--trace", SHORT, "--longest")
    said = within(*words, "5s").stdout
    assert "static: the run was cut at 5 s, as --longest says\n" in said
    assert "cut at" not in within(*words, "10m").stdout
    for longest, cut_at_s in (("5s", 5.0), ("10m", None)):
        told = json.loads(within(*words, longest, "-o", "json").stdout)
        assert told["longest_s"] == (cut_at_s or 600.0)
        assert told["policies"][0]["runs"][0]["cut_at_s"] == cut_at_s
    assert json.loads(within(*words[:-1], "-o", "json").stdout)["longest_s"] is None


@for_each(
    "number, said, fix",
    [
        (signal.SIGKILL, "SIGKILL (killed)", "see dmesg"),
        (signal.SIGSEGV, "SIGSEGV (segmentation fault)", "run it again by itself"),
        (signal.SIGXCPU, "SIGXCPU (cpu time limit exceeded)", "ulimit -t unlimited"),
    ],
)
def test_a_run_whose_process_is_killed_costs_no_other(number: signal.Signals, said: str, fix: str) -> None:
    words = ["2p1d", "--trace", "steady:rate=8,duration=200", "--jobs", "2", "--seeds", "6", "-o", "json"]
    argv = [sys.executable, "-m", "pdctl", "simulate", *words]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not (runs := children(process.pid)):
            assert time.monotonic() < deadline, "the first run begins"
            time.sleep(0.005)
        os.kill(int(runs[0]), number)
        out, err = process.communicate(timeout=100)
    assert process.returncode == 4
    assert f"error: 1 of 6 runs lost: static, seed 0: its process was ended by {said}\n  fix: " in err
    assert fix in err
    told = json.loads(out)
    assert [run["seed"] for run in told["policies"][0]["runs"]] == [1, 2, 3, 4, 5]
    assert [one["seed"] for one in told["unfinished"]] == [0]


@for_each("files", [12, 18, 30])
def test_as_many_runs_go_on_as_can_be_started(files: int) -> None:
    """A process takes files: with few, fewer are started than were asked for, and none with the fewest."""
    argv = [sys.executable, "-m", "pdctl", "simulate", "1p1d", "--trace", SHORT, "--seeds", "12", "--jobs", "12"]
    limited = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *argv, "-o", "json"]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=120, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)["policies"][0]["runs"]) == 12


def test_no_digest_of_nothing(tmp_path: Path) -> None:
    """Both runs are killed. The page of an earlier simulation goes, too."""
    (tmp_path / "report.html").write_text("earlier", encoding="utf-8")
    words = ["2p1d", "--trace", "steady:rate=8,duration=20000", "--jobs", "2", "--seeds", "2", "--out", str(tmp_path)]
    argv = [sys.executable, "-m", "pdctl", "simulate", *words, "-o", "json"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while len(runs := children(process.pid)) < 2:
            assert time.monotonic() < deadline, "two runs go on side by side"
            time.sleep(0.01)
        for each in runs:
            os.kill(int(each), signal.SIGKILL)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 4
    assert err.startswith("error: 2 of 2 runs lost: static, seed ")
    told = json.loads(out)
    assert (told["digest"], told["policies"], len(told["unfinished"])) == (None, [], 2)
    assert json.loads((tmp_path / "simulation.json").read_text("utf-8")) == told
    assert [file.name for file in tmp_path.iterdir()] == ["simulation.json"], "a page would show nothing"


def test_ctrl_c_keeps_what_is_finished() -> None:
    """The signal comes while the third run goes on beside another, or a later one: at least one is finished then."""
    words = ["2p1d", "--trace", "steady:rate=8,duration=600", "--jobs", "2", "--seeds", "40", "-o", "json"]
    argv = [sys.executable, "-m", "pdctl", "simulate", *words]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
        deadline = time.monotonic() + 60
        seen: set[str] = set()
        while len(seen) < 3:
            assert time.monotonic() < deadline, f"a third run begins when one of the first is over: {seen}"
            assert process.poll() is None, process.stderr and process.stderr.read()
            seen |= set(children(process.pid))
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
        out, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert err == b""
    told = json.loads(out)
    (policy,) = told["policies"]
    finished = {run["seed"] for run in policy["runs"]}
    assert 1 <= len(finished) == policy["seeds"] < 40
    assert {one["seed"] for one in told["unfinished"]} == set(range(40)) - finished
    wait_until_gone(seen)


def test_runs_end_when_the_verb_is_killed() -> None:
    words = ["2p1d", "--trace", "steady:rate=8,duration=20000", "--seeds", "2", "--jobs", "2"]
    argv = [sys.executable, "-m", "pdctl", "simulate", *words]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while len(runs := children(process.pid)) < 2:
            assert time.monotonic() < deadline, "two runs go on side by side"
            time.sleep(0.05)
        process.kill()
    wait_until_gone(runs)


def wait_until_gone(pids: Iterable[str]) -> None:
    deadline = time.monotonic() + 60
    while alive := [pid for pid in pids if runs_still(pid)]:
        assert time.monotonic() < deadline, f"still there without the verb: {alive}"
        time.sleep(0.05)


def runs_still(pid: str) -> bool:
    """Not so if it is gone, or has ended and waits for whoever it was given to."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()


@for_each(
    "words, message",
    [
        (("--trace", "brust"), "error: --trace brust: no such file or synthetic trace\n  fix: did you mean `burst`?"),
        (("--trace", "no.jsonl"), "no.jsonl"),
        (("--trace", "burst:rat=8"), "error: the trace burst has no parameter `rat`\n  fix: did you mean `rate`?"),
        (("--trace", SHORT, "--rows", "3"), "error: --rows goes with a file, and step is a synthetic trace"),
        (("--trace", SHORT, "--policy", "blits"), "there is no such policy\n  fix: did you mean `blitz`?"),
        (("--trace", SHORT, "--policy", "nosuch", "--write-trace", "/dev/null"), "nosuch: there is no such policy"),
        (("--trace", SHORT, "--profile", "h100"), "error: there is no profile 'h100'"),
        (("--trace", SHORT, "--slo", "ttft=2"), "error: --slo ttft 2: 2 has no unit"),
        (("--trace", SHORT, "--limit", "prefil=1..2"), "error: --limit prefil=1..2: there is no member `prefil`"),
        (("--trace", SHORT, "--limit", "prefill=4..2"), "--limit prefill=4..2: `prefill` begins above its end: 4 > 2"),
        (("--trace", SHORT, "--limit", "prefill"), "error: --limit prefill: not NAME=VALUE"),
        (("--trace", SHORT, "--loading", "disc"), "no such way to load weights\n  fix: did you mean `disk`?"),
        (("--trace", SHORT, "--limit", "gpus=2"), "--limit gpus=2: the topology begins with 2 prefill and 1 decode"),
        (("--trace", SHORT, "--limit", "gpus=2"), "which have 3 GPUs\n  fix: give at least gpus=3"),
        (("--trace", SHORT, "--limit", "gpus=1000000"), "--limit gpus=1000000: 1,000,000 replicas, above 100,000"),
        (("--trace", SHORT, "--limit", "prefill=1..100000"), "100,001 replicas, above"),
        (("--trace", SHORT, "--setting", "prefill=1"), "error: --setting prefill=1: not POLICY.NAME=VALUE"),
        (("--trace", SHORT, "--setting", "blitz.prefill=1..2"), "  fix: add it: --policy static,blitz"),
        (("--trace", SHORT, "--setting", "static.prefills=x"), "error: --setting static: `prefills` is the text 'x'"),
        (("--trace", SHORT, "--out", "/dev/null/x"), "error: --out /dev/null/x: not a directory"),
        (("--trace", SHORT, "--policy", "blitz", "--interval", "0.001ms"), "blitz decides every 1e-06 s"),
        (("--trace", SHORT, "--limit", "prefill=" + "[" * 100_000), "`prefill` is the text '[[[["),
        (("--trace", SHORT, "--limit", "prefill=" + "1.." * 3000), "`prefill` is a list of 2, not"),
        (("--trace", SHORT, "--policy", "blitz", "--setting", "blitz.prefill=" + "[" * 99_999), "is the text '[[[["),
        (("--trace", SHORT, "--seeds", "1000", "--policy", ",".join(["static"] * 2)), "--policy static: named twice"),
    ],
)  # fmt: skip
def test_mistakes_name_their_place_and_the_fix(words: tuple[str, ...], message: str) -> None:
    done = within("simulate", "2p1d", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "\n  fix: " in done.stderr


def test_there_is_nothing_to_calibrate_without_a_run(tmp_path: Path) -> None:
    env = {**os.environ, "PDCTL_HOME": str(tmp_path)}
    for words in (
        ("simulate", "calibrate"),
        ("simulate", "calibrate", "--seed", "3"),
        ("simulate", "calibrate", "blue"),
    ):
        done = within(*words, env=env)
        assert (done.returncode, done.stdout) == (5, ""), done.stderr
    done = within("simulate", "calibrate", "--output-file", tmp_path / "none" / "mine.yaml", env=env)
    assert done.returncode == 2
    assert "mine.yaml: No such file or directory\n  fix: name a file in a directory" in done.stderr
    done = within("simulate", "calibrate", "--base", "h100", env=env)
    assert done.returncode == 2
    assert "there is no profile 'h100'" in done.stderr
