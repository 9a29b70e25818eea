"""Causes in the logs of real runs, counted; echoes and a healthy start are not among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdctl.catalogue.entry import Needs
from pdctl.doctor import check_run, explanations
from pdctl.doctor.check import Depth, Facts, Report
from pdctl.doctor.gather import gather
from pdctl.doctor.request import Request
from pdctl.errors import UsageError
from tests.cases import for_each

ROOMS = Path(__file__).resolve().parents[1] / "data" / "rooms"


def read(name: str) -> Facts:
    return gather(Request(depth=Depth.STATIC, logs=(str(ROOMS / name),)))


def found(report: Report, *severities: str) -> list[tuple[str, str]]:
    return [(one.code, one.instance) for one in report.findings if one.severity.value in severities]


@for_each("name", sorted(path.name for path in ROOMS.iterdir() if "healthy" in path.name))
def test_a_healthy_run_has_nothing_to_answer_for(name: str) -> None:
    """Also where the router was up before its workers, and said so."""
    assert found(check_run.run(read(name)), "error", "warning") == []


def test_a_page_size_is_the_cause_and_the_crash_its_effect() -> None:
    report = check_run.run(read("1p1d-page-size-debug-sgl058"))
    assert [
        (one.code, any(line.startswith(explanations.EXPLAINED) for line in one.evidence)) for one in report.findings
    ] == [("PD302", False), ("PD709", True)]
    (cause,) = [one for one in report.findings if one.code == "PD302"]
    assert cause.instance == "decode0"
    assert cause.evidence[0].startswith(str(ROOMS / "1p1d-page-size-debug-sgl058" / "decode0.log:"))
    assert "Page size mismatch: prefill server has page_size=1" in cause.evidence[0]


def test_a_hundred_alike_are_one_with_a_count() -> None:
    report = check_run.run(read("1p1d-wrong-port-info-sgl0523"))
    assert found(report, "error") == [("PD205", "decode0")]
    assert report.findings[0].headline == "the log of decode0 has 100 lines that point to bootstrap-unreachable"


@pytest.mark.parametrize(
    ("refused", "answered", "severity"),
    [(2, 1, "info"), (2, 0, "error"), (3, 299, "error"), (3, 300, "info")],
)
def test_refusals_are_judged_against_what_was_answered(
    tmp_path: Path, refused: int, answered: int, severity: str
) -> None:
    """The engine's own warm-up, before it is ready, is no request."""
    failed = "Error querying dp_ranks from bootstrap: [Errno 111] Connection refused"
    warm_up = (ROOMS / "2p1d-healthy-info-sgl0523" / "decode0.log").read_text()
    assert '"POST /generate HTTP/1.1" 200' in warm_up[: warm_up.index("fired up")]
    log = [warm_up[: warm_up.index("\n", warm_up.index("fired up"))]]
    log += [f"[2026-11-21 20:17:38] {failed}"] * refused
    log += ['[2026-11-21 20:17:39] INFO:     127.0.0.1:49348 - "POST /generate HTTP/1.1" 200 OK'] * answered
    (tmp_path / "decode0.log").write_text("\n".join(log) + "\n")
    report = check_run.run(gather(Request(depth=Depth.STATIC, logs=(str(tmp_path),))))
    (one,) = [one for one in report.findings if one.code == "PD313"]
    assert one.severity.value == severity
    assert any(line.endswith("these are exceptions") for line in one.evidence) is (severity == "info")


@for_each(
    ("refused", "unknown", "answered", "severity"),
    [(12, 3, 450, "info"), (1, 1, 1, "info"), (12, 3, 30, "warning"), (2, 12, 450, "info"), (12, 3, 0, "error")],
)
def test_what_clients_ask_a_decode_to_dial_is_judged_alike_whichever_code_it_gets(
    tmp_path: Path, refused: int, unknown: int, answered: int, severity: str
) -> None:
    """A request sent straight to the decode names its own bootstrap server; no number of them is an error."""
    ready = "[2026-11-21 20:17:37] The server is fired up and ready to roll!"
    lines = [ready]
    lines += ['[2026-11-21 20:17:38] Failed to get prefill server info: 404, {"detail":"Not Found"}'] * refused
    lines += [
        "[2026-11-21 20:17:38] Could not fetch prefill parallel info from 169.254.1.1:80 after 1 attempts"
    ] * unknown
    lines += ['[2026-11-21 20:17:39] INFO:     127.0.0.1:49348 - "POST /generate HTTP/1.1" 200 OK'] * answered
    (tmp_path / "decode0.log").write_text("\n".join(lines) + "\n")
    report = check_run.run(gather(Request(depth=Depth.STATIC, logs=(str(tmp_path),))))
    assert {one.code: one.severity.value for one in report.findings} == {"PD205": severity, "PD206": severity}


def test_a_line_about_a_worker_is_kept_apart_with_its_worker_and_its_time(tmp_path: Path) -> None:
    line = "[2026-11-23 17:23:{}.000] WARNING Worker {} http://127.0.0.1:3000{} not routed to: connection refused\n"
    rows = [(1, "prefill", 1), (4, "decode", 2), (31, "prefill", 1)]
    (tmp_path / "router.log").write_text(
        "[2026-11-23 17:20:00.000] pdctl: router generation 1: python3 -m pdctl.router --port 8000\n"
        + "".join(line.format(f"{second:02}", role, port) for second, role, port in rows)
    )
    kept = gather(Request(depth=Depth.STATIC, logs=(str(tmp_path),))).logs
    assert [(one.about, one.count, one.seconds) for one in kept] == [
        ("http://127.0.0.1:30001", 2, 30.0),
        ("http://127.0.0.1:30002", 1, 0.0),
    ]
    assert kept[1].at is not None
    assert kept[0].at == kept[1].at - 3


def test_only_a_router_can_tell_that_the_client_left(tmp_path: Path) -> None:
    """An engine writes the same line for a leg that the router drops to retry its request."""
    log = {
        "router": "[2026-11-23 17:20:00.000] pdctl: router generation 1: python3 -m pdctl.router --port 8000\n"
        "[2026-11-23 17:20:09.000] Finish room=4079256317657669 rid=b75047d78420881489aec0bc3e8271c4 "
        "request_id=b75047d78420881489aec0bc3e8271c4 attempt=1 prefill=http://127.0.0.1:30000 "
        "decode=http://127.0.0.1:30001 status=- outcome=client_gone prefill_ms=- first_byte_ms=- total_ms=1000.2\n",
        "prefill-0": "[2026-11-23 17:20:00.000] pdctl: prefill-0 generation 1: python3 -m pdctl.engine --port 30000\n"
        + "[2026-11-23 17:20:09.000] Aborted 1 request(s) matching rid='74ad9ff27b00454c94b557ddc4eed3f7'\n" * 2,
    }
    for name, text in log.items():
        (tmp_path / f"{name}.log").write_text(text)
    report = check_run.run(gather(Request(depth=Depth.STATIC, logs=(str(tmp_path),))))
    said = {one.instance: (one.headline, one.fix) for one in report.findings if one.code == "PD706"}
    assert said == {
        "router": (
            "the log of router has a line that points to client-abort",
            "pdctl trace-room 4079256317657669",
        ),
        "prefill-0": (
            "the log of prefill-0 has 2 lines that point to an abort from outside, by the client or by the router",
            f"pdctl rooms {tmp_path} shows which were retried",
        ),
    }


def test_what_was_read_is_known() -> None:
    facts = read("2p1d-healthy-info-sgl0523")
    assert facts.logged == ("decode0", "prefill0", "prefill1", "router")
    assert facts.asked == (Needs.LOG,)


def test_lines_of_an_earlier_run_do_not_count() -> None:
    where = str(ROOMS / "1p1d-page-size-debug-sgl058")
    facts = gather(Request(depth=Depth.STATIC, logs=(where,), since=2e9))
    assert facts.logs == ()


def test_a_log_that_is_not_there() -> None:
    with pytest.raises(UsageError):
        gather(Request(depth=Depth.STATIC, logs=("/nowhere/at/all.log",)))


def test_a_bootstrap_port_that_answers_404_is_another_server_s(tmp_path: Path) -> None:
    """A restart of the prefill, which is what PD209 asks for, would change nothing."""
    line = '[2026-11-21 02:04:3{}] Failed to get prefill server info: 404, {{"detail":"Not Found"}}\n'
    (tmp_path / "decode-0.log").write_text("".join(line.format(second) for second in range(5)))
    (found,) = check_run.run(gather(Request(depth=Depth.STATIC, logs=(str(tmp_path),)))).findings
    assert (found.code, found.instance) == ("PD206", "decode-0")
    assert found.fix == "start the router with --prefill URL PORT"


@for_each(("name", "counted"), [("pdctl-canary-zzz", True), ("pdctl-canary-7", True), ("pdctl-canary-66", False)])
def test_lines_of_doctors_own_canaries_do_not_count_and_those_of_a_client_with_such_an_id_do(
    tmp_path: Path, name: str, counted: bool
) -> None:
    line = f"[2026-11-23 17:20:09.000] Room step: room=102 rid='{name}' phase=aborted\n"
    start = "[2026-11-23 17:20:00.000] pdctl: prefill-0 generation 1: python3 -m pdctl.engine --port 30000\n"
    (tmp_path / "prefill-0.log").write_text(start + line)
    logs = gather(Request(depth=Depth.STATIC, logs=(str(tmp_path),))).logs
    assert bool(logs) is counted
