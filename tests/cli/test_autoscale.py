"""`pdctl autoscale` as a user types it: the answer in both forms, from a file and from standard input, and mistakes."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pdctl.launch.run_directory import RunDir
from pdctl.launch.run_record import Exit, RunOutcome, State
from pdctl.policy import POLICIES
from tests.cases import for_each
from tests.cli.verb import within
from tests.launch.runs import living
from tests.ports import free_ports

FLEET = Path(__file__).parents[1] / "snapshots" / "files" / "fleet.json"
NAMES = [name.value for name in POLICIES]


def fleet(**members: Any) -> str:
    return json.dumps({**json.loads(FLEET.read_text(encoding="utf-8")), **members})


def pdctl(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "pdctl", "autoscale", *words]
    return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=60, encoding="utf-8")


def test_explain_in_a_process_of_its_own_gives_the_contracts_document() -> None:
    """The file of the contract: its members exactly, without limits, so that the deltas are the policy's own."""
    whole = json.loads(fleet(prefills=2, decodes=2, prefill_tokens_per_s=15_000, waiting_prompt_tokens=30_000))
    contract = {
        "prefills", "decodes", "waiting_prompt_tokens", "kv_blocks_used", "kv_blocks_used_on_prefill", "block_tokens",
        "kv_blocks_per_replica", "prefill_tokens_per_s", "kv_ingress_tokens_per_s", "bounds",
    }  # fmt: skip
    whole |= {"kv_blocks_used": 0, "kv_blocks_used_on_prefill": 0}
    given = json.dumps({name: value for name, value in whole.items() if name in contract})
    done = pdctl("explain", "--policy", "blitz", "--observation", "-", "-o", "json", stdin=given)
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert list(document) == [
        "schema", "policy", "prefill_delta", "decode_delta", "terms", "refused", "expected_cost",
    ]  # fmt: skip
    assert document["schema"] == "pdctl.decision/1"
    assert (document["policy"], document["prefill_delta"], document["decode_delta"]) == ("blitz", 2, -1)
    assert document["refused"] == []
    assert all(set(term) == {"name", "value", "because"} for term in document["terms"])
    assert document["terms"][0]["because"] == (
        "P: backlog 30 kTok / (0.7 s × 15 kTok/s) = 3 > 2; the middle of 3 to 4 is 4"
    )


@for_each("name", NAMES)
def test_every_policy_answers_for_one_observation_in_both_forms(name: str) -> None:
    given = fleet(measured={"requests_per_s": 4.5}, limits={"gpus": 6})
    words = ("autoscale", "explain", "--policy", name, "--observation", "-")
    done = within(*words, "-o", "json", stdin=given)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["policy"] == name
    assert [term["name"] for term in document["terms"][:2]] == ["prefill", "decode"]
    text = within(*words, stdin=given).stdout
    assert text.startswith(f"{name}: prefill 3")
    for term in document["terms"]:
        assert term["because"] in text
    for refusal in document["refused"]:
        assert f"refused {refusal['action']}: {refusal['because']}" in text


def test_policies_are_listed_with_their_settings() -> None:
    document = json.loads(within("autoscale", "policies", "-o", "json").stdout)
    assert document["schema"] == "pdctl.policies/1"
    assert [one["name"] for one in document["policies"]] == NAMES
    for one in document["policies"]:
        settings = {setting["name"]: setting["default"] for setting in one["settings"]}
        where = {"bounds": settings} if one["name"] == "blitz" else {"settings": settings}
        given = json.loads(fleet(measured={"requests_per_s": 4.5})) | where
        words = ("autoscale", "explain", "--policy", one["name"], "--observation", "-")
        done = within(*words, stdin=json.dumps(given))
        assert done.returncode == 0, f"the defaults of {one['name']} can be given: {done.stderr}"
    text = within("autoscale", "policies").stdout
    assert all(f"\n{name}: " in f"\n{text}" for name in NAMES)


def refused(*words: str, stdin: str = "") -> str:
    done = within("autoscale", "explain", *words, stdin=stdin)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def test_mistakes_name_their_place_and_the_fix(tmp_path: Path) -> None:
    hint = "  fix: give the file of an observation, or - for standard input\n"
    assert refused("--policy", "blitz", "--observation", f"{tmp_path}/no.json") == (
        f"error: --observation {tmp_path}/no.json: no such file or directory\n{hint}"
    )
    assert refused("--policy", "blitz", "--observation", str(tmp_path)) == (
        f"error: --observation {tmp_path}: is a directory\n{hint}"
    )
    assert refused("--policy", "blitz", "--observation", "-", stdin=fleet(prefils=3)) == (
        "error: <stdin>: there is no member `prefils`\n  fix: did you mean `prefills`?\n"
    )
    assert refused("--policy", "dynamo-throughput", "--observation", str(FLEET)) == (
        "error: the policy dynamo-throughput needs `measured.requests_per_s`, which is not given\n"
        '  fix: add it to the observation: "measured": {"requests_per_s": 4.5}\n'
    )
    assert "choose one of blitz, thresholds" in refused("--policy", "blits", "--observation", str(FLEET))


def test_a_file_without_an_end_is_not_read_to_its_end() -> None:
    assert refused("--policy", "blitz", "--observation", "/dev/zero") == (
        "error: /dev/zero is larger than 64 MiB\n  fix: leave older observations out of `history`\n"
    )


RECORD = {"schema": "pdctl.fleet-record/1", "policies": ["kpa", "wva"], "limits": {"decode": [1, 4]}, "settings": {}}


def recorded(tmp_path: Path, *looks: dict[str, Any]) -> str:
    file = tmp_path / "fleet.jsonl"
    lines = [RECORD, *({"at": "2026-11-24T01:00:00.000Z", "notes": [], **look} for look in looks)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(file)


def seen(time_s: float, **members: Any) -> dict[str, Any]:
    whole = {**json.loads(fleet(**members)), "time_s": time_s}
    return {name: value for name, value in whole.items() if name not in ("bounds", "limits", "settings", "history")}


def test_a_record_is_replayed_in_both_forms(tmp_path: Path) -> None:
    quiet = {"observation": None, "notes": ["decode-0 (http://d): no answer within 2 s"]}
    file = recorded(tmp_path, quiet, {"observation": seen(5.0)}, {"observation": seen(10.0, kv_blocks_used=80_000)})
    words = ("autoscale", "advise", "--replay", file)
    done = within(*words, "-o", "jsonl")
    assert done.returncode == 0, done.stderr
    first, second, third = map(json.loads, done.stdout.splitlines())
    assert first == {
        "schema": "pdctl.advice/1", "at": "2026-11-24T01:00:00.000Z", "time_s": None, "notes": quiet["notes"],
        "decisions": [], "undecided": [],
    }  # fmt: skip
    assert [one["policy"] for one in second["decisions"]] == ["kpa", "wva"], "those that the record names"
    assert all(one["schema"] == "pdctl.decision/1" for one in second["decisions"])
    assert third["time_s"] == 10.0
    text = within(*words).stdout
    assert "nothing was observed\n  decode-0 (http://d): no answer within 2 s\n" in text
    for told in (second, third):
        for one in told["decisions"]:
            assert f"  {one['policy']}: prefill 3" in text
            assert all(f"    {term['because']}\n" in text for term in one["terms"][:2])
    whole = within(*words, "-v").stdout
    assert all(term["because"] in whole for one in third["decisions"] for term in one["terms"])
    other = within(*words, "--policy", "static", "-o", "jsonl").stdout
    assert [one["policy"] for one in json.loads(other.splitlines()[1])["decisions"]] == ["static"]
    chosen = tmp_path / "settings.json"
    chosen.write_text('{"limits": {"prefill": [7, 9]}}', encoding="utf-8")
    held = within(*words, "--policy", "static", "--settings", str(chosen)).stdout
    assert "static: prefill 3 -> 7 (+4), decode 3\n" in held


def test_a_record_in_which_nothing_was_observed_has_exit_code_4(tmp_path: Path) -> None:
    done = within("autoscale", "advise", "--replay", recorded(tmp_path, {"observation": None}))
    assert (done.returncode, done.stderr) == (4, "nothing could be observed\n")


def test_a_record_that_ends_in_half_a_line_is_replayed_without_it(tmp_path: Path) -> None:
    file = recorded(tmp_path, {"observation": seen(5.0)}, {"observation": seen(10.0)})
    words = ("autoscale", "advise", "--replay", file, "-o", "jsonl")
    whole = within(*words)
    data = Path(file).read_bytes()
    Path(file).write_bytes(data[:-20])
    done = within(*words)
    assert (done.returncode, done.stdout) == (0, whole.stdout.partition("\n")[0] + "\n")
    assert done.stderr == f"note: {file}:3 was not written to its end, as when the disk is full, and is left out\n"
    Path(file).write_bytes(data[:20])
    done = within(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {file} is cut: its first line was not written to its end\n")


def test_a_full_disk_behind_a_record_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    argv = [sys.executable, "-m", "pdctl", "autoscale", "advise", "--router", f"http://127.0.0.1:{free_ports(1)[0]}"]
    limited = ["sh", "-c", 'ulimit -f 1; exec "$@"', "sh", *argv, "--interval", "0.1s", "--record", str(file)]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # Python would cut the modules it keeps
    done = subprocess.run(limited, env=env, capture_output=True, text=True, timeout=60, encoding="utf-8")
    assert (done.returncode, done.stderr) == (4, f"error: --record {file}: file too large\n  fix: free space there\n")
    assert file.stat().st_size > 0


def test_mistakes_of_advise(tmp_path: Path) -> None:
    def refused(*words: str) -> str:
        done = within("autoscale", "advise", *words, env={"PDCTL_HOME": str(tmp_path / "none"), "PATH": ""})
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        return done.stderr

    file = recorded(tmp_path)
    both = refused("--replay", file, "--router", "http://h:1")
    assert both.startswith("error: --replay contacts nobody, --router is for a running deployment\n")
    assert refused("--replay", file, "--record", "x").startswith("error: --replay contacts nobody, --record is")
    assert refused("--replay", str(tmp_path)).startswith(f"error: --replay {tmp_path}: is a directory\n")
    assert refused("--replay", str(FLEET)).startswith(f"error: {FLEET}:1:")
    assert refused("--router", "http://h:1", "--record", file) == (
        f"error: --record {file}: it exists already\n  fix: name a new file\n"
    )
    nowhere = str(tmp_path / "no" / "r")
    assert refused("--router", "http://h:1", "--record", nowhere).startswith(
        f"error: --record {nowhere}: no such file or directory\n"
    )
    assert "--interval 0.01s is shorter than 0.1 s" in refused("--router", "http://h:1", "--interval", "0.01s")
    assert "there is no policy `blits`" in refused("--policy", "blits")
    assert "a pair has two ends" in refused("--prefill", "http://h:1")
    assert "is no address of a server" in refused("--router", "http://")
    settings = tmp_path / "s.json"
    settings.write_text('{"limits": {"gpus": 0}}', encoding="utf-8")
    assert f"{settings}: `limits.gpus` is 0, not a whole number from 1" in refused(
        "--router", "http://h:1", "--settings", str(settings)
    )


def test_advise_without_any_answer_says_who_was_silent_and_has_exit_code_4(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    file = tmp_path / "r.jsonl"
    words = ("--router", f"http://127.0.0.1:{port}", "--count", "2", "--interval", "0.1s", "--record", str(file))
    done = within("autoscale", "advise", *words)
    assert (done.returncode, done.stderr) == (4, "nothing could be observed\n")
    assert done.stdout.count(f"  router http://127.0.0.1:{port}: ") == 2
    again = within("autoscale", "advise", "--replay", str(file))
    assert (again.returncode, again.stdout) == (4, done.stdout)


def test_the_run_that_is_watched_says_who_died_and_how_it_ended(tmp_path: Path) -> None:
    """Its prefill is killed; then the run fails. Exit code 4, as of doctor where it can ask nothing."""
    run, directory = living(tmp_path, "blue"), RunDir.of(tmp_path, "blue")
    env = {**os.environ, "PDCTL_HOME": str(tmp_path)}
    words = ("autoscale", "advise", "--run", "blue", "--count", "2", "--interval", "0.1s", "--timeout", "1s")
    killed = dataclasses.replace(run.process("prefill-0"), generation=1, exit=Exit(0, signal.SIGKILL, time.time()))
    others = tuple(one for one in run.processes if one.name != "prefill-0")
    directory.save(dataclasses.replace(run, state=State.SERVING, processes=(killed, *others)))
    done = within(*words, env=env)
    assert (done.returncode, done.stderr) == (4, "nothing could be observed\n")
    assert done.stdout.count("  prefill-0 was killed by SIGKILL (from outside, or OOM-killed: see dmesg)") == 2
    said = "run blue failed: prefill-0 was killed by SIGKILL: nothing of it can be asked\n  fix: pdctl diagnose "
    said += "--run blue\n"
    failed = dataclasses.replace(run, state=State.FAILED, outcome=RunOutcome("prefill-0 was killed by SIGKILL", code=1))
    argv = [sys.executable, "-m", "pdctl", *words[:4], "--interval", "0.1s", "--timeout", "1s"]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), "a look while it goes on"
        directory.save(failed)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (4, f"error: {said}"), out
    done = within(*words, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (4, "", f"error: {said}")
