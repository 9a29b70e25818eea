"""`pdctl autoscale` as a user types it: the answer in both forms, from a file and from standard input, and mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from pdctl.policy import POLICIES
from tests.cases import for_each
from tests.cli.verb import within

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
