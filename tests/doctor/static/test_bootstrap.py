"""Which bootstrap port a router sends, and what becomes of it."""

from __future__ import annotations

from pdctl.catalogue.entry import Severity
from pdctl.doctor.check import Facts
from tests.cases import for_each
from tests.doctor.written import ENGINE, LAUNCH_ROUTER, PREFILL, found, manifest, pods, script, topology


def host(
    router: str, *, first: str = "", second: str = "--disaggregation-bootstrap-port 8999", decode: str = ""
) -> Facts:
    """Two prefills on one host at 30000 and 30010, a decode at 30020, and a router."""
    return script(
        f"{ENGINE} {PREFILL} {first}",
        f"{ENGINE} {PREFILL} --port 30010 {second}",
        f"{ENGINE} --model-path m --disaggregation-mode decode --port 30020 {decode}",
        f"{LAUNCH_ROUTER} --pd-disaggregation --decode http://127.0.0.1:30020 {router}",
    )


ONE, TWO = "--prefill http://127.0.0.1:30000", "--prefill http://127.0.0.1:30010"


@for_each(
    ("router", "decode", "null", "lucky"),
    [
        (f"{ONE} {TWO}", "", {"prefill:30010"}, {"prefill:30000"}),
        (f"{ONE} none {TWO} none", "", {"prefill:30010"}, {"prefill:30000"}),
        (f"{ONE} 8998 {TWO}", "", {"prefill:30010"}, set()),
        (f"{ONE} {TWO} 8999", "", set(), {"prefill:30000"}),
        (f"{ONE} {TWO}", "--disaggregation-bootstrap-port 8999", {"prefill:30000"}, {"prefill:30010"}),
        (f"{ONE} {TWO}", "--disaggregation-bootstrap-port 7", {"prefill:30000", "prefill:30010"}, set()),
        (f"{ONE} {TWO}", "--disaggregation-bootstrap-port $PORT", {"prefill:30000", "prefill:30010"}, set()),
        (f"{ONE} $PORT {TWO} $OTHER", "", set(), set()),
        (f"{ONE} 8998 {TWO} 8999", "", set(), set()),
    ],
)
def test_a_null_is_an_error_unless_every_decode_has_that_very_port(
    router: str, decode: str, null: set[str], lucky: set[str]
) -> None:
    facts = host(router, decode=decode)
    assert {each.instance for each in found(facts, "PD201")} == null
    assert {each.instance for each in found(facts, "PD207")} == lucky


def test_what_a_null_becomes_is_said_with_both_places() -> None:
    (said,) = found(host(f"{ONE} 8998 {TWO}"), "PD201")
    assert (said.observed, said.expected) == ("127.0.0.1:8998 (prefill:30000)", "127.0.0.1:8999")
    assert said.fix.endswith("--prefill http://127.0.0.1:30010 8999")
    assert said.evidence == (
        "run.sh:5: --prefill http://127.0.0.1:30010",
        "run.sh:3: --disaggregation-bootstrap-port 8999",
    )


def test_two_decodes_must_both_be_lucky() -> None:
    deployment = script(
        f"{ENGINE} {PREFILL}",
        f"{ENGINE} --model-path m --disaggregation-mode decode --port 30020",
        f"{ENGINE} --model-path m --disaggregation-mode decode --port 30021 --disaggregation-bootstrap-port 9000",
        f"{LAUNCH_ROUTER} --pd-disaggregation {ONE} --decode http://127.0.0.1:30020 --decode http://127.0.0.1:30021",
    )
    (said,) = found(deployment, "PD201")
    assert said.observed == "127.0.0.1:8998 or 127.0.0.1:9000"


@for_each(
    ("flags", "severity"),
    [
        ("--prefill http://a:1", Severity.WARNING),
        ("--prefill http://a:1 --prefill http://b:1", Severity.ERROR),
        ("--prefill http://a:1 8998 --prefill http://b:1", Severity.ERROR),
    ],
)
def test_a_router_alone_is_judged_by_what_it_says(flags: str, severity: Severity) -> None:
    facts = script(f"{LAUNCH_ROUTER} --pd-disaggregation {flags} --decode http://c:1")
    assert {each.severity for each in found(facts, "PD201")} == {severity}


def test_the_fix_for_several_prefills_gives_each_its_own_option() -> None:
    (said,) = found(
        script(f"{LAUNCH_ROUTER} --pd-disaggregation --prefill http://a:1 --prefill http://b:1 --decode http://c:1"),
        "PD201",
    )
    assert said.fix.endswith(": --prefill http://a:1 PORT --prefill http://b:1 PORT")


def test_prefills_of_different_hosts_may_share_a_port_by_luck() -> None:
    assert not found(pods(router="--prefill http://prefill:30000 --decode http://decode:30000"), "PD201")
    assert found(pods(router="--prefill http://prefill:30000 --decode http://decode:30000"), "PD207")


@for_each(
    ("ports", "codes"),
    [
        ("8998 8999", {}),
        ("9000 8999", {"PD202": {"prefill:30000"}}),
        ("9000 9001", {"PD202": {"prefill:30000", "prefill:30010"}}),
        ("30000 8999", {"PD206": {"prefill:30000"}}),
        ("8999 8998", {"PD203": {"prefill:30000", "prefill:30010"}}),
        ("8999 8999", {"PD203": {"prefill:30000"}}),
    ],
)
def test_a_port_is_right_wrong_anothers_or_the_http_port(ports: str, codes: dict[str, set[str]]) -> None:
    first, second = ports.split()
    facts = host(f"{ONE} {first} {TWO} {second}")
    told = {code: {each.instance for each in found(facts, code)} for code in ("PD202", "PD203", "PD206")}
    assert {code: names for code, names in told.items() if names} == codes


def test_the_rust_server_listens_on_its_http_port() -> None:
    rust = "SGLANG_RUST_SERVER=1"
    right = script(f"{rust} {ENGINE} {PREFILL}", f"{LAUNCH_ROUTER} --pd-disaggregation {ONE} 30000")
    wrong = script(f"{rust} {ENGINE} {PREFILL}", f"{LAUNCH_ROUTER} --pd-disaggregation {ONE} 8998")
    clash = script(f"{rust} {ENGINE} {PREFILL} --disaggregation-bootstrap-port 9000")
    assert not found(right, "PD219") + found(right, "PD206") + found(right, "PD202")
    assert [(each.observed, each.expected) for each in found(wrong, "PD219")] == [("8998", "30000")]
    assert [(each.observed, each.expected) for each in found(clash, "PD219")] == [("9000", "30000")]


def test_a_plan_hands_out_every_port() -> None:
    facts = topology("roles.prefill.instances=3")
    assert not [each for code in ("PD201", "PD202", "PD203", "PD206", "PD207") for each in found(facts, code)]


RBG = """
kind: RoleBasedGroup
metadata: {{name: pd}}
spec:
  roles:
    - name: prefill
      replicas: 2
      template:
        spec:
          containers:
            - command: [python3, -m, sglang.launch_server, --disaggregation-mode, prefill]
    - name: router
      template:
        spec:
          containers:
            - command: [python3, -m, sglang_router.launch_router, --pd-disaggregation, {words}]
"""


@for_each(
    ("words", "listed"),
    [
        ("--prefill, 'http://pd-prefill-0.pd:30000', '8998'", "1"),
        ("--prefill, 'http://pd-prefill-0.pd:30000', '8998', --prefill, 'http://pd-prefill-1.pd:30000', '8998'", ""),
        ("--prefill, 'http://elsewhere:30000', '8998'", ""),
        ("--service-discovery", ""),
    ],
)
def test_pods_are_known_by_their_names_and_counted(words: str, listed: str) -> None:
    assert [each.observed for each in found(manifest(RBG.format(words=words)), "PD216")] == ([listed] if listed else [])
