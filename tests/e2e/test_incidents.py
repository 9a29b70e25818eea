"""Every shipped rehearsal, started as users start it: the client sees the incident, the logs tell it, nothing is left.

Those asked for are played at once, a few side by side, with shorter time-outs than the files have; each test then looks
at what its incident left behind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests import plain_http
from tests.cases import for_each
from tests.e2e.conftest import ROOT, Deployment, wait_for
from tests.ports import free_block

TOPOLOGIES = ROOT / "topologies" / "incidents"
BLOCK = 8  # ports of one incident
SIDE_BY_SIDE = 3  # each start occupies the cores for seconds
# Whoever asks first waits for the incidents before its own too. What hangs is found by the deadlines of the steps.
WITHIN = 560
pytestmark = pytest.mark.timeout(600)
PATIENCE = 3  # seconds an engine waits for the other side; 20 in the files, 300 in real life
# What it says then; on a busy machine it comes to it a little later than its limit, and says by how much.
LATE, LIMIT = "Request {room} timed out after ", f"(limit {PATIENCE}.0s)"
BOOTSTRAP = f"roles.prefill.env.SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT={PATIENCE}"
WAITING = f"roles.decode.env.SGLANG_DISAGGREGATION_WAITING_TIMEOUT={PATIENCE}"
PROMPT = "a prompt that is long enough to fill several pages of KV cache, so that there is a middle to die in " * 2


@dataclass(frozen=True)
class Ports:
    router: int
    http: int
    bootstrap: int
    nobody: int  # where no one listens


@dataclass(frozen=True)
class Incident:
    """`code`: what `pdctl trace-room` calls it, and doctor too unless in DOCTOR. `requests` are sent at once.

    ends: a process and what its log says when the incident is over, where that comes after the answer.
    heavy: played with `-m heavy` alone; what plays it is also tested by itself (tests/router/test_rehearsal.py,
    test_rehearsal.py, test_faults.py and test_shaped.py below tests/engine), a decode is killed by test_deaths.py, and
    recorded runs of it are read (data/rooms/pdctl-*); unlike pages shake hands in tests/engine/kv_link/test_pairs.py.
    """

    name: str
    code: str
    prefills: int = 1
    requests: int = 1
    flags: tuple[str, ...] = ()
    sets: Callable[[Ports], tuple[str, ...]] = lambda ports: ()
    dies: str = ""
    heavy: bool = False
    ends: tuple[str, str] | None = None


# What a dead instance is called depends on who is asked: doctor sees that it does not answer, trace-room that it died.
DOCTOR = {"killed-decode": "PD604", "killed-prefill": "PD604"}
# What can be seen before the first request.
SEEN_BEFORE = ("missing-bootstrap-port", "wrong-bootstrap-port", "swapped-bootstrap-ports", "page-size-mismatch")
INCIDENTS = (
    Incident(
        "wrong-bootstrap-port", "PD202", sets=lambda p: (BOOTSTRAP, wrong(p)), heavy=True
    ),  # takes longest: the decode's 15 s
    Incident("missing-bootstrap-port", "PD201", 2, 2, sets=lambda p: (BOOTSTRAP, WAITING)),
    Incident("swapped-bootstrap-ports", "PD203", 2, 2, sets=lambda p: (BOOTSTRAP, WAITING), heavy=True),
    Incident("killed-decode", "PD704", dies="decode-0", heavy=True),
    Incident("killed-prefill", "PD705", dies="prefill-0", heavy=True),
    Incident(
        "page-size-mismatch",
        "PD302",
        flags=("--no-verify",),
        sets=lambda p: (BOOTSTRAP,),
        dies="decode-0",
        ends=("prefill-0", "KVPoll.Bootstrapping"),
        heavy=True,
    ),
    Incident("slow-transfer", "PD412", heavy=True),
)


def wrong(ports: Ports) -> str:
    return f"router.args.rehearse=wrong-bootstrap-port={ports.nobody}"


@dataclass(frozen=True)
class Played:
    """What an incident left: answers of the router, its rooms by outcome, each process's log, what `down` said.

    before, doctor: findings of `pdctl doctor` on the unused deployment (of those in SEEN_BEFORE), and of what is left.
    traced: room → verdict.
    """

    incident: Incident
    deployment: Deployment
    answers: tuple[httpx.Response, ...]
    rooms: tuple[Mapping[str, Any], ...]
    workers: Mapping[str, Any]
    log: Mapping[str, str]
    down: str
    alive: tuple[str, ...]  # processes of the run that outlived `down`
    before: frozenset[str]
    doctor: frozenset[str]
    traced: Mapping[int, Mapping[str, Any]]

    @property
    def failed(self) -> Mapping[str, Any]:
        """The one room that failed."""
        (room,) = [one for one in self.rooms if one["outcome"] == "failed"]
        return room

    def lines(self, name: str, *texts: str) -> list[str]:
        """Lines of one process that hold all of the texts."""
        return [line for line in self.log[name].splitlines() if all(text in line for text in texts)]


def ports_for(incident: Incident) -> Ports:
    base = free_block(BLOCK)
    return Ports(base, base + 1, base + 1 + incident.prefills + 1, base + BLOCK - 1)


def play(home: Path, incident: Incident, ports: Ports) -> Played:
    deployment = Deployment(
        incident.name,
        home,
        f"http://127.0.0.1:{ports.router}",
        tuple(f"http://127.0.0.1:{ports.http + index}" for index in range(incident.prefills)),
        (f"http://127.0.0.1:{ports.http + incident.prefills}",),
    )
    base = (f"router.port={ports.router}", f"ports.http={ports.http}", f"ports.bootstrap={ports.bootstrap}")
    sets = [word for one in (*base, *incident.sets(ports)) for word in ("--set", one)]
    topology = str(TOPOLOGIES / f"{incident.name}.yaml")
    deployment.pdctl("launch", topology, "-d", "--name", incident.name, *sets, *incident.flags)
    try:
        leaders = [psutil.Process(pid) for pid in deployment.processes().values()]
        family = [one for leader in leaders for one in (leader, *leader.children(recursive=True))]
        workers = plain_http.get(f"{deployment.router}/workers", timeout=10).json()
        before = findings(deployment) if incident.name in SEEN_BEFORE else frozenset()
        answers = ask(deployment.router, incident.requests)
        rooms = tuple(plain_http.get(f"{deployment.router}/rooms", timeout=10).json()["rooms"])
        if incident.dies:
            wait_for(f"death of {incident.dies}", lambda: not psutil.pid_exists(deployment.processes()[incident.dies]))
            # Whoever launched it writes its end a moment after it is gone.
            ended = re.compile(rf"pdctl: {incident.dies} generation 1 (was killed|left)")
            last = home / "runs" / incident.name / "logs" / f"{incident.dies}.log"
            wait_for(f"the end of {incident.dies} in its log", lambda: ended.search(last.read_text()) is not None, 60)
        else:
            wait_for("return of every page", deployment.all_pages_free)
        if incident.ends:
            name, text = incident.ends
            log = home / "runs" / incident.name / "logs" / f"{name}.log"
            wait_for(f"{text} in {log}", lambda: text in log.read_text(), 60)
        doctor = findings(deployment)
        traced = {int(one["room"]): verdict(deployment, int(one["room"])) for one in rooms}
    finally:
        down = deployment.pdctl("down", incident.name)
    logs = home / "runs" / incident.name / "logs"
    return Played(
        incident,
        deployment,
        answers,
        rooms,
        workers,
        {path.stem: path.read_text() for path in logs.glob("*.log")},
        down.stdout + down.stderr,
        tuple(str(one) for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE),
        before,
        doctor,
        traced,
    )


def findings(deployment: Deployment) -> frozenset[str]:
    """Codes of errors and warnings."""
    told = json.loads(deployment.pdctl("doctor", "--run", deployment.name, "-o", "json", check=False).stdout)
    return frozenset(one["code"] for one in told["findings"] if one["severity"] != "info")


def verdict(deployment: Deployment, room: int) -> Mapping[str, Any]:
    told = deployment.pdctl("trace-room", str(room), "--run", deployment.name, "-o", "json", check=False)
    return json.loads(told.stdout)


def ask(router: str, count: int) -> tuple[httpx.Response, ...]:
    body = {"text": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}}
    with ThreadPoolExecutor(count) as pool:
        legs = [pool.submit(httpx.post, f"{router}/generate", json=body, timeout=60) for _ in range(count)]
        return tuple(leg.result() for leg in legs)


@pytest.fixture(scope="module")
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Played]]]:
    home = tmp_path_factory.mktemp("state")
    asked = {item.callspec.params.get("played") for item in request.session.items if hasattr(item, "callspec")}

    def run(incident: Incident) -> Played:
        return play(home, incident, ports_for(incident))

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        yield {incident.name: pool.submit(run, incident) for incident in INCIDENTS if incident.name in asked}


@pytest.fixture
def played(request: pytest.FixtureRequest, stage: dict[str, Future[Played]]) -> Played:
    return stage[request.param].result(WITHIN)


def of(*names: str) -> pytest.MarkDecorator:
    heavy = {one.name: [pytest.mark.heavy] if one.heavy else [] for one in INCIDENTS}
    return pytest.mark.parametrize("played", [pytest.param(one, marks=heavy[one]) for one in names], indirect=True)


EVERY = of(*(one.name for one in INCIDENTS))


def test_every_shipped_incident_is_played() -> None:
    assert {path.stem for path in TOPOLOGIES.glob("*.yaml")} == {one.name for one in INCIDENTS}


@EVERY
def test_doctor_names_it(played: Played) -> None:
    code = DOCTOR.get(played.incident.name, played.incident.code)
    assert code in played.doctor, played.doctor


@of(*SEEN_BEFORE)
def test_doctor_names_it_before_any_request(played: Played) -> None:
    assert played.incident.code in played.before, played.before


@EVERY
def test_trace_room_names_it(played: Played) -> None:
    causes = [room["cause"]["code"] for room in played.traced.values() if room["cause"] is not None]
    assert played.incident.code in causes, played.traced


@of("missing-bootstrap-port", "swapped-bootstrap-ports")
def test_trace_room_shows_the_wrong_prefill(played: Played) -> None:
    broken = [room for room in played.traced.values() if room["outcome"] == "failed"]
    assert broken
    for room in broken:
        assert room["prefill_requested"] != room["prefill_contacted"]
        assert {room["prefill_requested"], room["prefill_contacted"]} == {"prefill-0", "prefill-1"}
        assert room["decode"] == "decode-0"


@EVERY
def test_it_is_marked_loudly_and_leaves_nothing(played: Played) -> None:
    assert any("REHEARSAL: " in log for log in played.log.values())
    assert "nothing left" in played.down
    assert played.alive == ()
    for url in (played.deployment.router, *played.deployment.prefills, *played.deployment.decodes):
        with pytest.raises(httpx.ConnectError):
            plain_http.get(url, timeout=5)


@for_each("incident", INCIDENTS, ids=lambda incident: incident.name)
def test_its_file_names_the_finding(incident: Incident) -> None:
    comment = (TOPOLOGIES / f"{incident.name}.yaml").read_text().partition("version:")[0]
    assert re.search(rf"pdctl doctor: +{incident.code} ", comment), "the file says what doctor finds"
    assert re.search(rf"pdctl trace-room: +{incident.code}\b", comment), "the file says what trace-room finds"


def waited_in_vain(played: Played, room: Mapping[str, Any], asked: str, contacted: str) -> None:
    """The two halves of a room that never met, in SGLang's words, and the page list at the wrong prefill."""
    number = f"{room['room']}"
    carried = f"with exception KVTransferError(bootstrap_room={number}): {LATE.format(room=number)}"
    assert played.lines(asked, f"bootstrap_room={number})", "Receive: ")
    assert played.lines(
        asked, "Prefill bootstrap failed for request rank=0 req.rid=", carried, f"Bootstrapping {LIMIT}"
    )
    assert not played.lines(asked, f"got info room={number} ")
    assert played.lines(contacted, f"got info room={number} agent_name=")
    assert played.lines(contacted, f"room={number} is bootstrapped")
    assert played.lines(contacted, f"Received abort notification for room {number}, marked as Failed")
    assert not played.lines(contacted, "Receive: ", number)
    assert played.lines("decode-0", f"Sending to prefill server with bootstrap room {number} is_dummy=False")
    assert played.lines("decode-0", f"Sent abort notification for room {number} to ")
    failed = "Decode transfer failed for request rank=0 decode_req.req.rid="
    assert played.lines("decode-0", failed, carried, f"WaitingForInput {LIMIT}")


@of("missing-bootstrap-port")
def test_missing_bootstrap_port(played: Played) -> None:
    first, second = played.deployment.prefills
    assert sorted(answer.status_code for answer in played.answers) == [200, 502]
    assert played.workers["pdctl_rehearsal"] == ["missing-bootstrap-port"]
    assert not any("bootstrap_port" in entry for entry in played.workers["workers"])
    assert played.lines("router", f'prefill_urls: [("{first}", None), ("{second}", None)]', "Starting router on ")
    assert played.failed["prefill"] == second
    waited_in_vain(played, played.failed, asked="prefill-1", contacted="prefill-0")
    for name in ("prefill-1", "decode-0"):
        assert played.lines(name, "Receive: ", f"bootstrap_port=None, bootstrap_room={played.failed['room']})")
    assert {leg["status"] for leg in played.failed["legs"].values()} == {500}


@of("swapped-bootstrap-ports")
def test_swapped_bootstrap_ports(played: Played) -> None:
    assert [answer.status_code for answer in played.answers] == [502, 502]
    names = {url: f"prefill-{number}" for number, url in enumerate(played.deployment.prefills)}
    assert {room["prefill"] for room in played.rooms} == set(names)
    for room in played.rooms:
        asked = names[room["prefill"]]
        waited_in_vain(played, room, asked, contacted=next(name for name in names.values() if name != asked))


@of("wrong-bootstrap-port")
def test_wrong_bootstrap_port(played: Played) -> None:
    (answer,), room = played.answers, played.failed
    assert answer.status_code == 502
    (prefill,) = [entry for entry in played.workers["workers"] if entry["worker_type"] == "prefill"]
    address = f"127.0.0.1:{prefill['bootstrap_port']}"
    assert room["bootstrap"] == address
    assert played.lines("decode-0", f"Could not fetch prefill parallel info from {address} after ")
    failed = "Decode handshake failed for request rank=0 decode_req.req.rid="
    assert played.lines("decode-0", failed, f"bootstrap_room={room['room']} with exception KVTransferError(")
    late = LATE.format(room=room["room"])
    assert played.lines("prefill-0", "Prefill bootstrap failed for request", late, f"Bootstrapping {LIMIT}")
    assert not played.lines("prefill-0", f"got info room={room['room']}")


def stays_dead(played: Played, name: str) -> None:
    run = json.loads((played.deployment.home / "runs" / played.incident.name / "run.json").read_text())
    (process,) = [entry for entry in run["processes"] if entry["name"] == name]
    assert process["generation"] == 1


@of("killed-decode")
def test_killed_decode(played: Played) -> None:
    room = played.failed["room"]
    assert [answer.status_code for answer in played.answers] == [502]
    *_, before, word, last = played.log["decode-0"].splitlines()
    assert "REHEARSAL: this instance ends itself by SIGKILL now" in word
    assert "pdctl: decode-0 generation 1 was killed by SIGKILL" in last
    assert f"room={room}" in before or f"bootstrap room {room}" in before
    assert played.lines("prefill-0", "Prefill transfer failed for request", f"req.bootstrap_room={room} ")
    assert played.lines("prefill-0", "Session ", " failed.")
    stays_dead(played, "decode-0")


@of("killed-prefill")
def test_killed_prefill(played: Played) -> None:
    room = played.failed["room"]
    assert [answer.status_code for answer in played.answers] == [502]
    *_, word, last = played.log["prefill-0"].splitlines()
    assert "REHEARSAL: this instance ends itself by SIGKILL now" in word
    assert "pdctl: prefill-0 generation 1 was killed by SIGKILL" in last
    assert played.lines("prefill-0", f"Room step: room={room} ", "phase=waiting")
    assert not played.lines("prefill-0", "ReqTimeStats(", f"bootstrap_room={room},")
    assert played.lines("decode-0", "Lost connection with prefill instance (bootstrap_addr: ", "1 requests affected")
    assert played.lines("decode-0", "Decode transfer failed for request", f"decode_req.req.bootstrap_room={room} ")
    stays_dead(played, "prefill-0")


@of("page-size-mismatch")
def test_page_size_mismatch(played: Played) -> None:
    text = "Page size mismatch: prefill server has page_size=16, but decode server has page_size=32. "
    assert [answer.status_code for answer in played.answers] == [503]
    assert "Page size mismatch" in played.answers[0].text
    assert re.search(rf"^\[[^]]+\] {re.escape(text)}", played.log["decode-0"], re.MULTILINE)
    assert played.lines("decode-0", "Scheduler hit an exception: Traceback (most recent call last):")
    assert f"\nRuntimeError: {text}" in played.log["decode-0"]
    late = LATE.format(room=played.failed["room"])
    assert played.lines("prefill-0", "Prefill bootstrap failed for request", late, f"Bootstrapping {LIMIT}")
    stays_dead(played, "decode-0")


@of("slow-transfer")
def test_slow_transfer(played: Played) -> None:
    (answer,), (room,) = played.answers, played.rooms
    assert answer.status_code == 200
    for name in ("prefill-0", "decode-0"):
        (line,) = played.lines(name, "ReqTimeStats(", f"bootstrap_room={room['room']},")
        speed = re.search(r"transfer_speed=([\d.]+) GB/s", line)
        assert speed
        assert 0 < float(speed[1]) < 0.0001, "64 KiB/s are 0.000066 GB/s"
