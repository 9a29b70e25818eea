"""What every static finding says: what was observed, what is expected, and one thing to do."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from pdctl.doctor import static
from pdctl.doctor.check import Finding, Skipped, Unknown
from pdctl.doctor.check_run import WRITTEN_CHECKS
from tests.cases import for_each
from tests.doctor.fixtures import static_bootstrap, static_pairing, static_upkeep
from tests.doctor.written import ENGINE, LAUNCH_ROUTER, Fixture, found, script

FIXTURES: dict[str, Fixture] = {
    **static_bootstrap.FIXTURES,
    **static_pairing.FIXTURES,
    **static_upkeep.FIXTURES,
}
# The first word of a fix: it says what to do.
IMPERATIVES = (
    "add", "drop", "export", "give", "list", "make", "move", "pin", "refuse", "remove", "rename", "run", "send", "set",
    "start", "unset", "update", "use", "write",
)  # fmt: skip


def raised(code: str) -> list[Finding]:
    facts = FIXTURES[code].raising()
    judged = [check.judge(facts) for check in WRITTEN_CHECKS if check.code == code]  # type: ignore[arg-type]
    told = [each for verdict in judged if not isinstance(verdict, (Skipped, Unknown)) for each in verdict]
    assert told
    return told


@for_each("code", FIXTURES)
def test_it_says_what_is_what_should_be_and_what_to_do(code: str) -> None:
    for one in raised(code):
        assert one.headline
        assert one.observed
        assert one.expected
        assert one.observed != one.expected
        assert one.evidence
        assert one.fix.split()[0] in IMPERATIVES, one.fix
        assert "\n" not in one.fix
        assert not re.search(r"(?<!\$)\{\w+\}|\bNone\b", f"{one.headline} {one.fix} {one.observed} {one.expected}")


def calls() -> list[tuple[str, ast.Call]]:
    """Every `finding(…)` in the static half."""
    return [
        (f"{path.name}:{node.lineno}", node)
        for path in sorted(Path(next(iter(static.__path__))).glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "finding"
    ]


@for_each(("place", "call"), calls(), ids=lambda each: each if isinstance(each, str) else "")
def test_none_is_written_without_an_expectation(place: str, call: ast.Call) -> None:
    """Those too that no fixture reaches."""
    given = (
        call.args[3]
        if len(call.args) > 3
        else next((key.value for key in call.keywords if key.arg == "expected"), None)
    )
    assert given is not None, place
    assert not (isinstance(given, ast.Constant) and not given.value), place


def test_what_a_decode_dials_without_a_port_is_named_with_host_and_prefill() -> None:
    (one,) = found(
        script(
            f"{ENGINE} --model-path m --disaggregation-mode prefill --host 10.0.0.1 --port 30000",
            f"{ENGINE} --model-path m --disaggregation-mode prefill --host 10.0.0.1 --port 30010 "
            "--disaggregation-bootstrap-port 8999",
            f"{ENGINE} --model-path m --disaggregation-mode decode --host 10.0.0.1 --port 30001",
            f"{LAUNCH_ROUTER} --pd-disaggregation --prefill http://10.0.0.1:30000 --prefill http://10.0.0.1:30010 "
            "--decode http://10.0.0.1:30001",
        ),
        "PD201",
    )
    assert one.observed == "10.0.0.1:8998 (prefill:30000)"
    assert one.expected == "10.0.0.1:8999"
    assert one.fix == "start the router with the port of every prefill: --prefill http://10.0.0.1:30010 8999"


def test_a_router_of_a_script_is_found_at_its_own_line() -> None:
    router = f"{LAUNCH_ROUTER} --pd-disaggregation --decode http://a:1"
    (one,) = found(script(f"{ENGINE} --disaggregation-mode prefill", router), "PD618")
    assert one.evidence == ("run.sh:3: router",)
