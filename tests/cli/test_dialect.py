"""`pdctl dialect` as a user types it, and its two forms of answer."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
from pathlib import Path

import pytest

from pdctl.engines.identify import identify
from pdctl.engines.row_matching import ROWS, speech, survey
from pdctl.engines.versions import NEWEST, parse, spell
from pdctl.render import dialect as render
from pdctl.render.term import Term
from tests.cases import for_each
from tests.cli.verb import within
from tests.engines.recorded import LOGS, lines


def pdctl(*words: str, stdin: bytes = b"", **environ: str) -> subprocess.CompletedProcess[str]:
    return within("dialect", *words, stdin=stdin, env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environ})


def test_check_says_who_wrote_what() -> None:
    names = ("058-missing-ports.decode0", "058-missing-ports.router", "router-smg-1.13-json")
    done = pdctl("check", *(str(LOGS / f"{name}.log") for name in names), "-o", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "pdctl.dialect-check/1"
    decode, router, smg = document["logs"]
    assert (decode["speaker"], decode["role"], decode["since"], decode["until"]) == (
        "sglang",
        "decode",
        "0.5.8",
        "0.5.10",
    )
    assert (router["speaker"], [each["bootstrap_port"] for each in router["prefills"]]) == (
        "sglang-router",
        [None, None],
    )
    assert (smg["speaker"], smg["port"]) == ("smg", 41144)
    for each in document["logs"]:
        assert each["known"] == sum(counted["lines"] for counted in each["rows"])
        assert each["known"] + each["unknown"] + each["empty"] == each["lines"]


def test_check_reads_compressed_files_and_stdin(tmp_path: Path) -> None:
    log = (LOGS / "058-missing-ports.prefill1.log").read_bytes()
    (tmp_path / "prefill.log.gz").write_bytes(gzip.compress(log))
    done = pdctl("check", str(tmp_path / "prefill.log.gz"), "-", "-o", "json", stdin=log)
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)["logs"]
    assert first["role"] == second["role"] == "prefill"
    assert first["known"] == second["known"] > 0


def test_check_in_a_pipe_is_one_fact_per_line(tmp_path: Path) -> None:
    done = pdctl("check", str(LOGS / "own.router.log"), "--unknown", "0")
    fields = [line.split("\t") for line in done.stdout.splitlines()]
    assert fields[0][0] == "own.router"
    assert fields[0][1:5] == ["log", str(len(lines(LOGS / "own.router.log"))), "pdctl-router", "router"]
    assert {line[1] for line in fields} == {"log", "known", "unknown", "because", "row"}
    assert ["own.router", "row", "1", "dispatch"] in fields


def test_a_log_nobody_knows_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "other.log").write_text("one\ntwo\n")
    done = pdctl("check", str(tmp_path / "other.log"))
    assert done.returncode == 1
    assert "no line is known" in done.stdout
    assert pdctl("check", str(tmp_path / "missing.log")).returncode == 2


def test_show_lists_what_is_asked_for() -> None:
    rows = json.loads(pdctl("show", "-o", "json").stdout)
    assert rows["schema"] == "pdctl.dialect-rows/1"
    assert [row["id"] for row in rows["rows"]] == [row.id for row in ROWS]
    some = json.loads(pdctl("show", "sglang", "--version", "0.5.18", "--role", "prefill", "-o", "json").stdout)["rows"]
    ids = {row["id"] for row in some}
    assert {row["role"] for row in some} == {"prefill", None}
    assert "prefill-batch-optimistic" in ids
    assert not ids & {"prefill-batch-old", "fake-sender-started", "transfer-info-sent", "dispatch"}


def test_show_notes_a_release_between_two_and_refuses_one_too_old() -> None:
    between = pdctl("show", "mini_lb", "--version", "0.5.9.post1")
    assert between.returncode == 0
    assert "the rules of 0.5.9 are used" in between.stderr
    assert pdctl("show", "--version", "0.4.9").returncode == 2
    assert pdctl("show", "nobody").returncode == 2


def test_rows_of_a_directory_are_used(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "- id: mine\n  speaker: sglang\n  level: info\n  literal: my words\n  pattern: my words\n  example: my words\n"
    )
    given = pdctl("show", "sglang", "--dialects", str(tmp_path))
    assert given.stdout.splitlines()[0].startswith("mine\tsglang\tinfo\t")
    assert pdctl("show", "sglang", PDCTL_DIALECTS=str(tmp_path)).stdout == given.stdout
    (tmp_path / "mine.yaml").write_text("- id: mine\n  speaker: sglng\n")
    refused = pdctl("show", "--dialects", str(tmp_path))
    assert refused.returncode == 2
    assert f"{tmp_path}/mine.yaml:1: " in refused.stderr


class Screen(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    path = LOGS / "058-missing-ports.router.log"
    screen = Screen()
    found = render.CheckedLog("router", (str(path),), identify(lines(path), speech()), survey(lines(path), speech()))
    render.checked([found], 3, Term(screen))
    text = screen.getvalue()
    assert text.startswith(
        "1 log, 21 lines, 19 of them known: sglang-router\n\nrouter: sglang-router, router, level debug\n"
    )
    assert "  routes to prefill http://127.0.0.1:30000, no bootstrap port: sends null\n" in text
    assert "unknown lines, the commonest shapes" in text
    screen = Screen()
    render.rows(ROWS[:3], Term(screen))
    assert screen.getvalue().splitlines()[0].split() == list(render.HEAD)


KINDS = [("flags", "flag", "--disaggregation-mode"), ("env", "name", "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT")]


@for_each(("verb", "key", "known"), KINDS)
@for_each("form", [("0.5.10",), ("--version", "0.5.10"), ("0.5.10", "--version", "0.5.10")])
def test_the_items_of_a_release(verb: str, key: str, known: str, form: tuple[str, ...]) -> None:
    done = pdctl(verb, *form, "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert list(document) == ["schema", "version", verb]
    assert (document["schema"], document["version"]) == (f"pdctl.{verb}/1", "0.5.10")
    rows = document[verb]
    assert all(list(row) == [key, "since", "until"] for row in rows)
    assert known in {row[key] for row in rows}
    assert [row[key] for row in rows] == sorted({row[key] for row in rows})
    # Every item holds in the release asked for.
    assert all(row["until"] is None or parse(row["until"]) > parse("0.5.10") for row in rows)
    assert all(parse(row["since"]) <= parse("0.5.10") for row in rows)


def test_indented_lines_of_a_router_are_no_traceback_of_an_engine(tmp_path: Path) -> None:
    """A router prints its configuration indented, as Python prints the code of a traceback's frame."""
    log = tmp_path / "router.log"
    log.write_text(
        "Starting router on 0.0.0.0:8000 | mode: PrefillDecode {\n  prefill_urls: [\n"
        '    ("http://127.0.0.1:30000", None),\n    ("http://127.0.0.1:30001", None)\n  ], ...\n}\n'
    )
    done = pdctl("check", str(log), "-o", "json")
    (found,) = json.loads(done.stdout)["logs"]
    assert (done.returncode, found["speaker"], found["role"]) == (0, "sglang-router", "router")
    assert not [row for row in found["rows"] if "traceback" in row["id"]]
    log.write_text('Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\n    ^^^\nKeyError: 1\n')
    (found,) = json.loads(pdctl("check", str(log), "-o", "json").stdout)["logs"]
    assert {row["id"]: row["lines"] for row in found["rows"]}["traceback-code"] == 2


def test_the_flags_that_a_release_lost_are_not_its_own() -> None:
    flag = "--disaggregation-decode-tp"
    listed = {version: pdctl("flags", version).stdout.splitlines() for version in ("0.5.9", "0.5.10")}
    assert f"{flag}\t0.5.3\t0.5.10" in listed["0.5.9"]
    assert not any(line.startswith(f"{flag}\t") for line in listed["0.5.10"])


@pytest.mark.parametrize("verb", ["flags", "env"])
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("0.4.9",), ("older than 0.5.3", spell(NEWEST))),
        (("--version", "0.4.9"), ("older than 0.5.3", spell(NEWEST))),
        (("latest",), ("`latest` is not an sglang version", spell(NEWEST))),
        (("0.5.8", "--version", "0.5.9"), ("two releases are given: 0.5.8 and --version 0.5.9",)),
    ],
)
def test_a_release_nobody_can_answer_for_is_refused(verb: str, words: tuple[str, ...], told: tuple[str, ...]) -> None:
    done = pdctl(verb, *words, "-o", "json")
    assert done.returncode == 2
    assert done.stdout == ""
    assert all(word in done.stderr for word in told), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", ["flags", "env"])
def test_a_newer_release_is_answered_for_by_the_newest_and_says_so(verb: str) -> None:
    done = pdctl(verb, "0.9.1", "-o", "json")
    assert done.returncode == 0
    assert "newer than the newest release pdctl has read" in done.stderr
    document = json.loads(done.stdout)
    assert document["version"] == "0.9.1"
    assert f"the rules of {spell(NEWEST)} are used" in document["note"]
    assert document[verb] == json.loads(pdctl(verb, "-o", "json").stdout)[verb]


@for_each(
    ("package", "release", "has", "lacks"),
    [
        ("sglang-router", "0.1.4", "--eviction-interval", "--eviction-interval-secs"),
        ("sglang-router", "0.3.2", "--prefill-policy", "--eviction-interval"),
        ("smg", "1.13.0", "--upstream-http2", "--mini-lb"),
    ],
)
def test_the_flags_of_a_router(package: str, release: str, has: str, lacks: str) -> None:
    done = pdctl("flags", "--package", package, release, "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert list(document) == ["schema", "version", "package", "flags"]
    flags = {row["flag"] for row in document["flags"]}
    assert has in flags
    assert lacks not in flags


def test_a_router_too_old_is_refused_by_its_own_name() -> None:
    done = pdctl("flags", "--package", "smg", "0.3.2")
    assert done.returncode == 2
    assert "smg 0.3.2 is older than 1.1.0, the oldest release pdctl has read" in done.stderr


def test_a_log_does_not_steer_the_terminal_by_what_it_is_recognised_by(tmp_path: Path) -> None:
    args = "model_path='\x1b]0;pwn\x07\u202e', disaggregation_mode='prefill'"
    said = f"[2026-01-01 00:00:00] server_args=ServerArgs({args})\n"
    (tmp_path / "a.log").write_text(said, encoding="utf-8")
    shown = pdctl("check", str(tmp_path / "a.log"), PYTHONUTF8="1").stdout
    assert "because" in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown
