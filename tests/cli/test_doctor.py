"""`pdctl doctor` as it is typed: its words, what it refuses, what is written alone, and which findings count."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pdctl.catalogue import book
from pdctl.cli.doctor import CONFLICTS
from tests.cases import for_each
from tests.cli.doctor import ROOT, Said

TOPOLOGIES = ROOT / "topologies"
SHIPPED = sorted(path.stem for path in TOPOLOGIES.glob("*.yaml"))
# Rehearsals that cannot be told from what is written: a process dies, or the network is slow.
WRITTEN = {
    "missing-bootstrap-port": {"PD201"},
    "page-size-mismatch": {"PD302"},
    "swapped-bootstrap-ports": {"PD203"},
    "wrong-bootstrap-port": {"PD202"},
    "killed-decode": set(),
    "killed-prefill": set(),
    "slow-transfer": set(),
}
MISMATCH = """\
version: pdctl/v1
name: blue
roles:
  prefill: {instances: 1}
  decode: {instances: 1, page-size: 32}
"""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No run of this machine's is looked at."""
    monkeypatch.setenv("PDCTL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)


def written(folder: Path, text: str, name: str = "blue.yaml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


# --- what is refused


ROOMS = ROOT / "tests" / "data" / "rooms"
LOGS = ROOMS / "1p1d-decode-killed-info-sgl0523"


@pytest.mark.parametrize(
    ("subject", "kind"),
    [
        *((path, "log") for path in sorted(LOGS.glob("*.log"))),
        (LOGS, "directory of logs"),
        (ROOMS, "directory of logs"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_logs_go_to_diagnose(capsys: pytest.CaptureFixture[str], subject: Path, kind: str) -> None:
    said = Said(capsys, subject, "--static")
    assert (said.code, said.out) == (2, "")
    assert said.err == f"error: {subject} is a {kind}, not a topology\n  fix: pdctl diagnose {subject}\n"


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "#!/bin/bash\n", "echo hello\n"])
def test_a_script_that_starts_nothing_is_no_topology(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str
) -> None:
    script = written(tmp_path, text, "run.sh")
    said = Said(capsys, script, "--static")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"error: nothing in {script} starts an SGLang engine or a router\n  fix: name manifests")


def test_a_script_that_is_not_there_is_a_missing_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = Said(capsys, tmp_path / "run.sh", "--static")
    assert said.code == 2
    assert f"there is no file {tmp_path / 'run.sh'}" in said.err


PAIR = ("--prefill", "http://127.0.0.1:1,2", "--decode", "http://127.0.0.1:3")


@for_each(
    ("argv", "message", "fix"),
    [
        (("2p1d", "--static", "--select", "bootstrap-port-nul"), "bootstrap-port-nul", "bootstrap-port-null"),
        (("2p1d", "--static", "--ignore", "PD2O1"), "PD2O1", "PD201"),
        (("--router", ""), "`` is no address", "http://HOST:PORT"),  # an unset variable: not the run that is alive
        (("--router", "ftp://10.0.0.5"), "`ftp://10.0.0.5` is no address", "http://HOST:PORT"),
        (("--router", "http://10.0.0.5:80800"), "`http://10.0.0.5:80800` is no address", "http://HOST:PORT"),
        (("--router", "http://10.0.0.5:8000", "--router-metrics", "h:0"), "`h:0` is no address", "http://HOST:PORT"),
        (("--prefill", "http://h:1,65536", "--decode", "h:2"), "`65536` in --prefill", "http://HOST:30000,8998"),
        (("--prefill", "http://h:1,x", "--decode", "h:2"), "`x` in --prefill", "http://HOST:30000,8998"),
        (("--prefill", "http://h:99999", "--decode", "h:2"), "`http://h:99999` is no address", "http://HOST:PORT"),
        (("--prefill", "http://h:1"), "--decode URL is missing", "add --decode URL"),
        (("--decode", "http://h:1"), "--prefill URL is missing", "add --prefill URL"),
        ((*PAIR, "--key-env", "NO_SUCH_KEY"), "NO_SUCH_KEY: that variable is not set", "export NO_SUCH_KEY="),
        ((*PAIR, "--reached", "/no/such/output"), "--reached /no/such/output: No such file", "the command's output"),
        ((*PAIR, "--reached", "/"), "--reached /: Is a directory", "the command's output"),
        ((*PAIR, "--reached", "/dev/null"), "no line of it holds 'pdctl.reach/1'", "whole output"),
        (("2p1d", "--static", "--bundle", "/no/such/x.tgz"), "--bundle /no/such/x.tgz", "can be written"),
        (("2p1d", "--static", "--output-file", "/no/such/x"), "--output-file /no/such/x", "can be written"),
        (("2p1d", "--timeout", "5"), "--timeout 5: 5 has no unit", "5s"),
        (("2p1d", "--canary-timeout", "soon"), "--canary-timeout soon", ""),
        (("2p1d", "--watch", "often"), "--watch often", ""),
        (("2p1d", "1p1d"), "2p1d and 1p1d are two topologies", "-F 1p1d"),
        (("--set", "roles.decode.tp=2"), "none is named", "name its file"),
        (("-F", "site.yaml", *PAIR), "none is named", "name its file"),
        (("2p1d", "--run", "blue"), "--run and what else is named are two deployments", "one of them"),
        (("--list-checks", "-o", "sarif"), "--list-checks has no form sarif", "-o json"),
        ((str(ROOT / "README.md"),), "README.md", ""),
    ],
)  # fmt: skip
def test_usage_errors(capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str, fix: str) -> None:
    said = Said(capsys, *argv)
    assert (said.code, said.out) == (2, "")
    assert message in said.err
    assert fix in said.err


@for_each(("flag", "other"), [(row.flag, other) for row in CONFLICTS for other in row.others])
def test_flags_that_contradict_each_other(capsys: pytest.CaptureFixture[str], flag: str, other: str) -> None:
    """Neither is passed over in silence."""
    values = {"--watch": ["1s"], "--bundle": ["/tmp/x.tgz"], "--reached": ["x"], "--output-file": ["/tmp/x"]}
    argv = [word for each in (flag, other) for word in (*each.split(), *values.get(each, []))]
    said = Said(capsys, *argv, *([] if other == "-" else ["2p1d"]))
    assert (said.code, said.out) == (2, "")
    assert flag.split()[0] in said.err
    assert other in said.err


@pytest.mark.parametrize("form", ["xml", "yaml"])
def test_an_unknown_form(capsys: pytest.CaptureFixture[str], form: str) -> None:
    said = Said(capsys, "2p1d", "-o", form)
    assert said.code == 2
    assert "sarif" in said.err


def test_no_run_and_nothing_named(capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys)
    assert said.code == 5
    assert "--router URL" in said.err
    assert Said(capsys, "--run", "blue").code == 5


def test_a_topology_that_cannot_be(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = Said(capsys, written(tmp_path, MISMATCH.replace("instances: 1,", "instances: many,")), "--static")
    assert (said.code, said.out) == (2, "")
    assert "blue.yaml:5" in said.err


def test_standard_input_that_is_not_there(tmp_path: Path) -> None:
    closed = ["sh", "-c", '"$@" <&-', "sh", sys.executable, "-m", "pdctl", "doctor", *PAIR, "--reached", "-"]
    env = {**os.environ, "PDCTL_HOME": str(tmp_path)}
    done = subprocess.run(closed, capture_output=True, text=True, timeout=60, cwd=ROOT, env=env, check=False)
    assert done.returncode == 2
    assert "`-` means standard input, and there is none" in done.stderr


# --- the list of checks


def test_the_list_of_checks(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line.split("\t") for line in Said(capsys, "--list-checks").out.splitlines()]
    assert rows[0] == ["CODE", "SEVERITY", "SLUG", "NEEDS"]
    assert {row[0] for row in rows[1:]} == {entry.code for entry in book.ENTRIES}
    assert all(len(row) == 4 for row in rows)
    document = Said(capsys, "--list-checks", "-o", "json").document
    assert document["schema"] == "pdctl.checks/1"
    assert not [each["code"] for each in document["checks"] if "|" in each["headline"]], "a placeholder is left"
    assert [check["code"] for check in document["checks"]] == [entry.code for entry in book.ENTRIES]
    assert all(check["needs"] or check["not_checkable_because"] for check in document["checks"])


def test_the_list_of_some_checks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = Said(capsys, "--list-checks", "--select", "PD2,page-size-*", "--ignore", "PD201", "-o", "json")
    codes = [check["code"] for check in said.document["checks"]]
    assert "PD202" in codes
    assert "PD302" in codes
    assert "PD201" not in codes
    assert not [code for code in codes if code.startswith("PD6")]
    assert Said(capsys, "--list-checks", "--output-file", tmp_path / "list").out == ""
    assert (tmp_path / "list").read_text().startswith("CODE\t")


@pytest.mark.parametrize(
    "argv", [("doctor", "--list-checks"), ("explain", "PD201"), ("doctor", "--help")], ids=" ".join
)
def test_what_asks_nobody_loads_little(argv: tuple[str, ...]) -> None:
    probe = (
        "import sys; sys.argv[0] = 'pdctl'\n"
        "from pdctl.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", probe, *argv], capture_output=True, text=True, timeout=60, check=True)
    loaded = {name.split(".")[0] for name in done.stderr.splitlines()[-1].split()}
    assert not loaded & {"rich", "httpx", "yaml", "asyncio", "torch", "numpy", "ssl"}
    assert "pdctl.fleet.http_connection" not in done.stderr.split()


# --- what is written alone


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_topologies_have_no_errors(capsys: pytest.CaptureFixture[str], name: str) -> None:
    said = Said(capsys, name, "--static", "-o", "json")
    assert (said.code, said.codes()) == (0, [])
    assert said.document["depth"] == "static"


@pytest.mark.parametrize("name", sorted(path.stem for path in (TOPOLOGIES / "incidents").glob("*.yaml")))
def test_rehearsals_are_found_where_they_are_written(capsys: pytest.CaptureFixture[str], name: str) -> None:
    said = Said(capsys, TOPOLOGIES / "incidents" / f"{name}.yaml", "--static", "-o", "json")
    assert set(said.codes()) == WRITTEN[name]
    assert said.code == (1 if WRITTEN[name] else 0)


def test_settings_and_overlays_are_looked_at(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    overlay = written(tmp_path, "roles: {decode: {page-size: 32}}\n", "site.yaml")
    said = Said(capsys, "2p1d", "--static", "-F", overlay, "-o", "json")
    assert (said.code, said.codes()) == (1, ["PD302"])
    assert Said(capsys, "2p1d", "--static", "-F", overlay, "--set", "roles.prefill.page-size=32").code == 0


SCRIPT = """\
#!/bin/bash
python3 -m sglang.launch_server --model-path m --disaggregation-mode prefill --port 30000 --page-size 64 &
python3 -m sglang.launch_server --model-path m --disaggregation-mode decode --port 30001 --page-size {page} &
python3 -m sglang_router.launch_router --pd-disaggregation --prefill http://127.0.0.1:30000 {port} \\
  --decode http://127.0.0.1:30001
"""


def test_start_scripts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    good = written(tmp_path, SCRIPT.format(page=64, port=8998), "run.sh")
    assert Said(capsys, good, "-o", "json").codes() == []
    bad = written(tmp_path, SCRIPT.format(page=16, port=""), "bad.sh")
    said = Said(capsys, bad, "-o", "json")
    assert (said.code, said.codes()) == (1, ["PD302"])
    assert "PD207" in said.codes("warning")  # its only prefill has the port every decode takes for granted
    assert said.document["title"] == str(bad)


def test_manifests_from_standard_input(tmp_path: Path) -> None:
    """What `helm template … | pdctl doctor -` gives it; the annotation of a pull request names the line."""
    text = (ROOT / "tests" / "data" / "doctor" / "prefill-annotated.yaml").read_text()
    argv = [sys.executable, "-m", "pdctl", "doctor", "-", "-o", "github", "--fail-on", "info"]
    env = {**os.environ, "PDCTL_HOME": str(tmp_path)}
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=60, cwd=ROOT, env=env, check=False)
    assert done.returncode == 1, done.stderr
    assert all(re.match(r"::(error|warning|notice) ", line) for line in done.stdout.splitlines())
    assert "file=<stdin>,line=" in done.stdout


@pytest.mark.parametrize(
    ("name", "text"), [("empty.yaml", ""), ("other.yaml", "kind: ConfigMap\napiVersion: v1\n"), ("x.bin", "a\0b")]
)
def test_files_that_start_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, text: str) -> None:
    said = Said(capsys, written(tmp_path, text, name))
    assert (said.code, said.out) == (2, "")
    assert name in said.err


# --- which findings count


def test_selected_ignored_and_what_fails(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    blue = written(tmp_path, MISMATCH)
    assert Said(capsys, blue, "--static").code == 1
    assert Said(capsys, blue, "--static", "--select", "PD2").code == 0
    assert Said(capsys, blue, "--static", "--select", "PD2", "--select", "page-size-mismatch").code == 1
    assert Said(capsys, blue, "--static", "--ignore", "page-*").code == 0
    assert Said(capsys, blue, "--static", "--fail-on", "never").code == 0
    checks = Said(capsys, blue, "--static", "--select", "PD302", "-o", "json").document["checks"]
    assert {check["code"] for check in checks if check["reason"] == "not selected"} == {
        entry.code for entry in book.ENTRIES if entry.code != "PD302"
    }


@pytest.mark.parametrize("pattern", ["PD703", "PD7", "PD320", "room-never-arrived,PD703"])
def test_what_was_selected_and_cannot_be_checked_is_no_good_news(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, pattern: str
) -> None:
    pattern = pattern.replace("room-never-arrived", book.entry("PD701").slug)
    said = Said(capsys, "2p1d", "--static", "--select", pattern)
    assert said.code == 4
    assert "selected but not checked: PD" in said.out
    assert "no problems found" not in said.out
    assert Said(capsys, "2p1d", "--static", "--select", f"{pattern},PD3").code == 4
    assert Said(capsys, "2p1d", "--static", "--select", pattern, "--fail-on", "never").code == 0
    blue = written(tmp_path, MISMATCH)
    assert Said(capsys, blue, "--static", "--select", f"{pattern},PD302").code == 1
    suite = Said(capsys, "2p1d", "--static", "--select", pattern, "-o", "junit")
    assert (suite.code, suite.out.count("<error ") > 0, 'failures="0"' in suite.out) == (4, True, True)
    assert (
        "::warning title=selected but not checked::PD"
        in Said(capsys, "2p1d", "--static", "--select", pattern, "-o", "github").out
    )
    checks = Said(capsys, "2p1d", "--static", "--select", "PD703", "-o", "json").document["checks"]
    (check,) = [each for each in checks if each["code"] == "PD703"]
    assert check["status"] == "unknown"
    assert check["reason"].startswith("needs running instances")


def test_a_beginning_of_which_some_code_is_checked_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "2p1d", "--static", "--select", "PD2")
    assert (said.code, "not checked" in said.out) == (0, False)


def test_the_bar_is_a_severity(capsys: pytest.CaptureFixture[str]) -> None:
    found = Said(capsys, "2p1d-decode-tp2", "--static", "-o", "json").document["findings"]
    assert {one["severity"] for one in found} == {"warning", "info"}
    codes = {
        bar: Said(capsys, "2p1d-decode-tp2", "--static", "--fail-on", bar).code
        for bar in ("error", "warning", "warn", "info", "never")
    }
    assert codes == {"error": 0, "warning": 1, "warn": 1, "info": 1, "never": 0}


ACCEPTED = "doctor:\n  ignore:\n    - {{code: {code}, because: {because}{more}}}\n"


@pytest.mark.parametrize("code", ["PD302", "page-size-mismatch", "PD3"])
def test_an_accepted_finding_stays_in_the_report(capsys: pytest.CaptureFixture[str], tmp_path: Path, code: str) -> None:
    blue = written(tmp_path, MISMATCH + ACCEPTED.format(code=code, because="one of them is a rehearsal", more=""))
    said = Said(capsys, blue, "--static", "-o", "json")
    (found,) = [one for one in said.document["findings"] if one["code"] == "PD302"]
    assert (said.code, found["suppressed"]) == (0, "one of them is a rehearsal")
    shown = Said(capsys, blue, "--static")
    assert "ignored  one of them is a rehearsal" in shown.out
    assert "1 ignored" in shown.out.splitlines()[-1]
    results = Said(capsys, blue, "--static", "-o", "sarif").document["runs"][0]["results"]
    assert results[0]["suppressions"][0]["justification"] == "one of them is a rehearsal"
    assert Said(capsys, blue, "--static", "-o", "github").out == ""


@pytest.mark.parametrize(("more", "code"), [(", until: 2999-12-31", 0), (", until: 2020-01-01", 1)])
def test_acceptance_ends_with_its_day(capsys: pytest.CaptureFixture[str], tmp_path: Path, more: str, code: int) -> None:
    blue = written(tmp_path, MISMATCH + ACCEPTED.format(code="PD302", because="soon mended", more=more))
    said = Said(capsys, blue, "--static", "-o", "json")
    assert said.code == code
    (found,) = [one for one in said.document["findings"] if one["code"] == "PD302"]
    assert found["suppressed"] == (None if code else "soon mended")
    assert any("soon mended); that day has passed" in line for line in found["evidence"]) is bool(code)


@pytest.mark.parametrize(("more", "code"), [(", where: decode-*", 0), (", where: prefill-*", 1)])
def test_acceptance_holds_where_it_says(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, more: str, code: int
) -> None:
    blue = written(tmp_path, MISMATCH + ACCEPTED.format(code="PD302", because="known", more=more))
    assert Said(capsys, blue, "--static").code == code


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{code: PD302}", "because"),
        ("{code: PD302, because: ' '}", "because"),
        ("{code: PD999, because: x}", "PD999"),
        ("{code: PD302, because: x, until: tomorrow}", "tomorrow"),
    ],
)
def test_acceptance_without_a_reason_or_a_code(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, entry: str, message: str
) -> None:
    said = Said(capsys, written(tmp_path, f"{MISMATCH}doctor:\n  ignore:\n    - {entry}\n"), "--static")
    assert (said.code, said.out) == (2, "")
    assert message in said.err
    assert "blue.yaml:8" in said.err
