"""Secrets and prompts in the shapes they have in runs, plans, logs that were cut, and JSON that must stay JSON."""

from __future__ import annotations

import json

from pdctl.doctor.bundle import remove_secrets
from tests.cases import for_each

KEY = "hunter2hunter2"


@for_each(
    ("text", "clean"),
    [
        (f"--api-key={KEY} --port 1", "--api-key=[redacted] --port 1"),
        (f"['--admin-api-key', '{KEY}', '--port', '1']", "['--admin-api-key', '[redacted]', '--port', '1']"),
        (f'[\n  "--api-key",\n  "{KEY}",\n  "--port"\n]', '[\n  "--api-key",\n  "[redacted]",\n  "--port"\n]'),
        (f'"api_key": "a\\"{KEY}", "port": 1', '"api_key": "[redacted]", "port": 1'),
        (f"\x1b[0m--api-key {KEY}", "\x1b[0m--api-key [redacted]"),
        (f"token=\nHF_TOKEN={KEY}\n", "token=\nHF_TOKEN=[redacted]\n"),
        (f"api_key='{KEY}", "api_key='[redacted]'"),
        ("text='the patient is ill and then the line is cu", "text='[redacted]'"),
        ("text=['the first', 'the second'], rid='a'", "text=[redacted], rid='a'"),
        ("input_ids=[[101, 7592], [102]], room=7", "input_ids=[redacted], room=7"),
        ("input_ids=[101, 7592, 10", "input_ids=[redacted]"),
        ("--api-key\n--port 30000", "--api-key\n--port 30000"),
        ("output_ids=[], text=None", "output_ids=[], text=None"),
    ],
)
def test_what_is_secret_goes_and_nothing_else(text: str, clean: str) -> None:
    assert remove_secrets(text).text == clean
    assert remove_secrets(clean).text == clean


def test_json_stays_json() -> None:
    value = {
        "api_key": KEY,
        "argv": ["--api-key", KEY, f"--hf-token={KEY}"],
        "env": {"HF_TOKEN": KEY, "PATH": "/bin"},
        "canaries": [{"text": 'a "b"\n', "ok": True}],
        "limits": {"max_total_tokens": 4096, "token": None},
    }
    for indent in (None, 1):
        text = remove_secrets(json.dumps(value, indent=indent)).text
        assert KEY not in text
        told = json.loads(text)
        assert told["env"] == {"HF_TOKEN": "[redacted]", "PATH": "/bin"}
        assert told["canaries"] == [{"text": "[redacted]", "ok": True}]
        assert told["limits"] == value["limits"]
