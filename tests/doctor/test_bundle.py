"""What leaves the machine in a support bundle: everything a colleague needs, no secret and no prompt."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

import pytest

from pdctl.doctor import bundle
from pdctl.doctor.bundle import GONE, remove_secrets
from pdctl.errors import UsageError
from tests.cases import for_each

if TYPE_CHECKING:
    from pathlib import Path

SECRETS = [
    ("python -m sglang.launch_server --api-key s3cr3t-value --port 30000", "s3cr3t-value"),
    ('{"api_key": "abcd1234efgh", "port": 30000}', "abcd1234efgh"),
    ("HF_TOKEN=hf_abcdefghijklmnopqrstuv", "hf_abcdefghijklmnopqrstuv"),
    ("ServerArgs(api_key='k-1234567', tp_size=4)", "k-1234567"),
    ("Authorization: Bearer eyJhbGciOi.J9", "eyJhbGciOi"),
    ("http://me:pa55word@10.0.0.1:30000/health", "pa55word"),
    ("admin_password: hunter2hunter2", "hunter2"),
    ("OPENAI key sk-abcdefghijklmnop1234 was used", "sk-abcdefghijklmnop1234"),
    ("Receive: obj=GenerateReqInput(rid='a', text='the patient is ill', bootstrap_room=7)", "patient"),
    ('{"messages":[{"role":"user","content":"my \\"own\\" words"}]}', "words"),
    ("obj=GenerateReqInput(input_ids=[101, 7592, 102], bootstrap_room=7)", "7592"),
]
KEPT = [
    "bootstrap_room=5111113946003395278",
    "rid='67bb508ed39b4c6c9db20b4beddf121a'",
    "max_total_tokens=4096, token usage: 0.93, #new-token: 1024, #token: 4096",
    "tokenizer_path='/srv/model', tokenizer_mode='auto'",
    "--max-total-tokens 4096 --tokenizer-path /srv/model",
    'api_key=None, "token": null',
    "http://10.0.0.1:30000/health",
]


@for_each(("text", "secret"), SECRETS)
def test_takes_out_what_is_secret(text: str, secret: str) -> None:
    clean, taken, _ = remove_secrets(text)
    assert secret not in clean
    assert GONE in clean
    assert sum(taken.values()) == 1


@for_each("text", KEPT)
def test_keeps_what_diagnosis_needs(text: str) -> None:
    assert remove_secrets(text)[:2] == (text, {})


def test_packs_every_file_and_accounts_for_what_is_gone(tmp_path: Path) -> None:
    taken = bundle.write(tmp_path / "out.tgz", {"run.json": '{"api_key": "abcd1234"}', "logs/p.log": "room=7 ok\n"})
    assert taken == {"key variable or field": 1}
    with tarfile.open(tmp_path / "out.tgz") as archive:
        names = archive.getnames()
        account = archive.extractfile("out/REDACTED.txt")
        assert account is not None
        assert account.read() == b"1 \xc3\x97 key variable or field\n"
    assert names == ["out/logs/p.log", "out/run.json", "out/REDACTED.txt"]
    assert [path.name for path in tmp_path.iterdir()] == ["out.tgz"]


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        bundle.write(tmp_path / "nowhere" / "out.tgz", {})
