"""What canary requests carry, and what their outcomes come to."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType

from pdctl.doctor import check_run
from pdctl.doctor import request as asking
from pdctl.doctor.check import CanaryCell, CheckStatus, Depth, Facts
from pdctl.doctor.gather import gather, kinds
from pdctl.doctor.request import Progress, Request
from pdctl.fleet.canary_probe import EXTRAS
from pdctl.fleet.observations import Canary, HeldRequests
from tests.cases import for_each
from tests.doctor.fixtures import recorded as real
from tests.doctor.fixtures.live import extra, queued
from tests.doctor.fixtures.recorded import canaried, healthy
from tests.doctor.replay import CONTEXT, Replay, replay

SGL23, SGL08 = "0.5.23-2p1d", "0.5.8-2p1d-router-without-ports"


def found(facts: Facts, code: str) -> list[tuple[str, str]]:
    return [(one.instance, one.observed) for one in check_run.run(facts).findings if one.code == code]


def status(facts: Facts, code: str) -> CheckStatus:
    return {one.code: one.status for one in check_run.run(facts).checks}[code]


def cell(prefill: int, decode: int, reason: str = "", text: str = " fox") -> Canary:
    room = 2**41 + 16 * prefill + decode
    return Canary(
        "pair", f"prefill-{prefill}", f"decode-{decode}", room, not reason, 0.5, "" if reason else text, reason=reason
    )


def square(**reasons: str) -> Facts:
    """A 2 × 2 matrix; p0d1="…" is the pair prefill-0 → decode-1."""
    cells = tuple(cell(i, j, reasons.get(f"p{i}d{j}", "")) for i in range(2) for j in range(2))
    return canaried(canaries=cells)


@for_each(
    ("reasons", "instances"),
    [
        ({}, []),
        ({"p1d0": "late"}, ["prefill-1"]),
        ({"p1d0": "late", "p1d1": "late"}, ["prefill-1"]),
        ({"p0d1": "late", "p1d1": "late"}, ["decode-1"]),
        ({"p0d1": "late", "p1d0": "late"}, ["prefill-0", "prefill-1"]),
        ({"p0d0": "x", "p0d1": "x", "p1d0": "x", "p1d1": "x"}, ["prefill-0", "prefill-1"]),
    ],
)
def test_failed_pairs_are_told_by_what_they_share(reasons: dict[str, str], instances: list[str]) -> None:
    assert [one[0] for one in found(square(**reasons), "PD610")] == instances


def test_a_pair_that_was_not_tried_is_unknown() -> None:
    unsent = dataclasses.replace(cell(0, 0), ok=None, text="", reason="not sent: the 180 s for all of them were over")
    facts = canaried(canaries=(unsent, cell(1, 0)))
    assert status(facts, "PD610") is CheckStatus.UNKNOWN
    assert CanaryCell("prefill-0", "decode-0", None, None, unsent.reason, unsent.room) in check_run.run(facts).matrix


def test_one_alone_works_and_eight_do_not() -> None:
    burst = tuple(
        Canary("burst", "prefill-0", "decode-0", 2**43 + i, i > 2, 0.5, reason="" if i > 2 else "aborted")
        for i in range(8)
    )
    facts = canaried(canaries=(*real.cells(), *burst))
    assert found(facts, "PD610") == [("prefill-0", "3 of several requests at once failed: aborted")]


def test_the_answer_most_pairs_give_is_taken_for_right() -> None:
    facts = canaried(canaries=(cell(0, 0), cell(0, 1), cell(1, 0), cell(1, 1, text=" hen")))
    assert found(facts, "PD611") == [("prefill-1", "' hen'")]


def test_a_tie_blames_nobody() -> None:
    facts = canaried(canaries=(cell(0, 0), cell(1, 0, text=" hen")))
    assert [one[0] for one in found(facts, "PD611")] == [""]


def test_one_answer_is_nothing_to_compare() -> None:
    assert status(canaried(canaries=(cell(0, 0),)), "PD611") is CheckStatus.UNKNOWN


def test_a_prompt_that_was_taken_is_not_called_slow() -> None:
    facts = extra("over-length", False, 19.0, prefill_status=200, decode_status=200)
    assert [one[0] for one in found(facts, "PD505")] == ["prefill-0"]
    assert found(facts, "PD612") == []


def test_a_limit_nobody_knows_is_not_tried() -> None:
    facts = canaried(
        canaries=(
            *real.cells(),
            Canary("over-length", "prefill-0", "decode-0", 0, None, 0.0, reason="not sent: no limit is known"),
        )
    )
    assert status(facts, "PD505") is CheckStatus.UNKNOWN
    assert status(facts, "PD319") is CheckStatus.SKIPPED


def test_an_engine_that_serves_others_cannot_be_said_to_leak() -> None:
    facts = queued("decode-0", num_running_reqs=3.0)
    assert found(facts, "PD613") == [("decode-0", "num_running_reqs 3")]
    busy = real.loads(facts, "decode-0", {}, num_running_reqs=5)
    assert found(busy, "PD613") == []
    assert status(busy, "PD613") is CheckStatus.UNKNOWN


def test_queues_nobody_could_read() -> None:
    facts = canaried(queues=(HeldRequests("decode-0", MappingProxyType({}), False),))
    assert status(facts, "PD613") is CheckStatus.UNKNOWN


def test_without_canaries_there_is_no_matrix() -> None:
    assert check_run.run(healthy()).matrix == ()
    assert len(check_run.run(canaried()).matrix) == 2


def sent(servers: Replay, port: int) -> list[dict[str, object]]:
    return [body for at, path, body in servers.posted if at == port and path == "/generate"]


def test_a_pair_gets_what_the_router_would_send() -> None:
    told: list[Progress] = []
    with replay(SGL23) as servers:
        request = Request(
            depth=Depth.CANARY, router=servers.url(8000), router_metrics=servers.url(29100), progress=told.append
        )
        facts = gather(request)
        report = check_run.run(facts)
    first = sent(servers, 30001)[0]
    assert (first["bootstrap_host"], first["bootstrap_port"]) == ("127.0.0.1", servers.port[8999])
    assert first in sent(servers, 30002), "both legs get the same body"
    rooms = [body["bootstrap_room"] for body in sent(servers, 30002)]
    assert 0 not in rooms
    assert len(rooms) == len(set(map(str, rooms)))
    assert [(one.ok, bool(one.room)) for one in report.matrix] == [(True, True), (True, True)]
    assert [one.code for one in report.findings if one.severity.value == "error"] == []
    assert Progress("canary pairs", 2, 2) in told
    kinds = {one.kind: one.ok for one in facts.canaries}
    assert kinds == {"pair": True, "over-length": True, "cancel": True, "n2": True, "burst": True}
    assert max(len(body.get("input_ids") or ()) for body in sent(servers, 30000)) > CONTEXT  # type: ignore[arg-type]


def test_null_is_sent_as_null() -> None:
    with replay(SGL08) as servers:
        gather(Request(depth=Depth.CANARY, router=servers.url(8000), extras=False))
    assert {str(body["bootstrap_port"]) for body in sent(servers, 30002)} == {"None"}


def test_without_a_router_it_is_the_prefills_own_port() -> None:
    with replay(SGL23) as servers:
        given = asking.given_endpoints((servers.url(30001),), (servers.url(30002),))
        facts = gather(Request(depth=Depth.CANARY, endpoints=given, extras=False))
    assert [body["bootstrap_port"] for body in sent(servers, 30001)] == [servers.port[8999]]
    assert {one.kind for one in facts.canaries} == {"pair"}
    assert all(one.read and not one.left for one in facts.queues)


@for_each(
    ("version", "backend", "withheld"),
    [
        ("0.5.8", "nixl", {"n2"}),
        ("0.5.8", "mooncake", set()),
        ("0.5.13", "nixl", {"cancel", "n2"}),
        ("0.5.23", "nixl", set()),
    ],
)
def test_nothing_is_sent_that_harms_a_release(version: str, backend: str, withheld: set[str]) -> None:
    """Two samples in one room ended a real prefill of 0.5.8."""
    facts = real.info(healthy(), version=version, disaggregation_transfer_backend=backend)
    assert set(EXTRAS) - set(kinds(facts.engines)) == withheld
