"""The secret a deployment's processes share: who may read it, and what is made of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pdctl.deployment_secret import ENV, DeploymentSecret, choose
from pdctl.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_minted_secret_is_written_for_its_user_alone_and_read_back(tmp_path: Path) -> None:
    secret, path = DeploymentSecret.mint(), tmp_path / "secret"
    path.write_text("an older one, open to everybody")
    path.chmod(0o644)
    secret.write(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert DeploymentSecret.from_environment({ENV: str(path)}) == secret
    assert secret.key.decode() not in repr(secret)


def test_without_the_variable_there_is_no_secret() -> None:
    assert DeploymentSecret.from_environment({}) is None
    assert DeploymentSecret.from_environment({ENV: ""}) is None


def test_a_mac_holds_for_its_purpose_its_parts_and_their_borders_only() -> None:
    secret = DeploymentSecret.mint()
    mac = secret.mac("frame", b"ab", b"c")
    assert secret.verify(mac, "frame", b"ab", b"c")
    assert not secret.verify(mac, "frame", b"a", b"bc")
    assert not secret.verify(mac, "route", b"ab", b"c")
    assert not DeploymentSecret.mint().verify(mac, "frame", b"ab", b"c")
    assert not secret.verify(b"", "frame", b"ab", b"c")
    assert secret.token("router") != secret.token("engine")


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        (b"x" * 15, 0o600, "16 to 4096 bytes, this one 15"),
        (b"x" * 5000, 0o600, "16 to 4096 bytes"),
        (b"x" * 40, 0o640, "other users may read"),
    ],
)
def test_a_secret_that_will_not_do_is_refused_by_name(tmp_path: Path, content: bytes, mode: int, says: str) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(UsageError, match=says) as error:
        DeploymentSecret.read(path)
    assert str(path) in error.value.message


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path in (tmp_path / "fifo", tmp_path / "absent", tmp_path):
        with pytest.raises(UsageError, match="deployment secret"):
            DeploymentSecret.read(path)


def test_the_flag_decides_over_the_environment(tmp_path: Path) -> None:
    DeploymentSecret.mint().write(tmp_path / "mine")
    environ = {ENV: "/nowhere"}
    with pytest.raises(UsageError, match="/nowhere: cannot read"):
        choose("", environ)
    choose(str(tmp_path / "mine"), environ)
    assert environ[ENV] == str(tmp_path / "mine")
