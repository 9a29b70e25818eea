"""The document of `pdctl simulate -o json`: its contract's members, and the digest of one run and of several."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pdctl.simulation.simulation_document import UnfinishedRun, combine_digests, to_document
from pdctl.simulation.statistics import FIGURES
from tests.simulation.made_up import outcome


def document(*policies: str, seeds: int) -> dict[str, Any]:
    return json.loads(json.dumps(to_document(outcome(policies, seeds)), allow_nan=False))


def test_the_members_that_scripts_rely_on() -> None:
    told = document("blitz", "static", seeds=5)
    assert told["schema"] == "pdctl.simulation/1"
    assert told["trace"] == "burst:rate=8,factor=5"
    assert [one["policy"] for one in told["policies"]] == ["blitz", "static"]
    for one in told["policies"]:
        assert list(one)[:7] == [
            "policy", "seeds", "slo_attainment", "ttft_s", "tbt_s", "gpu_time_s", "goodput_per_gpu"
        ]  # fmt: skip
        assert list(one)[7] == "events"
        assert one["seeds"] == 5
        assert list(one["slo_attainment"]) == ["ttft", "tbt", "both"]
        assert list(one["ttft_s"])[:3] == list(one["tbt_s"])[:3] == ["p50", "p95", "p99"]
        assert one["gpu_time_s"] == sum(run["gpu_time_s"] for run in one["runs"]) / 5
        assert one["events"] == sum(one["events_by_kind"].values())
        assert len({run["digest"] for run in one["runs"]}) == 5
        low, high = one["intervals"]["ttft_s.p99"]
        assert low <= one["ttft_s"]["p99"] <= high
        for figure in FIGURES:
            value = one
            for member in figure.path:
                value = value[member]
            assert isinstance(value, (int, float)), figure.name


def test_the_digest_is_the_event_logs_own_for_one_run() -> None:
    told = document("blitz", seeds=1)
    assert told["digest"] == told["policies"][0]["runs"][0]["digest"] == hashlib.sha256(b"blitz/0").hexdigest()
    assert told["policies"][0]["intervals"] == {}


def test_the_digest_of_several_runs_has_those_of_all_in_order() -> None:
    told = document("blitz", "static", seeds=2)
    each = [run["digest"] for one in told["policies"] for run in one["runs"]]
    assert len(each) == 4
    assert told["digest"] == hashlib.sha256("".join(f"{one}\n" for one in each).encode()).hexdigest()
    assert combine_digests(each[::-1]) != told["digest"]


def test_runs_that_did_not_end_are_named() -> None:
    told = to_document(outcome(["blitz"])._replace(unfinished=[UnfinishedRun("static", "disk", 1)]))
    assert told["unfinished"] == [{"policy": "static", "loading": "disk", "seed": 1}]
