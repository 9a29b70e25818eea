"""What a release or a router does not take is said by the plan, with what it takes instead."""

from __future__ import annotations

import pytest

from pdctl.engines.routers.router_flags import arguments
from pdctl.layout.instance_plan import Plan
from pdctl.router import router_args

from .conftest import Sheet

ROLES = "roles: {prefill: {instances: 2}, decode: {}}\n"


def planned(sheet: Sheet, release: str, args: str = "{}", more: str = "") -> Plan:
    return sheet.plan(
        f"model: {{path: org/name}}\nengine: {{kind: sglang, version: {release}, args: {args}}}\n{ROLES}{more}"
    )


def problems(plan: Plan) -> list[str]:
    return list(dict.fromkeys(f"{problem.code}: {problem.message.partition('.args.')[2]}" for problem in plan.problems))


def cautions(plan: Plan, code: str) -> list[str]:
    return list(dict.fromkeys(warning.message for warning in plan.warnings if warning.code == code))


@pytest.mark.parametrize(
    ("release", "args", "expected"),
    [
        ("0.5.18", "{cuda-graph-max-bs: 64}", []),
        (
            "0.5.23",
            "{cuda-graph-max-bs: 64}",
            [
                "flag-not-in-release: cuda-graph-max-bs: sglang 0.5.23 has no --cuda-graph-max-bs (only until 0.5.20); "
                "it has --cuda-graph-max-bs-decode"
            ],
        ),
        ("0.5.23", "{cuda-graph-max-bs: false}", []),  # no flag is written
        ("0.5.23", "{enable-metrics: 5}", ["flag-value: enable-metrics: --enable-metrics takes no value"]),
        ("0.5.23", "{watchdog-timeout: true}", ["flag-value: watchdog-timeout: --watchdog-timeout takes one value"]),
        ("0.5.23", "{watchdog-timeout: [1, 2]}", ["flag-value: watchdog-timeout: --watchdog-timeout takes one value"]),
        ("0.5.23", "{cuda-graph-bs-decode: [1, 2]}", []),
        ("0.5.3", "{load-balance-method: minimum_tokens}", []),
        (
            "0.5.8",
            "{load-balance-method: minimum_tokens}",
            [
                "flag-value: load-balance-method: minimum_tokens is none of auto, round_robin, follow_bootstrap_room, "
                "total_requests, total_tokens"
            ],
        ),
    ],
)  # fmt: skip
def test_flags_and_values(sheet: Sheet, release: str, args: str, expected: list[str]) -> None:
    assert [said.removesuffix(f" (sglang {release})") for said in problems(planned(sheet, release, args))] == expected


def test_a_release_between_two_is_given_the_benefit_of_the_doubt(sheet: Sheet) -> None:
    plan = planned(sheet, "0.5.20.post1", "{enable-pd-role-switch: true}")
    assert plan.feasible
    assert "sglang 0.5.20.post1 has no --enable-pd-role-switch (since 0.5.21)" in cautions(plan, "flag-in-doubt")[0]


@pytest.mark.parametrize(
    ("release", "fine"), [("0.5.8", False), ("0.5.13", True), ("0.5.12", False), ("0.5.12.post2", True)]
)
def test_a_transfer_backend_belongs_to_a_release(sheet: Sheet, release: str, fine: bool) -> None:
    plan = planned(sheet, release, more="transfer: {backend: mooncake_tcp}\n")
    assert plan.feasible is fine
    assert fine or plan.problems[0].code == "backend-not-in-release"
    assert bool(cautions(plan, "flag-in-doubt")) is (release == "0.5.12.post2")


@pytest.mark.parametrize(("release", "fine"), [("0.5.3", True), ("0.5.8", False), ("0.5.23", False)])
def test_a_served_name_has_no_colon(sheet: Sheet, release: str, fine: bool) -> None:
    text = f"model: {{path: org/name, served-name: 'a:b'}}\nengine: {{kind: sglang, version: {release}}}\n{ROLES}"
    plan = sheet.plan(text)
    assert [problem.nearest for problem in plan.problems] == ([] if fine else [("--set model.served-name=a-b",)])


def test_the_environment_is_checked_once_for_both_roles(sheet: Sheet) -> None:
    more = "transfer: {env: {SGLANG_DISAGGREGATION_WAITING_TIMEOUT: 60s}}\n"
    plan = planned(sheet, "0.5.23", more=more)
    (said,) = cautions(plan, "environment")
    assert said.startswith("prefill and decode: SGLANG_DISAGGREGATION_WAITING_TIMEOUT=60s is not a whole number")
    assert not cautions(planned(sheet, "0.5.23", more=more.replace("60s", "60")), "environment")


@pytest.mark.parametrize(
    ("kind", "args", "said"),
    [
        ("sglang-router", "{cache-threshold: 0.3, dp-aware: true, ca-cert-paths: [a, b]}", ""),
        ("smg", "{pd-admission-wait-secs: 5}", ""),
        ("sglang-router", "{pd-admission-wait-secs: 5}", "sglang-router 0.3.2 has no --pd-admission-wait-secs"),
        (
            "sglang-router",
            "{eviction-interval: 5}",
            "--eviction-interval (the last release with it was 0.1.9)",
        ),
        ("sglang-router", "{history-backend: disk}", "disk is none of memory, none, oracle, postgres, redis"),
        ("mini-lb", "{cache-treshold: 1}", "did you mean --cache-threshold?"),
        ("smg", "{dp-aware: 1}", "--dp-aware takes no value (smg 1.13.0)"),
        ("smg", "{queue-size: true}", "--queue-size takes one value (smg 1.13.0)"),
    ],
)
def test_flags_of_published_routers_are_warnings(sheet: Sheet, kind: str, args: str, said: str) -> None:
    plan = planned(sheet, "0.5.23", more=f"router: {{kind: {kind}, args: {args}}}\n")
    assert plan.feasible
    assert [said in each for each in cautions(plan, "router-flag")] == ([True] if said else [])


def test_flags_of_our_own_router_are_certain(sheet: Sheet) -> None:
    plan = sheet.plan(f"{ROLES}router: {{args: {{retrys: 2}}}}\n")
    assert [(each.code, each.message) for each in plan.problems] == [
        ("router-flag", "router.args.retrys: pdctl's router has no --retrys; did you mean --retries?")
    ]
    assert sheet.plan(f"{ROLES}router: {{args: {{retries: 2}}}}\n").feasible


def test_the_table_of_our_own_router_is_its_parsers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        router_args.parse(["--help"])
    words = capsys.readouterr().out.replace(",", " ").replace(")", " ").split()
    shown = {word.removeprefix("--") for word in words if word.startswith("--") and word != "--help"}
    assert set(arguments("pdctl")) == shown
