"""What must survive any bytes, by name: each reads its case with pdctl's own code and asserts what holds for all."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import json
import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from xml.etree import ElementTree

from pdctl.catalogue.entry import Needs
from pdctl.doctor import bundle, check_run, other_host
from pdctl.doctor import request as asking
from pdctl.doctor.check import Depth, Facts, Report
from pdctl.doctor.gather import gather
from pdctl.doctor.request import Request
from pdctl.engines import user_rows
from pdctl.engines.identify import identify
from pdctl.engines.prefix import split
from pdctl.engines.row_matching import SHIPPED, Speech, speech
from pdctl.errors import NotProbedError, PdctlError, TopologyError, UsageError
from pdctl.fleet import (
    address,
    bootstrap_probe,
    canary_probe,
    completion_stream,
    engine_probe,
    http_client,
    prometheus_text,
    router_probe,
)
from pdctl.fleet.address import Unanswered
from pdctl.fleet.bootstrap_probe import Claim, probe_bootstraps
from pdctl.fleet.canary_probe import Side
from pdctl.fleet.deadline import Deadline
from pdctl.fleet.engine_probe import probe_engines
from pdctl.fleet.http_connection import STEP, Reader
from pdctl.fleet.observations import Endpoint
from pdctl.fleet.prober import Prober
from pdctl.fleet.router_probe import METRICS_PORT, probe_router
from pdctl.imports import importer
from pdctl.layout.planner import plan_topology
from pdctl.logs.library import Library
from pdctl.logs.source import open_logs
from pdctl.manifests import read as manifests
from pdctl.render import diagnostics
from pdctl.render.findings import ci_forms, report_forms
from pdctl.render.findings import report_text as findings_text
from pdctl.render.term import Term
from pdctl.topology import resolve
from tests.doctor.fixtures import recorded
from tests.fuzz import seeds, wire
from tests.fuzz.edits import SEPARATOR
from tests.fuzz.judge import Target
from tests.fuzz.rank_targets import RANK_TARGETS

LONG = 60.0  # seconds: no deadline of pdctl's own ends a case
ALL = frozenset(one.speaker for one in SHIPPED)
NO_YAML = (UsageError, TopologyError)  # how a manifest is refused: what it says, or that it is no YAML
PLANTED = "c0rrecthorsebatterystaple"
UTC = dt.timezone.utc


# --- logs


def line(data: bytes) -> None:
    """One line of a log."""
    prefix = split(data)
    prefix.message.encode()
    said = speech().match(data)
    assert (speech().match(data, ALL) is None) == (said is None)
    if said is not None:
        room = said.values.get("room", "0")
        assert room.isdigit(), room
        assert int(room) >= 0
        assert prefix.message == said.prefix.message


def log(data: bytes) -> None:
    """Who wrote a log."""
    found = identify(data.split(b"\n"), speech())
    assert found.role in ("", "prefill", "decode", "router", "unified")
    assert found.since is None or found.until is None or found.since < found.until
    assert all(target.port is None or target.port >= 0 for target in found.prefills)
    assert found.decodes is not None


def logs(data: bytes) -> None:
    """The logs of a deployment: its rooms, and the story of two of them in every form."""
    from pdctl.cli import trace_room  # late: half of pdctl, for one target
    from pdctl.trace.tracer import Tracer

    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        paths = [Path(folder) / f"{number}.log" for number in range(len(data.split(SEPARATOR)))]
        for path, part in zip(paths, data.split(SEPARATOR), strict=True):
            path.write_bytes(part)
        library = Library(open_logs([folder]), environ={"XDG_CACHE_HOME": f"{folder}/cache"})
        rooms = [one.room for one in library.rooms()]
        tracer = Tracer(library)
        for room in (*rooms[:1], *rooms[-1:], 7):
            told = tracer.trace(room)
            assert told.room == room
            for form in trace_room.RoomForm:
                stream = io.StringIO()
                trace_room.write(form, [told], False, Term(stream), UTC)
                stream.getvalue().encode()


def dialect(data: bytes) -> None:
    """A file of a user's dialect rows; what is accepted stays fast on any line."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        file = Path(folder) / "rows.yaml"
        file.write_bytes(data)
        rows = user_rows.load(Path(folder))
        speech_of = Speech(rows)
        for row in rows:
            for noise in (b"", b" " * 3000, b"a" * 3000, b"1" * 3000, row.literal * (3000 // len(row.literal))):
                speech_of.match(row.example.encode("utf-8", "replace") + noise)


# --- answers


def framing(data: bytes) -> None:
    """The bytes of a connection: however they are cut, they come to the same, or to a refusal if very long."""
    step = 1 + (data[-1] if data else 0) % 40
    cut, whole = _read(data, step), _read(data, len(data) + 1)
    assert cut == whole or (len(data) > STEP and None in (cut, whole))


def _read(data: bytes, step: int) -> tuple[int, bytes] | None:
    reader, body = Reader(), []
    try:
        for at in range(0, len(data), step):
            body.append(reader.feed(data[at : at + step]))
            if reader.complete:
                break
        else:
            reader.end()
    except Unanswered:
        return None
    return reader.status, b"".join(body)


def connection(data: bytes) -> None:
    """The same bytes over a real socket, and over the wire the other targets use: one answer."""
    with wire.spoken(data) as url:
        real = http_client.get(url, LONG)
    with wire.told(lambda host, port, path: data or b"x"):
        fed = http_client.get("http://127.0.0.1:1/", LONG)
    if data:
        assert (real.status, real.body, dict(real.headers)) == (fed.status, fed.body, dict(fed.headers))
        assert real.reason == fed.reason or not real.ok
    assert real.connected


ENGINE = "http://127.0.0.1:30000"


def engine(data: bytes) -> None:
    """/server_info and what else an engine says of itself."""
    with wire.told(_engine(data)):
        (found,) = probe_engines([Endpoint("prefill-0", "prefill", ENGINE)], LONG, generate=True)
        canary_probe._held_requests(ENGINE, Prober(Deadline(LONG), LONG))
        engine_probe.mode(ENGINE)
    json.dumps([dict(found.info), dict(found.model), [dict(load) for load in found.loads]], ensure_ascii=False).encode()
    assert found.reached == any(reply.status for reply in found.replies)
    assert found.reason or found.info
    found.version.encode()
    found.mode.encode()


PATHS = ("/server_info", "/model_info", "/v1/loads", "/metrics", "/health")


def _engine(data: bytes) -> wire.Says:
    told = wire.answers(data)
    by_path = dict(zip((*PATHS, "/get_load"), told, strict=False))
    # The older names have the same answers: whoever comes to ask for them got a 404 for the newer ones.
    older = {"/get_server_info": told[-1], "/get_model_info": told[-1], "/health_generate": told[0]}
    return lambda host, port, path: {**older, **by_path}.get(path, b"")


def metrics(data: bytes) -> None:
    """Prometheus text."""
    text = data.decode("utf-8", "replace")
    for sample in prometheus_text.samples(text):
        assert sample.value == sample.value
        prometheus_text.labels(sample.labels)
    assert len(prometheus_text.totals(text)) <= prometheus_text.MAX_FAMILIES


def bootstraps(data: bytes) -> None:
    """A bootstrap server's /health and /route, in both spellings, and its ranks' addresses."""
    with wire.told(_bootstrap(data)):
        (found,) = probe_bootstraps([Claim("prefill-0", "127.0.0.1", 8998, ("flag",), 2)], LONG, at_once=1)
        state = bootstrap_probe.registration("127.0.0.1", 8998, 2)
    assert found.reached or found.reason
    assert state.reached or state.reason
    assert len(found.ranks) <= wire.FEW
    for rank in found.ranks:
        assert 0 < rank.port <= address.LAST_PORT
    json.dumps([dict(found.topology), found.unranked, found.reason], ensure_ascii=False).encode()


def _bootstrap(data: bytes) -> wire.Says:
    told = wire.answers(data)
    wholes = {seeds.NEW_ALL: 1, seeds.OLD_ALL: 2, "/health": 0, "/server_info": 5, "/get_server_info": 6}

    def says(host: str, port: int, path: str) -> bytes:
        at = wholes.get(path, 3 + ("engine_rank" in path))
        return told[at] if at < len(told) else b""

    return says


def routers(data: bytes) -> None:
    """A router's /readiness, /workers, metrics and summary."""
    with wire.told(_router(data)):
        found = probe_router("http://127.0.0.1:8000", LONG)
        router_probe.fetch("http://127.0.0.1:8000")
        with contextlib.suppress(NotProbedError):
            completion_stream.first_model("http://127.0.0.1:8000").encode()
    assert found.reached or found.reason
    assert all(state in (0, 1, 2) for state in found.breakers.values())
    for endpoint in asking.listed_endpoints(found):
        endpoint.url.encode()


def _router(data: bytes) -> wire.Says:
    told = wire.answers(data)
    paths = ("/readiness", "/workers", "/metrics", "/get_server_info", "elsewhere", "/v1/models")
    by_path = dict(zip(paths, told, strict=False))

    def says(host: str, port: int, path: str) -> bytes:
        return by_path.get("elsewhere" if port == METRICS_PORT else path, told[0])

    return says


def generate(data: bytes) -> None:
    """What the two legs of a canary answer, and a stream of /v1/completions."""
    told = wire.answers(data)
    with wire.told(lambda host, port, path: told[port % 2 % len(told)]):
        prefill, decode = (
            Side("prefill-0", "http://127.0.0.1:2", "127.0.0.1", 8998),
            Side("decode-0", "http://127.0.0.1:3"),
        )
        for leave in (False, True):
            sent = canary_probe.exchange(prefill, decode, canary_probe.Prompt().body(), Deadline(LONG), leave=leave)
            for output in canary_probe.outputs(sent.decode.json()):
                output.text.encode()
        with contextlib.suppress(PdctlError):
            list(completion_stream.stream("http://127.0.0.1:3", "x", model="m", chat=True, max_tokens=2, timeout=LONG))
    assert sent.room % 2 == 0


def reach(data: bytes) -> None:
    """What the command of --from-host printed on another host, judged."""
    seen = other_host.read(data.decode("utf-8", "replace"))
    assert seen.missing >= 0
    facts = healthy()
    for found in other_host.judged(Report("", "live", (), (), (), (), 0.0), facts, seen).findings:
        json.dumps(report_forms.finding(found), ensure_ascii=False).encode()


def secrets(data: bytes) -> None:
    """A bundle's text: a key written plainly is gone, whatever stands around it."""
    text = data.decode("utf-8", "replace")
    half = text.rfind("\n", 0, len(text) // 2) + 1
    planted = f"{text[:half]}\n--api-key {PLANTED}\n{text[half:]}"
    clean, taken, _ = bundle.remove_secrets(planted)
    clean.encode("utf-8", "replace")
    assert PLANTED not in clean
    assert taken


# --- doctor


@lru_cache(maxsize=1)
def healthy() -> Facts:
    return recorded.canaried()


def written(data: bytes) -> None:
    """A manifest or a start script, read and checked."""
    facts = Facts(manifest=manifests.read_text(data.decode("utf-8", "replace"), "x.yaml"), asked=(Needs.TOPOLOGY,))
    shown(check_run.run(facts))


def imports(data: bytes) -> None:
    """Scripts, a compose file, a recipe or manifests as a topology: what is made of them can be checked and planned."""
    texts = [(f"{at}.sh", part.decode("utf-8", "replace")) for at, part in enumerate(data.split(SEPARATOR))]
    made = importer.import_texts(texts, {"MODEL": "m"}, "fuzz", {})
    with contextlib.suppress(PdctlError):
        plan_topology(resolve.of_text(made.text, "imported.yaml", {}).topology)
    stream = io.StringIO()
    diagnostics.show_notes(made.notes, made.summary, "", Term(stream))
    stream.getvalue().encode("utf-8", "replace")


def _no_json(word: str) -> object:
    raise AssertionError(f"{word} is no JSON")


REQUEST = Request(Depth.CANARY, router="http://127.0.0.1:8000", deadline=LONG, host=False)


def doctor(data: bytes) -> None:
    """A whole deployment behind a router, all of it as the case says: facts, checks, canaries, every form of report."""
    with wire.told(_deployment(data)):
        given = asking.given_endpoints(
            ("http://127.0.0.1:30000,8998", "http://127.0.0.1:30001"), ("http://127.0.0.1:30002",)
        )
        for endpoints in ((), given):
            facts = gather(replace(REQUEST, endpoints=endpoints))
            shown(check_run.run(facts))
            json.loads(bundle.facts_json(facts), parse_constant=_no_json)


def _deployment(data: bytes) -> wire.Says:
    parts = data.split(SEPARATOR)
    routed, boots = SEPARATOR.join(parts[:4]), SEPARATOR.join(parts[16:22])
    router_says, boot_says = _router(routed), _bootstrap(boots)
    prefill, decode = (_engine(SEPARATOR.join(parts[at : at + 6])) for at in (4, 10))
    spoken = wire.answers(SEPARATOR.join(parts[21:]))

    def says(host: str, port: int, path: str) -> bytes:
        if path in (canary_probe.GENERATE, canary_probe.ABORT):
            return spoken[port % len(spoken)]
        if port in (8000, METRICS_PORT):
            return router_says(host, port, path)
        if 8000 < port < 10000:
            return boot_says(host, port, path)
        return (decode if port % 3 == 2 else prefill)(host, port, path)

    return says


def shown(report: Report) -> None:
    """Every form can be written, and is what it says it is."""
    for text in (report_forms.to_json(report), ci_forms.to_sarif(report), *report_forms.to_lines(report).split("\n")):
        json.loads(text, parse_constant=_no_json)
    ElementTree.fromstring(ci_forms.to_xml(report).encode())
    stream = io.StringIO()
    findings_text.show(report, Term(stream), verbose=True)
    stream.write(ci_forms.to_commands(report))
    stream.getvalue().encode()
    check_run.exit_code(report, None)


TARGETS = {
    target.name: target
    for target in (
        Target("line", line, seeds.lines),
        Target("log", log, seeds.excerpts, per_byte=100e-6),
        Target("logs", logs, seeds.logsets, base=10.0, per_byte=400e-6, errors=(UsageError,), cheap=False),
        Target("dialect", dialect, seeds.rows, base=3.0, per_byte=100e-6, errors=(UsageError,), cheap=False),
        Target("framing", framing, seeds.framings),
        Target("connection", connection, seeds.framings, cheap=False),
        Target("server-info", engine, seeds.engines),
        Target("metrics", metrics, seeds.expositions),
        Target("bootstrap", bootstraps, seeds.bootstraps),
        Target("router", routers, seeds.routers),
        Target("generate", generate, seeds.generated),
        Target("from-host", reach, seeds.reached, errors=(UsageError,)),
        Target("bundle", secrets, seeds.secretive),
        Target("manifest", written, seeds.manifests, base=3.0, per_byte=100e-6, errors=NO_YAML, cheap=False),
        Target("import", imports, seeds.imported, base=5.0, per_byte=200e-6, errors=NO_YAML, cheap=False),
        Target("doctor", doctor, seeds.deployments, base=10.0, per_byte=100e-6, cheap=False),
    )
} | RANK_TARGETS
