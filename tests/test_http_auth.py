"""Who may ask what of an HTTP server: keys, tokens, signatures, and what is shown of them."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pdctl.deployment_secret import ENV, DeploymentSecret
from pdctl.errors import UsageError
from pdctl.http_auth import (
    LARGEST_SIZE,
    MAX_NONCES,
    TOKEN,
    WINDOW,
    AccessLevel,
    Gate,
    Keys,
    Verifier,
    add_flags,
    chosen,
    declared_size,
    masked,
    sign,
)
from tests.cases import for_each

if TYPE_CHECKING:
    from pathlib import Path

SECRET = DeploymentSecret(b"the same in every process that collects the tests")
TARGET = "/workers"


def verdict(keys: Keys, level: AccessLevel, bearer: str = "", signature: str = "") -> tuple[bool, bool]:
    """Whether it may pass, and whether it is an admin's."""
    authorization = f"Bearer {bearer}".encode() if bearer else b""
    judged = Gate(keys).judge(level, authorization, signature, "POST", TARGET, b"{}")
    return not judged.refusal, judged.admin


@for_each(
    ("keys", "level", "bearer", "expected"),
    [
        (Keys(), AccessLevel.ADMIN, "", (True, True)),  # as SGLang: nothing is asked for
        (Keys(api="k"), AccessLevel.OPEN, "", (True, False)),
        (Keys(api="k"), AccessLevel.CLIENT, "", (False, False)),
        (Keys(api="k"), AccessLevel.CLIENT, "x", (False, False)),
        (Keys(api="k"), AccessLevel.CLIENT, "k", (True, True)),
        (Keys(api="k"), AccessLevel.ADMIN, "k", (True, True)),
        (Keys(api="k", admin="a"), AccessLevel.ADMIN, "k", (False, False)),
        (Keys(api="k", admin="a"), AccessLevel.ADMIN, "a", (True, True)),
        (Keys(api="k", admin="a"), AccessLevel.CLIENT, "a", (True, True)),
        (Keys(admin="a"), AccessLevel.CLIENT, "", (True, False)),
        (Keys(secret=SECRET), AccessLevel.CLIENT, "", (True, False)),
        (Keys(secret=SECRET), AccessLevel.ADMIN, "", (False, False)),
        (Keys(secret=SECRET), AccessLevel.ADMIN, SECRET.key.decode(), (False, False)),
        (Keys(secret=SECRET), AccessLevel.ADMIN, SECRET.token(TOKEN), (True, True)),
        (Keys(secret=SECRET), AccessLevel.ADMIN, SECRET.token("another purpose"), (False, False)),
        (Keys(api="k", secret=SECRET), AccessLevel.ADMIN, "k", (False, False)),
        (Keys(api="k", secret=SECRET), AccessLevel.CLIENT, SECRET.token(TOKEN), (True, True)),
    ],
)
def test_who_may_pass(keys: Keys, level: AccessLevel, bearer: str, expected: tuple[bool, bool]) -> None:
    assert verdict(keys, level, bearer) == expected


def test_a_signature_is_an_admins_once() -> None:
    gate = Gate(Keys(api="k", secret=SECRET))
    signature = sign(SECRET, "POST", TARGET, b"{}")
    first, again = (gate.judge(AccessLevel.ADMIN, b"", signature, "POST", TARGET, b"{}") for _ in range(2))
    assert (first.refusal, first.admin) == ("", True)
    assert again.refusal == "POST /workers: it was sent before"


@for_each(
    ("method", "target", "body", "why"),
    [
        ("DELETE", TARGET, b"{}", "another deployment secret"),
        ("POST", "/workers/1", b"{}", "another deployment secret"),
        ("POST", TARGET, b"{ }", "another deployment secret"),
    ],
)
def test_a_signature_holds_for_its_request_only(method: str, target: str, body: bytes, why: str) -> None:
    assert why in Verifier(SECRET).refuse(sign(SECRET, "POST", TARGET, b"{}"), method, target, body)


def test_signatures_grow_old_and_the_memory_of_them_is_bounded() -> None:
    verifier, now = Verifier(SECRET), 1_000_000.0
    for off in (-WINDOW - 1, WINDOW + 1):
        assert "by the sender's clock" in verifier.refuse(
            sign(SECRET, "PUT", "/a", b"", now + off), "PUT", "/a", b"", now
        )
    old = sign(SECRET, "PUT", "/a", b"", now)
    assert verifier.refuse(old, "PUT", "/a", b"", now) == ""
    for later in range(0, int(WINDOW), 7):
        assert verifier.refuse(old, "PUT", "/a", b"", now + later) == "it was sent before"
    assert "by the sender's clock" in verifier.refuse(old, "PUT", "/a", b"", now + 3 * WINDOW)
    for junk in ("", "1", "1 2 3 4", "1 ٣ " + "a" * 24 + " x", "9 " * 50, f"1 {'9' * 400} {'a' * 24} b"):
        assert verifier.refuse(junk, "PUT", "/a", b"", now)
    verifier._seen.update((str(number), now) for number in range(MAX_NONCES))
    assert "signed requests came" in verifier.refuse(sign(SECRET, "PUT", "/a", b"", now), "PUT", "/a", b"", now)
    assert verifier.refuse(sign(SECRET, "PUT", "/a", b"", now + 500), "PUT", "/a", b"", now + 500) == ""
    assert len(verifier._seen) == 1


def parsed(*argv: str, environ: dict[str, str] | None = None) -> Keys:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return chosen(vars(parser.parse_args(argv)), environ or {})


def test_keys_come_from_a_flag_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(" from-file\n")
    assert parsed("--api-key", "k").api == "k"
    assert parsed("--api-key-file", str(file), environ={"PDCTL_API_KEY": "e"}).api == "from-file"
    assert parsed(environ={"PDCTL_API_KEY": "e", "PDCTL_ADMIN_API_KEY": "a"}) == Keys("e", "a")
    assert repr(parsed("--api-key", "hidden")) == "Keys(api)"
    with pytest.raises(UsageError, match="--api-key and --api-key-file are both given"):
        parsed("--api-key", "k", "--api-key-file", str(file))


@pytest.mark.parametrize("content", [b"", b"\n", b"two words", b"x" * 5000, b"k\xc3\xa9", b"a\x00b"])
def test_files_that_hold_no_key(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(UsageError, match="an API key is one word"):
        parsed("--api-key-file", str(file))


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "missing", "."):
        with pytest.raises(UsageError):
            parsed("--api-key-file", str(tmp_path / name))


def test_a_command_line_is_shown_without_its_keys() -> None:
    assert masked(["x", "--api-key", "k", "--admin-api-key=a", "--api-key-file", "f"]) == [
        "x", "--api-key", "***", "--admin-api-key=***", "--api-key-file", "f",
    ]  # fmt: skip


def test_people_get_the_admin_token_from_the_file(tmp_path: Path) -> None:
    SECRET.write(tmp_path / "s")
    words = [sys.executable, "-m", "pdctl.http_auth", str(tmp_path / "s")]
    shown = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60, env={**os.environ, ENV: ""})
    assert shown.stdout.strip() == SECRET.token(TOKEN)


@for_each(
    ("lengths", "size"),
    [
        ([], 0),
        ([b"0"], 0),
        ([b"17"], 17),
        ([b"0" * 5000 + b"17"], 17),
        ([b"9" * 5000], LARGEST_SIZE),
        ([b"9223372036854775807"], LARGEST_SIZE - 1),
        ([b"99999999999999999999"], LARGEST_SIZE),
        ([b"", b"5"], 0),
        ([b"+5"], 0),
    ],
)
def test_a_declared_size_is_a_number_however_it_is_written(lengths: list[bytes], size: int) -> None:
    assert declared_size([(b"host", b"x"), *((b"content-length", length) for length in lengths)]) == size
