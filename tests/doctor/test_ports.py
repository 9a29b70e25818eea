"""The port table, and where the rooms of a prefill without a port really go."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType

from pdctl.doctor import bootstrap_ports, check_run
from pdctl.doctor.check import CheckStatus, Facts
from tests.cases import for_each
from tests.doctor.fixtures import recorded as real
from tests.doctor.fixtures.live import annotated, flagged, same_port, without
from tests.doctor.fixtures.recorded import healthy


def found(facts: Facts, code: str) -> list[tuple[str, str, str]]:
    return [(one.instance, one.observed, one.expected) for one in check_run.run(facts).findings if one.code == code]


def status(facts: Facts, code: str) -> CheckStatus:
    return {one.code: one.status for one in check_run.run(facts).checks}[code]


def rows(facts: Facts) -> list[tuple[str | None, ...]]:
    return [
        (row.flag, row.server_info, row.bootstrap, row.router, row.annotation, row.odd)
        for row in bootstrap_ports.table(facts)
    ]


@for_each(
    ("facts", "first"),
    [
        (healthy(), (None, "8998", "8998", "8998", None, "")),
        (real.null(healthy(), "prefill-0"), (None, "8998", "8998", "null", None, "router")),
        (real.worker(healthy(), "prefill-0", bootstrap_port=9999), (None, "8998", "8998", "9999", None, "router")),
        (flagged(healthy(), prefill_0=9000), ("9000", "8998", "8998", "8998", None, "flag")),
        (real.silent(healthy(), "prefill-0"), (None, "8998", None, "8998", None, "")),
        (real.change(healthy(), router=None), (None, "8998", "8998", None, None, "")),
    ],
)
def test_the_odd_one_is_marked(facts: Facts, first: tuple[str | None, ...]) -> None:
    assert rows(facts)[0] == first


def test_an_annotation_of_the_only_template_counts_for_every_prefill() -> None:
    assert [row[-2:] for row in rows(annotated(healthy()))] == [("8998", ""), ("8998", "annotation")]
    assert found(annotated(healthy()), "PD215") == [("prefill-1", "8998", "8999")]


def test_null_goes_to_whoever_has_the_decodes_own_port() -> None:
    facts = real.null(healthy(), "prefill-0", "prefill-1")
    assert found(facts, "PD201") == [("prefill-1", "127.0.0.1:8998 (prefill-0)", "127.0.0.1:8999")]
    assert found(facts, "PD207") == []


def test_null_where_nobody_listens() -> None:
    facts = real.info(
        real.null(without(healthy(), "prefill-1"), "prefill-0"), "decode-0", disaggregation_bootstrap_port=9001
    )
    nobody = dataclasses.replace(facts.bootstraps[0], port=9001, reached=False, style="", topology=MappingProxyType({}))
    facts = real.change(facts, bootstraps=(facts.bootstraps[0], nobody))
    assert found(facts, "PD201") == [("prefill-0", "127.0.0.1:9001 (nobody)", "127.0.0.1:8998")]


def test_null_by_luck_with_one_prefill() -> None:
    facts = real.null(without(healthy(), "prefill-1"), "prefill-0")
    assert found(facts, "PD201") == []
    assert found(facts, "PD207") == [("prefill-0", "null", "8998")]


def test_null_by_luck_on_hosts_of_their_own() -> None:
    """The same number everywhere: each decode's own port is right on every prefill's host."""
    facts = real.info(healthy(), "prefill-1", disaggregation_bootstrap_port=8998)
    facts = real.moved(facts, "prefill-1", "http://10.0.0.2:30001")
    facts = real.boot(facts, "prefill-1", host="10.0.0.2", port=8998)
    entries = [
        dataclasses.replace(one, bootstrap_port=None, bootstrap_known=False) for one in facts.router.workers or ()
    ]  # type: ignore[union-attr]
    facts = real.routed(facts, workers=tuple(entries))
    assert found(facts, "PD201") == []
    assert [one[0] for one in found(facts, "PD207")] == ["prefill-0", "prefill-1"]


def test_null_with_a_decode_that_says_nothing() -> None:
    """Two prefills on one host cannot both be reached by one number: certain, though no pair can be named."""
    facts = real.down(real.null(healthy(), "prefill-0", "prefill-1"), "decode-0")
    ((instance, _, _),) = found(facts, "PD201")
    assert instance == ""
    alone = real.down(real.null(without(healthy(), "prefill-1"), "prefill-0"), "decode-0")
    assert found(alone, "PD201") == []
    assert status(alone, "PD201") is CheckStatus.UNKNOWN
    assert status(alone, "PD207") is CheckStatus.UNKNOWN


def test_from_0_5_18_on_the_server_says_whose_it_is() -> None:
    """prefill-0 claims 8998, and what answers there names prefill-1's HTTP port: that settles it against the claim."""
    other = MappingProxyType(dict(healthy().bootstraps[1].topology))
    facts = real.null(real.boot(healthy(), "prefill-0", topology=other), "prefill-0", "prefill-1")
    assert bootstrap_ports.port_claims(facts, True).listener("127.0.0.1", 8998) == "prefill-1"
    assert found(facts, "PD201") == [("prefill-0", "127.0.0.1:8998 (prefill-1)", "127.0.0.1:8998")]


def test_one_wrong_port_is_one_code() -> None:
    wrong = real.worker(healthy(), "prefill-0", bootstrap_port=9999)
    assert found(wrong, "PD202") == [("prefill-0", "9999", "8998")]
    swapped = real.worker(real.worker(healthy(), "prefill-0", bootstrap_port=8999), "prefill-1", bootstrap_port=8998)
    assert found(swapped, "PD202") == []
    assert found(swapped, "PD203")[0][0] == "prefill-0"
    http = real.worker(healthy(), "prefill-0", bootstrap_port=30000)
    assert found(http, "PD202") == []
    assert found(http, "PD206") == [("prefill-0", "30000", "8998")]
    rust = real.info(healthy(), "prefill-0", disaggregation_bootstrap_port=30000)
    assert found(rust, "PD202") == []
    assert found(rust, "PD219") == [("prefill-0", "8998", "30000")]


def test_a_port_of_another_prefill_alone_is_wrong_not_swapped() -> None:
    facts = real.worker(healthy(), "prefill-0", bootstrap_port=8999)
    assert found(facts, "PD203") == []
    assert found(facts, "PD202") == [("prefill-0", "8999", "8998")]
    (one,) = [each for each in check_run.run(facts).findings if each.code == "PD202"]
    assert "prefill-1 listens there" in one.evidence[1]


def test_a_collision_names_both_and_a_free_port() -> None:
    (one,) = [each for each in check_run.run(same_port()).findings if each.code == "PD204"]
    assert one.headline == "prefill-1 and prefill-0 on one host are both given bootstrap port 8998"
    assert one.fix.endswith("--disaggregation-bootstrap-port 8999")


def test_a_router_that_has_no_list_leaves_it_open() -> None:
    facts = real.routed(healthy(), kind="mini_lb", workers=None)
    assert status(facts, "PD201") is CheckStatus.UNKNOWN
    assert status(real.change(healthy(), router=None), "PD201") is CheckStatus.SKIPPED
