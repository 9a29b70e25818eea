"""What cannot be typed is answered in pdctl's own form, for every verb and every option."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pdctl import __version__
from pdctl.cli import exits
from tests.cases import for_each
from tests.cli.leaves import LEAVES
from tests.cli.verb import BROKEN, within

ROOT = Path(__file__).resolve().parents[2]
FORM = re.compile(r"error: [^\n]+\n  fix: [^\n]+\n")


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """What goes to the standard error of a command line that is refused."""
    with pytest.raises(SystemExit) as left:
        exits.run(argv)
    printed = capsys.readouterr()
    assert (left.value.code, printed.out) == (2, "")
    return printed.err


@for_each("path", LEAVES)
def test_every_verb_answers_an_unknown_option(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, *path.split(), "--qqqq") == (
        f"error: pdctl {path} has no option `--qqqq`\n  fix: pdctl {path} --help\n"
    )


@for_each("path", LEAVES)
def test_every_option_answers_a_typo_a_missing_value_and_a_wrong_one(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [one for one in LEAVES[path].params if one.param_type_name == "option" and one.name != "help"]
    for option in options:
        long = next(name for name in option.opts if name.startswith("--"))
        typo = f"{long[:-1]}{long[-1]}{long[-1]}x"
        assert re.fullmatch(
            rf"error: pdctl {path} has no option `{typo}`\n  fix: (did you mean `-.*`\?|pdctl {path} --help)\n",
            said(capsys, *path.split(), typo),
        )
        if option.is_flag:
            assert said(capsys, *path.split(), f"{long}=1") == (
                f"error: {long} takes no value\n  fix: write {long} alone\n"
            )
            continue
        assert re.fullmatch(rf"error: {long} needs a value\n  fix: {long} \S.*\n", said(capsys, *path.split(), long)), (
            long
        )
        if option.type.name not in ("text", "str", "path", "filename"):
            told = said(capsys, *path.split(), f"{long}=wrong")
            assert re.fullmatch(rf"error: {long} `wrong`: [^\n]+\n  fix: [^\n]+\n", told), told


NEEDED = {  # words with which a verb reads its times before it does anything
    "launch": ["2p1d", "--dry-run"],
    "ask": ["hi"],
    "dialect check": [str(BROKEN)],
    "doctor": ["2p1d"],
    "trace-room": ["1", "-f", str(BROKEN)],
    "role-switch": ["http://127.0.0.1:9", "--to", "decode", "--router", "http://127.0.0.1:9"],
    "rooms": [str(BROKEN)],
    "simulate": ["2p1d", "--trace", "steady:rate=1,duration=2"],
    "diagnose": [str(BROKEN)],
}
BOUNDED = [
    (path, one.opts[0], str(one.metavar), one.type.name)
    for path, leaf in LEAVES.items()
    for one in leaf.params
    if one.param_type_name == "option" and (one.metavar == "TIME" or one.type.name.startswith(("int", "float")))
]


@for_each(("path", "flag", "metavar", "kind"), BOUNDED)
def test_every_number_and_every_time_has_a_bound(
    path: str, flag: str, metavar: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if metavar == "TIME" and flag in ("--since", "--until"):
        if path == "logs":  # a run is looked for first
            return
        values = ["-99999999h", "99999999999999999999h", "0001-01-01T00:00:00", "9999-12-31T23:59:59"]
    elif metavar == "TIME":
        values = ["99999999h", "600h", "99999999999999999999h"]
    else:
        values = [str(10**30), str(-(10**30)), *(("nan", "inf", "-inf") if kind.startswith("float") else ())]
    for value in values:
        told = said(capsys, *path.split(), *NEEDED.get(path, ()), f"{flag}={value}")
        assert told.startswith(f"error: {flag} "), told
        assert FORM.fullmatch(told), told


def test_the_options_with_bounds_were_found() -> None:
    found = {(path, flag) for path, flag, _, _ in BOUNDED}
    assert {("logs", "--tail"), ("rooms", "--limit"), ("plan", "--rate"), ("status", "--timeout")} <= found


def test_a_time_that_is_too_long_is_not_said_to_lack_a_unit(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "status", "--timeout", "99999999999h") == (
        "error: --timeout 99999999999h: this is more than 500h\n  fix: write at most 500h\n"
    )
    assert "this is no time at all" in said(capsys, "doctor", "2p1d", "--watch", "0s")
    assert said(capsys, "rooms", str(BROKEN), "--since", "-10") == (
        "error: --since -10: 10 has no unit\n  fix: write -10s for seconds or -10m for minutes\n"
    )


def test_it_says_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean `--output json`?" in said(capsys, "status", "--jsn")
    assert "did you mean `--verify`?" in said(capsys, "launch", "--verfy", "1p1d")
    assert "did you mean `error`? choose one of error," in said(capsys, "doctor", "--fail-on", "eror")
    assert "did you mean `pdctl dialect flags`?" in said(capsys, "dialect", "flag")
    assert "pdctl launch FILE -t slurm --dry-run" in said(capsys, "render", "slurm", "2p1d")
    line = "python3 -m sglang.launch_server --model-path x"
    assert "| pdctl import -" in said(capsys, "import", *line.split())
    assert f"echo '{line}' | pdctl import -" in said(capsys, "import", line)
    assert "did you mean `pdctl status`?" in said(capsys, "stauts")
    assert said(capsys, "ask", "--max-tokens", "0", "hi").endswith("fix: give a whole number of at least 1\n")
    assert said(capsys, "-o", "json", "status").endswith("fix: pdctl status -o json\n")
    assert said(capsys, "launch") == "error: pdctl launch needs FILE|NAME\n  fix: pdctl launch 2p1d\n"
    assert said(capsys, "status", "blue", "now").startswith(
        "error: pdctl status takes [RUN] and no more: what is `now`"
    )


@for_each(
    ("typed", "fix"),
    [
        ("role-switch --run m1 prefill-0", "pdctl role-switch --run m1 prefill-0 --to decode"),
        ("role-switch decode-7", "pdctl role-switch decode-7 --to decode"),
        ("role-switch --to prefill", "pdctl role-switch INSTANCE --to prefill"),
        ("role-switch", "pdctl role-switch prefill-1 --to decode"),
        ("role-switch prefill-1 decode", "pdctl role-switch prefill-1 --to decode"),
        ("role-switch decode-0 prefill --run m1", "pdctl role-switch decode-0 --run m1 --to prefill"),
        ("role-switch decode --run decode decode", "pdctl role-switch decode --run decode --to decode"),
        ("role-switch prefill-1 decod", "pdctl role-switch prefill-1 --to decode"),
        ("autoscale explain nosuch", "pdctl autoscale explain --policy blitz --observation fleet.json"),
        (
            "autoscale explain nosuch --policy kpa",
            "pdctl autoscale explain --policy kpa --observation fleet.json",
        ),
        ("autoscale explain kpa --observation a.json", "pdctl autoscale explain --observation a.json --policy kpa"),
        ("trace-room -5", "`pdctl rooms` lists them"),
        ("trace-room -12 logs/", "`pdctl rooms` lists them"),
    ],
)
def test_the_fix_of_an_incomplete_command_keeps_what_was_typed(
    capsys: pytest.CaptureFixture[str], typed: str, fix: str
) -> None:
    assert said(capsys, *typed.split()).splitlines()[1] == f"  fix: {fix}"


def test_the_fix_fits_the_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDCTL_HOME", str(tmp_path))
    (tmp_path / "clusters").mkdir()
    for words in (["status", "OP"], ["status", ""], ["logs", "--grep", "x", "OP"], ["diagnose", "--run", "O P"]):
        assert said(capsys, *words).endswith("fix: pdctl ls lists the runs\n"), words
    assert said(capsys, "launch", "1p1d", "--name", "OP").endswith("fix: --name my-run\n")
    for verb in ("status", "ask", "plan"):
        assert said(capsys, verb, "--version").endswith("fix: pdctl --version\n")
    told = said(capsys, "ask", "-5 degrees")
    assert "goes behind `--`: pdctl ask -- '-5 …'" in told
    for tail in ("/v1/chat/completions", "/v1", "/v1/"):
        told = said(capsys, "ask", "hi", "--url", f"http://127.0.0.1:9{tail}")
        assert told.endswith("fix: give the server alone: --url http://127.0.0.1:9\n")
    assert "did you mean `pdctl render kubernetes`?" in said(capsys, "render", "k8s", "2p1d")


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["-F", "/nope.yaml"], "/nope.yaml"),
        (["-F", "/nope.yaml", "-F", "/neither.yaml"], "/nope.yaml, /neither.yaml"),
        (["--set", "roles.prefil.tp=3"], "--set"),
        (["-F", "over.yaml"], "over.yaml"),
    ],
)
def test_the_file_that_is_wrong_is_named(
    words: list[str], place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("over.yaml").write_text("roles: {prefil: {tp: 1}}\n", encoding="utf-8")
    assert re.search(rf"^error: \d problems? in {place}$", said(capsys, "plan", "2p1d", *words), re.MULTILINE)


def test_an_option_that_would_be_ignored_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "-o json is a form of --dry-run" in said(capsys, "launch", "2p1d", "-o", "json")
    for words in (["--select", "pd2", "--ignore", "PD2"], ["--ignore", "PD*"]):
        assert "--ignore leaves nothing to check" in said(capsys, "doctor", "2p1d", "--static", *words)


@for_each("words", [["-V", "status"], ["-VV"], ["-V", "-V"], ["--version", "status"]])
def test_the_version_is_told_whatever_follows(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "pdctl", *words], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"pdctl {__version__}\n", "")


@pytest.mark.parametrize(
    "words",
    [
        ["doctor", "2p1d", "--static", "-o", "json", "--output-file", "-"],
        ["rooms", str(BROKEN), "-o", "json", "--output-file", "-"],
        ["diagnose", str(BROKEN), "-o", "json", "--output-file=-"],
        ["import", str(ROOT / "topologies" / "2p1d.yaml"), "-o", "-"],
    ],
    ids=lambda words: words[0],
)
def test_a_dash_to_write_to_is_standard_output(words: list[str], tmp_path: Path) -> None:
    done = within(*words, folder=tmp_path)
    if words[0] != "import":
        assert json.loads(done.stdout)
    assert not list(tmp_path.iterdir())


@for_each("words", [("topology",), ("render",), ("dialect",), ()])
def test_a_verb_without_the_one_below_it_shows_what_there_is(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, *words).startswith("Usage: pdctl")


@for_each("path", LEAVES)
def test_words_that_are_too_many_are_named(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    params = LEAVES[path].params
    needed = [word for one in params if one.param_type_name == "option" and one.required for word in (one.opts[0], "x")]
    if all(one.nargs == 1 for one in params if one.param_type_name == "argument"):
        told = said(capsys, *path.split(), *needed, *["zzz"] * 4)
        assert FORM.fullmatch(told), told
        assert path in ("role-switch", "autoscale explain") or "zzz" in told, told  # `x` is refused before
