"""Bootstrap servers and engines as they were found: what is a fault, what was merely not seen."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType

import pytest

from pdctl.doctor import check_run
from pdctl.doctor.check import CheckStatus, Facts, Finding
from pdctl.fleet.observations import RankAddress, Reply
from tests.cases import for_each
from tests.doctor.fixtures import recorded as real
from tests.doctor.fixtures.live import WAITING, service, without
from tests.doctor.fixtures.recorded import healthy

NOTHING: MappingProxyType[str, object] = MappingProxyType({})


def found(facts: Facts, code: str) -> list[Finding]:
    return [one for one in check_run.run(facts).findings if one.code == code]


def status(facts: Facts, code: str) -> CheckStatus:
    return {one.code: one.status for one in check_run.run(facts).checks}[code]


def rank(reason: str, tp: int = 0, ip: str = "10.0.0.1", port: int = 40001) -> RankAddress:
    return RankAddress(0, 0, tp, 0, ip, port, not reason, reason)


def test_some_ranks_are_missing() -> None:
    facts = real.info(healthy(), "prefill-0", tp_size=4)
    (one,) = found(real.boot(facts, "prefill-0", **(WAITING | {"registered": 3, "expected": 4})), "PD209")
    assert (one.instance, one.observed, one.expected) == ("prefill-0", "3", "4")


def test_what_0_5_8_says_before_any_rank_is_there() -> None:
    """200 with null sizes, where later releases say 503."""
    sizes = MappingProxyType({"prefill_attn_tp_size": None, "prefill_dp_size": None, "prefill_pp_size": None})
    facts = real.boot(healthy(), "prefill-0", style="old", topology=sizes, registered=0, ranks=())
    assert [one.instance for one in found(facts, "PD209")] == ["prefill-0"]


def test_a_rank_the_server_refuses_to_name() -> None:
    facts = real.boot(
        healthy(), "prefill-0", unranked=("dp0 cp0 tp1 pp0: 404 Bootstrap info not found",), expected=2, registered=2
    )
    (one,) = found(facts, "PD209")
    assert (one.observed, one.expected) == ("1", "2")


def test_an_instance_that_is_starting_is_not_told_to_restart() -> None:
    short = real.boot(healthy(), "prefill-0", expected=2, registered=0)
    (settled,) = found(short, "PD209")
    engines = tuple(
        dataclasses.replace(one, health=Reply("/health", 503, 0.1)) if one.endpoint.name == "prefill-0" else one
        for one in short.engines
    )
    (starting,) = found(dataclasses.replace(short, engines=engines), "PD209")
    assert settled.fix.startswith("restart the prefill")
    assert starting.headline == f"{settled.headline}; it is not up yet: /health answers 503"
    assert starting.fix.startswith("curl -sS http://")
    assert "until it answers 200" in starting.fix


@pytest.mark.parametrize("reason", ["not asked: the time for it was over", "no answer within 0.4 s"])
def test_a_rank_that_was_not_named_in_time_is_no_fault(reason: str) -> None:
    facts = real.boot(healthy(), "prefill-0", unranked=(f"dp0 cp0 tp0 pp0: {reason}",), ranks=())
    assert found(facts, "PD209") == []
    assert status(facts, "PD209") is CheckStatus.UNKNOWN


def test_ranks_that_cannot_be_reached_are_one_finding_per_prefill() -> None:
    lost = tuple(rank("connection refused", tp) for tp in range(8))
    (one,) = found(real.boot(healthy(), "prefill-0", ranks=lost), "PD210")
    assert one.observed == "10.0.0.1:40001 and 7 more"
    assert "the process that registered is gone" in one.evidence[-1]


def test_a_rank_that_was_not_dialled_is_no_fault() -> None:
    facts = real.boot(healthy(), "prefill-0", ranks=(rank("no connection within 0 s"),))
    assert found(facts, "PD210") == []
    assert status(facts, "PD210") is CheckStatus.UNKNOWN


def test_one_rank_address_of_two_prefills() -> None:
    """One of the two servers lists what was there before. On loopback of two hosts it is nothing."""
    facts = real.boot(real.boot(healthy(), "prefill-0", ranks=(rank(""),)), "prefill-1", ranks=(rank(""),))
    assert [one.instance for one in found(facts, "PD211")] == ["prefill-1"]
    apart = real.moved(healthy(), "prefill-1", "http://10.0.0.2:30001")
    apart = real.boot(apart, "prefill-1", host="10.0.0.2", ranks=healthy().bootstraps[0].ranks)
    assert found(apart, "PD211") == []


def test_a_service_in_front_matters_before_0_5_23() -> None:
    assert [one.observed for one in found(service(), "PD211")] == ["prefill.inference.svc.cluster.local"]
    assert found(real.info(service(), version="0.5.23"), "PD211") == []


def test_a_wildcard_that_registered_all_the_same() -> None:
    assert found(real.info(healthy(), "prefill-0", host="0.0.0.0", version="0.5.13"), "PD212") == []


@pytest.mark.parametrize(("serves", "words"), [("engine", "an engine"), ("http", "another server")])
def test_what_answers_instead_is_named(serves: str, words: str) -> None:
    facts = real.boot(healthy(), "prefill-0", reached=True, style="", serves=serves, topology=NOTHING, ranks=())
    (one,) = found(facts, "PD205")
    assert f"port 8998 answers HTTP as {words}, not as a bootstrap server" in one.observed
    assert one.headline.startswith("nothing answers as a bootstrap server ")


def test_a_router_that_was_not_asked_in_time_is_not_called_silent() -> None:
    late = "not asked within the 0.000596 s granted"
    router = healthy().router
    assert router is not None
    facts = dataclasses.replace(healthy(), router=dataclasses.replace(router, reached=False, ready=None, reason=late))
    assert found(facts, "PD602") == []
    status = {check.code: (check.status.value, check.reason) for check in check_run.run(facts).checks}
    assert status["PD602"] == ("unknown", f"{router.url} was not reached: {late}")


def test_who_was_not_asked_in_time_is_neither_down_nor_unreachable() -> None:
    late = "not asked within the 4.8 s granted"
    facts = real.down(real.boot(healthy(), "prefill-0", reached=False, reason=late, style=""), "decode-0", late)
    assert found(facts, "PD604") == found(facts, "PD205") == []
    (one,) = found(facts, "PD901")
    assert one.headline == f"1 of 3 instances were {late}"
    assert "--timeout" in one.fix
    status = {check.code: (check.status.value, check.reason) for check in check_run.run(facts).checks}
    assert status["PD205"] == ("unknown", f"bootstrap servers of prefill-0: {late}")


@for_each("url", ["file:///etc/passwd", "ftp://10.0.0.1", "prefill-0"])
def test_no_command_fetches_what_is_no_address_of_a_server(url: str) -> None:
    facts = real.down(healthy(), "prefill-0", f"'{url}' is no http:// or https:// address")
    engines = tuple(
        dataclasses.replace(each, endpoint=dataclasses.replace(each.endpoint, url=url))
        if each.endpoint.name == "prefill-0"
        else each
        for each in facts.engines
    )
    fixes = [
        one.fix for one in check_run.run(dataclasses.replace(facts, engines=engines)).findings if one.code == "PD604"
    ]
    assert fixes == [f"register prefill-0 under its own http:// or https:// URL in place of {url}"]


@for_each(
    ("reason", "code"),
    [
        ("connection refused", "PD604"),
        ("/server_info: no answer within 5 s", "PD604"),
        ("no connection within 5 s", "PD901"),
        ("the name 'prefill-0' was not resolved within 5 s", "PD901"),
        ("no route to host", "PD901"),
    ],
)
def test_down_or_out_of_reach(reason: str, code: str) -> None:
    facts = real.down(healthy(), "prefill-0", reason)
    codes = {one.code for one in check_run.run(facts).findings}
    assert codes & {"PD604", "PD901"} == {code}


def test_blind_engines_are_one_finding_that_names_them() -> None:
    (one,) = found(real.info(healthy(), log_level="info"), "PD801")
    assert one.instance == ""
    assert one.headline.startswith("prefill-0, prefill-1 and decode-0 log no line")
    assert found(real.info(healthy(), log_level="info", log_requests=True), "PD801") == []
    assert found(real.info(healthy(), log_level="info", enable_request_time_stats_logging=True), "PD801") == []


def test_only_instances_of_this_host_are_judged_by_it() -> None:
    facts = real.on_gpus(healthy(), rdma=())
    assert [one.instance for one in found(facts, "PD406")] == ["prefill-0", "prefill-1", "decode-0"]
    away = facts
    for number, name in enumerate(real.URLS):
        away = real.moved(away, name, f"http://10.9.0.{number}:30000")
    assert found(away, "PD406") == []
    assert status(away, "PD406") is CheckStatus.SKIPPED


def test_mixed_roles_by_the_engines_own_word() -> None:
    """Both hosts started as prefill, whatever the router thinks."""
    facts = real.info(without(healthy(), "prefill-1"), "decode-0", disaggregation_mode="prefill")
    (one,) = found(facts, "PD301")
    assert (one.instance, one.observed, one.expected) == ("decode-0", "prefill", "decode")


def test_an_engine_without_disaggregation() -> None:
    (one,) = found(real.info(healthy(), "decode-0", disaggregation_mode="null"), "PD301")
    assert one.observed == "unified (no disaggregation)"


def test_a_breaker_of_a_pair_is_named_by_its_ends() -> None:
    pair = f"{real.URLS['prefill-1']} {real.URLS['decode-0']}"
    (one,) = found(real.routed(healthy(), kind="pdctl", breakers={pair: 1}), "PD601")
    assert one.instance == "router", "the breaker is the router's, whoever it cuts off"
    assert one.headline == "the router has stopped using prefill-1 → decode-0: the circuit breaker is open"
    assert any("says ready all the same" in line for line in one.evidence)


def test_breakers_nobody_can_read_are_unknown() -> None:
    assert status(real.routed(healthy(), breakers_known=False), "PD601") is CheckStatus.UNKNOWN


def test_a_worker_the_router_holds_unhealthy() -> None:
    (one,) = found(real.worker(healthy(), "prefill-1", healthy=False), "PD603")
    assert one.headline == "prefill-1 answers, but the router holds it unhealthy"


def test_a_worker_that_is_still_starting_is_no_matter_of_the_router() -> None:
    facts = real.worker(healthy(), "prefill-1", healthy=False)
    starting = [
        dataclasses.replace(one, health=Reply("/health", 503, 0.01)) if one.endpoint.name == "prefill-1" else one
        for one in facts.engines
    ]
    (one,) = found(dataclasses.replace(facts, engines=tuple(starting)), "PD603")
    assert one.headline == "prefill-1 is not ready, so the router sends it nothing: /health answers 503"
    assert "DELETE" not in one.fix
    assert one.fix.startswith(f"curl -sS {real.URLS['prefill-1']}/health ")


def test_a_fact_that_changed_hands_is_read_anew() -> None:
    """Readings are remembered by the facts they were taken from."""
    facts = healthy()
    assert found(facts, "PD204") == []
    other = dataclasses.replace(
        facts, engines=real.info(facts, "prefill-1", disaggregation_bootstrap_port=8998).engines
    )
    assert [one.instance for one in found(other, "PD204")] == ["prefill-1"]


@pytest.mark.parametrize("answer", ["401 Unauthorized", "403 Forbidden", "302 Found", "502 Bad Gateway"])
def test_what_something_else_answered_for_a_rank_is_no_missing_rank(answer: str) -> None:
    facts = real.boot(healthy(), "prefill-0", unranked=(f"dp0 cp0 tp0 pp0: {answer}",), ranks=())
    assert found(facts, "PD209") == []
    (check,) = (one for one in check_run.run(facts).checks if one.code == "PD209")
    assert check.status is CheckStatus.UNKNOWN
    assert answer in check.reason
