"""Which logs belong to one deployment: by directories, and by what a router's list shows."""

from __future__ import annotations

import cProfile
import pstats
import shutil
from pathlib import Path

import pytest

from pdctl.cli.diagnose import exit_code
from pdctl.errors import ExitCode
from pdctl.trace.diagnose import diagnose, diagnose_each
from pdctl.trace.log_groups import group_logs
from tests.trace.engines import at, engine
from tests.trace.recordings import ROOMS, library


def prefill(port: int, host: str = "10.0.0.1") -> list[str]:
    return [line.replace("127.0.0.1", host) for line in engine("prefill", port, port + 5000)]


def decode(port: int, host: str = "10.0.0.1") -> list[str]:
    return [line.replace("127.0.0.1", host) for line in engine("decode", port, 8999)]


def router(*urls: str) -> list[str]:
    *prefills, last = urls
    listed = ", ".join(f"('http://{url}', 8998)" for url in prefills)
    return [
        f"{at(1)} Router listening on http://127.0.0.1:8000 policy=round_robin prefill=[{listed}] "
        f"decode=['http://{last}']"
    ]


A, B = {"p": prefill(30000), "d": decode(30002)}, {"p": prefill(30100), "d": decode(30102)}
BOTH_HOSTS = [
    f"{at(1)} Router listening on http://127.0.0.1:8000 policy=round_robin prefill=[('http://10.0.0.1:30000', 8998), "
    "('http://10.0.0.1:30100', 8998)] decode=['http://10.0.0.1:30002', 'http://10.0.0.1:30102']"
]
ROUTER_A, ROUTER_B = router("10.0.0.1:30000", "10.0.0.1:30002"), router("10.0.0.1:30100", "10.0.0.1:30102")


@pytest.mark.parametrize(
    ("files", "groups"),
    [
        ({"a": A, "b": B}, ["a: d p", "b: d p"]),
        ({"a": {**A, "r": ROUTER_A}, "b": {**B, "r": ROUTER_B}}, ["a: d p r", "b: d p r"]),
        ({"h1": {"p": A["p"]}, "h2": {"d": A["d"]}}, [".: d p"]),
        ({"a/h1": {"p": A["p"]}, "a/h2": {"d": A["d"]}, "b/h1": {"p": B["p"]}, "b/h2": {"d": B["d"]}}, [
            "a: d p", "b: d p"]),
        ({"a/logs": A, "a/router": {"r": ROUTER_A}, "b/logs": B, "b/router": {"r": ROUTER_B}}, [
            "a: d p r", "b: d p r"]),
        ({"a": A, "b": {"p": B["p"]}}, [".: d p p"]),
        ({"a": A, "b": B, "c": {"p": prefill(30200)}}, ["a: d p", "b: d p", "c: p"]),
        # Hosts with both roles each: one router lists the engines of both, another one not the second decode.
        ({"h1": A, "h2": B, "r": {"r": BOTH_HOSTS}}, ["r: d d p p r"]),
        ({"h1": A, "h2": B, "r": {"r": router("10.0.0.1:30000", "10.0.0.1:30100", "10.0.0.1:30002")}}, [
            "h2: d p", "r h1: d p r"]),
        ({"h1": {**A, "r": [*ROUTER_A]}, "h2": {"p": prefill(30100)}, "h3": B}, ["h1: d p r", "h2: p", "h3: d p"]),
        ({"h1": {**A, "r": router("10.0.0.1:30000", "10.0.0.1:30100", "10.0.0.1:30002")},
          "h2": {"p": prefill(30100)}, "h3": {**B, "r": ROUTER_B}}, ["h1 h2: d p p r", "h3: d p r"]),
        # Whose of two prefills at one address the router means, nothing tells.
        ({"h1": {**A, "r": router("10.0.0.1:30000", "10.0.0.1:30100", "10.0.0.1:30002")},
          "h2": {"p": prefill(30100)}, "h3": {"p": prefill(30100)}, "h4": {**B, "r": ROUTER_B}}, [
            "h1: d p r", "h2: p", "h3: p", "h4: d p r"]),
        ({"a": A, "b": B, "docs": {"notes": ["nothing of ours"] * 30}}, ["a: d p", "b: d p"]),
        ({"a": A, "docs": {"notes": ["nothing of ours"] * 30}}, [".: d notes p"]),
    ],
)  # fmt: skip
def test_groups(files: dict[str, dict[str, list[str]]], groups: list[str], tmp_path: Path) -> None:
    for folder, logs in files.items():
        (tmp_path / folder).mkdir(parents=True)
        for name, lines in logs.items():
            (tmp_path / folder / f"{name}.log").write_text("".join(f"{line}\n" for line in lines))
    found = group_logs(library([str(tmp_path)]))
    told = []
    for group in found:
        names = sorted(log.instance.rpartition("/")[2] for log in group.logs)
        told.append(f"{' '.join(str(path.relative_to(tmp_path)) for path in group.directories)}: {' '.join(names)}")
    assert told == groups


def test_deployments_that_followed_each_other_in_one_directory_are_judged_one_by_one(tmp_path: Path) -> None:
    """Both had the same addresses: merged, nobody knew whose decode was missed, and its death counted as harmless."""
    names = ("2p1d-missing-ports-debug-sgl058", "1p1d-decode-killed-debug-sgl058")
    for name in names:
        for path in (ROOMS / name).glob("*.log*"):
            shutil.copy(path, tmp_path / f"{name[0]}-{path.name}")
    found = diagnose_each(library([str(tmp_path)]))
    assert [sorted(Path(path).name[:2] for path in each.directory.split()) for each in found] == [
        ["2-"] * 4, ["1-"] * 3
    ]  # fmt: skip
    misled, killed = (each.diagnosis for each in found)
    assert [one.instance for one in killed.deaths] == ["1-decode0"]
    assert [one.code for one in misled.findings] == ["PD201"]
    assert not misled.deaths


def test_two_routers_without_a_common_engine_are_not_of_one_deployment(tmp_path: Path) -> None:
    for name, lines in {
        "pa": A["p"], "da": A["d"], "pb": B["p"], "db": B["d"], "ra": ROUTER_A,
        "rb": [line.replace(":8000", ":8001") for line in ROUTER_B],
    }.items():  # fmt: skip
        (tmp_path / f"{name}.log").write_text("".join(f"{line}\n" for line in lines))
    found = diagnose(library([str(tmp_path)]))
    assert not found.wrong
    assert exit_code(found) is ExitCode.NOT_PROBED
    assert (
        "ra and rb are routers of two deployments, with no engine in common: da, pa and db, pb" in found.contradiction
    )
    (tmp_path / "rb.log").write_text("".join(f"{line.replace(':8000', ':8001')}\n" for line in BOTH_HOSTS))
    assert not diagnose(library([str(tmp_path)])).contradiction


def test_the_work_grows_with_the_deployments_and_not_with_their_square(tmp_path: Path) -> None:
    """Counted in function calls, which no other load on the machine changes."""

    def calls(count: int) -> int:
        for number in range(count):
            shutil.copytree(ROOMS / "1p1d-decode-killed-info-sgl0523", tmp_path / str(count) / str(number))
        logs = library([str(tmp_path / str(count))])
        with cProfile.Profile() as profile:
            found = diagnose_each(logs)
        assert [[one.instance for one in each.diagnosis.deaths] for each in found] == [["decode0"]] * count
        return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]

    calls(2)  # what is compiled and imported once
    assert calls(12) < 4.4 * calls(3)
