"""More than a hundred forms of secrets through a bundle: none comes out, and what diagnosis needs stays."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

from pdctl.doctor import bundle
from pdctl.doctor.bundle import GONE, remove_secrets
from pdctl.doctor.secret_shapes import FLAG, PROMPT, TOKENS
from pdctl.launch import preflight
from pdctl.launch.run_opening import open_run
from pdctl.launch.run_record import RunOutcome, State
from tests.cases import for_each
from tests.doctor.secret_forms import BASE, FORMS, HEX, PLAIN, SecretForm
from tests.launch.conftest import QUICK, deploy

DATA = Path(__file__).parents[1] / "data"


def packed(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {name: archive.extractfile(name).read().decode() for name in archive.getnames()}  # type: ignore[union-attr]


def test_there_are_a_hundred_and_no_two_are_the_same() -> None:
    assert len(FORMS) >= 100
    assert len({form.name for form in FORMS}) == len({form.text for form in FORMS}) == len(FORMS)
    assert all(secret in form.text for form in FORMS for secret in form.secrets)


@for_each("form", FORMS, ids=lambda form: form.name)
def test_a_secret_goes_and_what_stands_beside_it_stays(form: SecretForm) -> None:
    clean, taken, _ = remove_secrets(form.text)
    assert not [secret for secret in form.secrets if secret in clean], clean
    assert not [kept for kept in form.kept if kept not in clean], clean
    assert GONE in clean
    assert taken
    assert remove_secrets(clean).text == clean


def test_no_form_comes_out_of_the_command(tmp_path: Path) -> None:
    """Every form in a run's own documents, in its command line, and behind a line of its logs that has a cause."""
    root = tmp_path / "state"
    opened = open_run(
        root, "blue", deploy(), QUICK, check=preflight.check, argv=("pdctl", *(one.text for one in FORMS))
    )
    os.close(opened.lock)
    directory = opened.directory
    directory.save(replace(opened.run, state=State.STOPPED, outcome=RunOutcome("stopped", signal=15)))
    directory.keep("plan.json", json.dumps({"notes": [{"told": one.text} for one in FORMS]}))
    line = "[2026-11-22 10:00:00] Could not fetch prefill parallel info from bootstrap_addr: 10.0.0.1:8998 "
    directory.log("decode-0").write_text("".join(f"{line}{one.text}\n" for one in FORMS))
    out = tmp_path / "out.tgz"
    env = {**os.environ, "PDCTL_HOME": str(root), "MY_SERVICE_TOKEN": "own-T0ken-of-this-shell"}
    argv = [sys.executable, "-m", "pdctl", "doctor", "--run", "blue", "--static", "--bundle", str(out)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 1, 4), done.stderr
    assert f"wrote {out}" in done.stderr
    files = packed(out)
    whole = "\n".join((*files, *files.values()))
    found = [(form.name, secret) for form in FORMS for secret in form.secrets if secret in whole]
    found += [(form.name, "as JSON") for form in FORMS for secret in form.secrets if json.dumps(secret)[1:-1] in whole]
    assert found == []
    assert files["out/run/run.json"].count(GONE) > 100
    assert len(json.loads(files["out/run/plan.json"])["notes"]) == len(FORMS)
    assert json.loads(files["out/run/run.json"])["name"] == "blue"


def test_what_a_name_gave_away_is_found_without_its_name(tmp_path: Path) -> None:
    files = {
        "run.json": json.dumps({"argv": ["--api-key", HEX], "cwd": "/srv"}),
        "log-lines.txt": f"PD209 p.log:3: wrong key {HEX} from 10.0.0.1, request 67bb508ed39b4c6c9db20b4beddf121a\n",
        f"{PLAIN}.txt": "a file named after a known secret",
    }
    bundle.write(tmp_path / "out.tgz", files, known=[PLAIN, BASE])
    out = packed(tmp_path / "out.tgz")
    whole = "\n".join((*out, *out.values()))
    assert HEX not in whole
    assert PLAIN not in whole
    assert "request 67bb508ed39b4c6c9db20b4beddf121a" in whole


def test_of_an_environment_only_what_diagnosis_needs_is_kept(tmp_path: Path) -> None:
    variables = {"UCX_TLS": "tcp", "NCCL_DEBUG": "INFO", "SGLANG_HOST_IP": "10.0.0.1", "MY_THING": "blue sky"}
    files = {
        "run.json": json.dumps({"deployment": {"roles": [{"env": [list(pair) for pair in variables.items()]}]}}),
        "plan.json": json.dumps({"instances": [{"env": variables}]}),
        "topology.yaml": "roles:\n  prefill:\n    env:\n" + "".join(f"      {k}: {v}\n" for k, v in variables.items()),
    }
    bundle.write(tmp_path / "out.tgz", files)
    for name, text in packed(tmp_path / "out.tgz").items():
        if not name.endswith("REDACTED.txt"):
            assert "blue sky" not in text, name
            assert "MY_THING" in text, name  # that it is set may be the answer
            assert all(value in text for value in ("tcp", "INFO", "10.0.0.1")), name


def recorded() -> list[Path]:
    return sorted(path for path in (DATA / "logs").iterdir() if path.suffix in (".log", ".txt"))


@for_each("path", recorded(), ids=lambda path: path.name)
def test_recorded_logs_lose_prompts_and_nothing_else(path: Path) -> None:
    text = path.read_text(encoding="utf-8", errors="replace")
    clean, taken, _ = remove_secrets(text)
    prose = {FLAG} if "the shared --api-key gates" in text else set()  # two words of smg's warning go with it
    assert set(taken) <= {PROMPT, TOKENS} | prose, taken
    for pattern in (r"room[=: ]+\d+", r"rid[=:]+'?[\w-]+", r"\d+\.\d+\.\d+\.\d+:\d+", r"[0-9a-f]{32}"):
        assert re.findall(pattern, clean) == re.findall(pattern, _without_prompts(text)), pattern


def _without_prompts(text: str) -> str:
    """A prompt may hold what looks like a room."""
    for span in sorted(bundle.prompts(text), key=lambda span: -span.start):
        text = text[: span.start] + GONE + text[span.end :]
    return text


KEPT = (
    "image lmsysorg/sglang@sha256:4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945",
    "commit 4eec8d3f0f5a1c2b3d4e5f60718293a4b5c6d7e8 of main",
    "nixl agent_name='3f2b8c1e-7d4a-4e6b-9c0d-1a2b3c4d5e6f' registered",
    "model_path='/models/cache/huggingface/hub/models--Qwen--Qwen3-Coder-480B-A35B-Instruct-FP8/snapshots/0a1b2c3d'",
    "DeepSeek-R1-Distill-Llama-70B-AWQ-Int4 served as deepseek-ai/DeepSeek-V3.1-Terminus",
    "chatcmpl-RXIx5TlLGn1Dr8vSobT1ly7a, HEALTH_CHECK_73c72aa9d5494672ac3a8fd836d4baa2",
    "mooncake_session_id=10.0.0.1:16237, session_id: 10.0.0.2:12001",
    "token usage: 0.93, #token: 4096, #new-token: 1024, max_new_tokens=16, first_token_time=1.5",
    "tokenizer_path='Qwen/Qwen3-8B', skip_tokenizer_init=False, tokenizer_mode='auto'",
    "author: someone, authority=node-7, passthrough=true, bypass=1, compass=north, passed=4",
    "HTTP_PROXY unset; key=room cache_key=12 pkey_index=0 MC_PKEY_INDEX=0",
    "--api-key-file /etc/pdctl/key --deployment-secret-file /run/secret",
    'export API_KEY=$HF_TOKEN; python -m sglang.launch_server --api-key "${API_KEY}"',
    "secretKeyRef:\n  name: hf\n  key: token\n",
    "http://10.0.0.1:30000/generate?room=5111113946003395278&stream=true",
    "http://[fd00::1]:30000/health and tcp://10.0.0.1:41233",
    "/usr/lib/python3.11/site-packages/sglang/srt/disaggregation/nixl/conn.py:412",
    "GPU-8f6e2c3a-1b2c-3d4e-5f60-718293a4b5c6 mlx5_0:1 fe80::a288:c2ff:fe12:3456",
)


@for_each("text", KEPT)
def test_what_diagnosis_needs_stays(text: str) -> None:
    assert remove_secrets(text)[:2] == (text, {})
