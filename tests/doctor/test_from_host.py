"""The command to paste on another host, run as it would be pasted."""

from __future__ import annotations

import shutil
import socket
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.doctor import other_host
from pdctl.errors import UsageError
from tests.fleet.conftest import closed_port


def run(command: str, *around: str) -> str:
    done = subprocess.run([*around, "bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_tells_what_is_reached_and_why_not() -> None:
    closed = closed_port()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        command = other_host.shell_line(
            [("127.0.0.1", port), ("127.0.0.1", closed), ("::1", closed), ("127.0.0.1", port)]
        )
        assert command.count("\n") == 0
        found = other_host.read("user@node:~$ python3 …\n[pod/x] " + run(command) + "user@node:~$ ")
    assert (found.host, found.missing) == (socket.gethostname(), 0)
    reasons = {(one.host, one.port): one.reason for one in found.reaches}
    assert (reasons["127.0.0.1", port], reasons["127.0.0.1", closed]) == ("", "connection refused")
    assert [(one.host, one.port) for one in found.reaches if one.reached] == [("127.0.0.1", port)]
    assert len(found.reaches) == 3


def test_a_network_that_reaches_nothing() -> None:
    """In a network namespace of its own, where even loopback is down."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rn", "true"], check=False).returncode:
        pytest.skip("no network namespaces for this user")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = other_host.shell_line([listener.getsockname()], wait=5)
        found = other_host.read(run(command, "unshare", "-rn"))
    assert [one.reason for one in found.reaches] == ["network is unreachable"]


def test_a_name_nobody_knows_and_a_port_that_swallows() -> None:
    with socket.socket() as mute, socket.socket() as first, socket.socket() as second:
        mute.bind(("127.0.0.1", 0))
        mute.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(mute.getsockname())
        command = other_host.shell_line([mute.getsockname(), ("no such host'\"$(x)", 1)], wait=0.2)
        found = {one.host: one.reason for one in other_host.read(run(command)).reaches}
    assert found["127.0.0.1"] == "no connection within 0.2 s"
    assert found["no such host'\"$(x)"]


def test_output_that_was_cut_says_how_much_is_missing() -> None:
    head = '{"source": "n", "targets": 3, "pdctl": "pdctl.reach/1"}\n'
    line = '{"host": "a", "port": 1, "reason": "", "seconds": 0.1, "pdctl": "pdctl.reach/1"}\n'
    assert other_host.read(head + line).missing == 2
    with pytest.raises(UsageError, match=r"pdctl\.reach/1"):
        other_host.read("bash: python3: command not found\n")


def test_too_many_targets_for_one_line() -> None:
    with pytest.raises(UsageError, match="do not fit"):
        other_host.shell_line((f"10.0.{i // 256}.{i % 256}", 8998) for i in range(6000))


@given(st.text(max_size=80), st.text(max_size=80))
@settings(max_examples=80, deadline=None)
def test_any_output_is_read_or_refused(before: str, inside: str) -> None:
    head = '{"source": "n", "targets": 1, "pdctl": "pdctl.reach/1"}'
    found = other_host.read(f'{before}\n{head}\n{{"pdctl.reach/1": "{inside}"}}\n{head}{inside}')
    assert found.reaches == ()
