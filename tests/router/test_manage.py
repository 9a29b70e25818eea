"""The management surface: workers come and go, rooms are found again, counters count."""

from __future__ import annotations

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from tests.cases import for_each
from tests.router.fleet import Fleet, fleet, until
from tests.router.workers import Way, Worker, close, hang, status


def test_workers_have_sglang_routers_shape() -> None:
    async def scenario() -> None:
        async with fleet(2, 1) as made:
            document = await made.get("/workers")
            assert document["schema"] == "pdctl.router.workers/1"
            assert document["total"] == 3
            assert document["stats"] == {"prefill_count": 2, "decode_count": 1, "regular_count": 0}
            entry = document["workers"][0]
            shape = "id url model_id priority cost worker_type is_healthy load connection_mode metadata"
            assert set(shape.split()) <= set(entry)
            assert (entry["worker_type"], entry["is_healthy"], entry["model_id"]) == ("prefill", True, "m")
            assert entry["metadata"]["disaggregation_mode"] == "prefill"
            assert (await made.get(f"/workers/{entry['id']}"))["url"] == entry["url"]

    asyncio.run(scenario())


def test_workers_can_be_added_and_removed_while_it_runs() -> None:
    async def scenario() -> None:
        async with fleet(1, 1) as made:
            new = await Worker("prefill").start()
            made.prefills.append(new)
            added = await made.ask("POST", "/workers", {"url": new.url, "worker_type": "prefill"})
            assert added.status == 202
            assert added.headers["location"] == f"/workers/{added.json()['worker_id']}"
            await made.ready(2)
            assert {(await made.generate()).pair[0] for _ in range(4)} == {one.url for one in made.prefills}
            again = await made.ask("POST", "/workers", {"url": new.url + "/", "worker_type": "decode"})
            assert (again.status, again.json()["error"]["code"]) == (409, "worker_exists")

            removed = await made.ask("DELETE", f"/workers/{added.json()['worker_id']}")
            assert removed.status == 202
            assert [one["url"] for one in (await made.get("/workers"))["workers"]] == [
                made.prefills[0].url,
                made.decodes[0].url,
            ]
            assert {(await made.generate()).pair[0] for _ in range(4)} == {made.prefills[0].url}
            assert (await made.ask("DELETE", f"/workers/{added.json()['worker_id']}")).status == 404

    asyncio.run(scenario())


def test_a_wrong_port_is_corrected_by_removing_and_adding() -> None:
    async def scenario() -> None:
        async with fleet(1, 1, ready=False) as made:
            prefill = made.prefills[0]
            await made.ready(1)
            assert (await made.ask("DELETE", "/workers/" + prefill.url.replace("/", "%2F"))).status == 202
            wrong = {"url": prefill.url, "worker_type": "prefill", "bootstrap_port": prefill.bootstrap.port + 1}
            assert (await made.ask("POST", "/workers", wrong)).status == 202

            async def refused() -> bool:
                return "was given, but its /server_info says" in str((await made.worker(prefill))["reason"])

            await until(refused, "the wrong port to be refused")
            entry = await made.worker(prefill)
            assert (entry["bootstrap_port"], entry["bootstrap_port_source"]) == (prefill.bootstrap.port + 1, "api")
            assert (await made.ask("DELETE", f"/workers/{entry['id']}")).status == 202
            right = {**wrong, "bootstrap_port": prefill.bootstrap.port}
            assert (await made.ask("POST", "/workers", right)).status == 202
            await made.ready(1)

    asyncio.run(scenario())


def test_a_removed_worker_finishes_what_it_does() -> None:
    async def scenario() -> None:
        async with fleet(1, 1) as made, made.client() as client:
            gate = asyncio.Event()

            async def gated(way: object) -> None:
                await gate.wait()
                await way.json(200, {"late": True})  # type: ignore[attr-defined]

            made.decodes[0].usual = gated
            client.send("POST", "/generate", {"text": "x"})
            await until(lambda: bool(made.decodes[0].generations), "the request to begin")
            entry = await made.worker(made.decodes[0])
            removed = await made.ask("DELETE", f"/workers/{entry['id']}")
            assert removed.json()["in_flight"] == 1
            left = {"id": entry["id"], "url": made.decodes[0].url, "in_flight": 1}
            assert (await made.get("/workers"))["leaving"] == [left]
            assert (await made.generate()).status == 503
            gate.set()
            assert (await client.answer()).json() == {"late": True}
            assert (await made.get("/workers"))["leaving"] == []

    asyncio.run(scenario())


@for_each(
    ("body", "message"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "`url` is missing"),
        ({"url": "10.0.0.1:30000", "worker_type": "prefill"}, "is not a worker's URL"),
        ({"url": "http://h:1", "worker_type": "regular"}, "worker_type 'regular'"),
        ({"url": "http://h:1", "worker_type": "prefill", "bootstrap_port": 70000}, "bootstrap_port 70000"),
        ({"url": "http://h:1", "worker_type": "decode", "bootstrap_port": 1}, "a decode has no bootstrap port"),
    ],
)
def test_a_worker_that_cannot_be_is_refused(body: bytes | dict, message: str) -> None:
    async def scenario() -> None:
        async with fleet(0, 0, ready=False) as made:
            answer = await made.ask("POST", "/workers", body)
            assert answer.status == 400
            assert message in answer.json()["error"]["message"]

    asyncio.run(scenario())


def test_without_workers_it_lives_but_is_not_ready() -> None:
    async def scenario() -> None:
        async with fleet(0, 0, ready=False) as made:
            for path in ("/health", "/liveness"):
                assert (await made.ask("GET", path)).status == 200
            answer = await made.ask("GET", "/readiness")
            assert answer.status == 503
            assert answer.json()["reasons"] == ["no prefill is registered", "no decode is registered"]
            assert (await made.ask("GET", "/v1/models")).status == 503
            assert (await made.ask("GET", "/health_generate")).status == 503

    asyncio.run(scenario())


def test_a_room_is_found_in_decimal_and_hexadecimal_while_it_runs_and_after() -> None:
    async def scenario() -> None:
        async with fleet() as made, made.client() as client:
            made.decodes[0].script = [hang]
            client.send("POST", "/generate", {"text": "x", "rid": "r"}, x_request_id="q")
            await until(lambda: bool(made.decodes[0].generations), "the request to begin")
            room = made.decodes[0].rooms[0]
            for name in (str(room), hex(room), f"0X{room:X}"):
                record = await made.get(f"/rooms/{name}")
                assert (record["room"], record["outcome"]) == (room, "running")
            assert (record["rid"], record["request_id"]) == ("r", "q")
            assert (record["prefill"], record["decode"]) == (made.prefills[0].url, made.decodes[0].url)
            assert record["bootstrap"] == f"127.0.0.1:{made.prefills[0].bootstrap.port}"
            assert record["age_ms"] >= 0
            assert record["legs"]["prefill"]["status"] == 200
            client.writer.close()

            async def ended() -> bool:
                return (await made.get(f"/rooms/{room}"))["outcome"] == "client_gone"

            await until(ended, "the room to end")
            assert (await made.ask("GET", "/rooms/1")).status == 404
            assert (await made.ask("GET", "/rooms/xyz")).status == 400
            for endless in ("0x" + "f" * 5000, "9" * 5000):  # Python writes no number of more than 4300 digits
                answer = await made.ask("GET", f"/rooms/{endless}")
                assert answer.status == 400
                assert len(answer.body) < 300

    asyncio.run(scenario())


def test_the_ledger_is_bounded_and_filtered() -> None:
    async def scenario() -> None:
        async with fleet(2, 1, ledger_size=5) as made:
            answers = [await made.generate({"text": "x", "rid": f"r{n}"}) for n in range(8)]
            rooms = (await made.get("/rooms"))["rooms"]
            assert [one["room"] for one in rooms] == [answer.room for answer in reversed(answers[3:])]
            assert (await made.ask("GET", f"/rooms/{answers[0].room}")).status == 404
            assert len((await made.get("/rooms?limit=2"))["rooms"]) == 2
            assert [one["rid"] for one in (await made.get("/rooms?rid=r6"))["rooms"]] == ["r6"]
            prefill = made.prefills[0].url
            found = (await made.get(f"/rooms?prefill={prefill}&outcome=ok"))["rooms"]
            assert found
            assert all(one["prefill"] == prefill for one in found)
            for limit in ("x", "-1", "%C2%B2", "9" * 5000):
                refused = await made.ask("GET", f"/rooms?limit={limit}")
                assert refused.status == 400
                assert "a whole number from 0 on is expected" in refused.json()["error"]["message"]

    asyncio.run(scenario())


def test_a_request_without_an_id_of_its_client_has_none_for_the_engines() -> None:
    async def scenario() -> None:
        async with fleet(1, 1) as made:
            answer = await made.generate({"text": "x"}, x_request_id="q")
            record = await made.get(f"/rooms/{answer.room}")
            assert (record["rid"], record["request_id"]) == (None, "q")

    asyncio.run(scenario())


async def counters(made: Fleet) -> dict[str, float]:
    text = (await made.ask("GET", "/metrics")).body.decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_the_text_is_what_prometheus_reads() -> None:
    """Names, types and labels, by the parser of its own client library."""

    async def scenario() -> None:
        async with fleet(1, 1, cb_failure_threshold=9) as made:
            assert (await made.generate()).status == 200
            made.prefills[0].usual = status(500)
            await made.generate()
            text = (await made.ask("GET", "/metrics")).body.decode()
            families = {one.name: one for one in text_string_to_metric_families(text)}
            labels = {sample.name: set(sample.labels) for one in families.values() for sample in one.samples}
            head, pair = "pdctl_router_", {"prefill", "decode"}
            worker = {"worker", "role"}
            assert labels == {
                f"{head}requests_total": {"path", "status"}, f"{head}retries_total": set(),
                f"{head}client_disconnects_total": set(), f"{head}rooms_in_flight": set(),
                f"{head}client_connections": set(), f"{head}worker_usable": worker, f"{head}worker_in_flight": worker,
                f"{head}worker_idle_connections": worker, f"{head}bootstrap_port": {"worker", "source"},
                f"{head}attempts_total": {*pair, "outcome"}, f"{head}leg_failures_total": {*pair, "leg", "cause"},
                f"{head}breaker_state": pair,
                f"{head}first_byte_seconds_bucket": {*pair, "le"}, f"{head}first_byte_seconds_sum": pair,
                f"{head}first_byte_seconds_count": pair,
                f"{head}attempt_seconds_bucket": {*pair, "le"}, f"{head}attempt_seconds_sum": pair,
                f"{head}attempt_seconds_count": pair,
            }  # fmt: skip
            kinds = {name.removeprefix(head): one.type for name, one in families.items() if one.type != "gauge"}
            counters = ("requests", "retries", "client_disconnects", "attempts", "leg_failures")
            histograms = ("first_byte_seconds", "attempt_seconds")
            assert kinds == {**dict.fromkeys(counters, "counter"), **dict.fromkeys(histograms, "histogram")}

    asyncio.run(scenario())


def test_metrics_are_keyed_by_pair() -> None:
    async def scenario() -> None:
        async with fleet(2, 1, cb_failure_threshold=1, cb_timeout=60.0) as made:
            bad, good = made.prefills
            bad.usual = status(500)
            for _ in range(3):
                assert (await made.generate()).status == 200
            await made.ask("POST", "/generate", b"{")
            await made.ask("GET", "/no/such/path")
            found = await counters(made)
            decode = made.decodes[0].url

            def at(name: str, prefill: Worker, more: str = "") -> float:
                return found[f'pdctl_router_{name}{{prefill="{prefill.url}",decode="{decode}"{more}}}']

            assert at("attempts_total", bad, ',outcome="failed"') == 1
            assert at("attempts_total", good, ',outcome="ok"') == 3
            assert at("leg_failures_total", bad, ',leg="prefill",cause="status"') == 1
            assert (at("breaker_state", bad), at("breaker_state", good)) == (1, 0)
            assert at("attempt_seconds_count", good) == 3
            assert at("first_byte_seconds_bucket", good, ',le="+Inf"') == 3
            assert found["pdctl_router_retries_total"] == 1
            assert found['pdctl_router_requests_total{path="/generate",status="200"}'] == 3
            assert found['pdctl_router_requests_total{path="/generate",status="400"}'] == 1
            assert found['pdctl_router_requests_total{path="other",status="404"}'] == 1
            assert found["pdctl_router_rooms_in_flight"] == 0
            port = f'pdctl_router_bootstrap_port{{worker="{good.url}",source="server_info"}}'
            assert found[port] == good.bootstrap.port

    asyncio.run(scenario())


def test_canaries_go_through_every_pair() -> None:
    async def scenario() -> None:
        async with fleet(2, 2) as made:
            document = await made.get("/health_generate?pairs=all")
            assert document["status"] == "ok"
            assert {(one["prefill"], one["decode"]) for one in document["pairs"]} == {
                (p.url, d.url) for p in made.prefills for d in made.decodes
            }
            for one in document["pairs"]:
                assert (await made.get(f"/rooms/{one['room']}"))["outcome"] == "ok"
            made.decodes[1].usual = status(500, "no cache")
            answer = await made.ask("GET", "/health_generate?pairs=all")
            assert answer.status == 503
            failed = [one for one in answer.json()["pairs"] if not one["ok"]]
            assert {one["decode"] for one in failed} == {made.decodes[1].url}
            assert "no cache" in failed[0]["problems"][0]

    asyncio.run(scenario())


def test_what_the_workers_know_is_asked_of_them() -> None:
    async def scenario() -> None:
        async with fleet(1, 2) as made:
            assert await made.get("/v1/models") == {"from": "prefill"}
            info = await made.get("/get_server_info")
            assert [one["disaggregation_mode"] for one in info["decode"]] == ["decode", "decode"]
            assert [one["disaggregation_mode"] for one in info["prefill"]] == ["prefill"]
            flushed = await made.ask("POST", "/flush_cache")
            assert flushed.status == 200
            assert {one["worker"] for one in flushed.json()["workers"]} == {one.url for one in made.workers}
            assert (await made.ask("POST", "/abort_request", {"rid": "x"})).status == 200
            assert all(one.aborts == ["x"] for one in made.workers)
            await made.decodes[0].stop()
            answer = await made.ask("POST", "/flush_cache")
            assert answer.status == 502
            assert not answer.json()["success"]

    asyncio.run(scenario())


@for_each("code", [400, 401, 403])
def test_what_workers_refuse_is_passed_on(code: int) -> None:
    async def scenario() -> None:
        async with fleet(1, 1) as made:
            paths = ("/abort_request", "/flush_cache", "/v1/models", "/model_info", "/server_info")
            for worker in made.workers:
                worker.others = dict.fromkeys((*paths, "/get_server_info"), status(code, "not like this"))
            for path in paths:
                method = "POST" if path in ("/abort_request", "/flush_cache") else "GET"
                answer = await made.ask(method, path, {"rid": "x"} if method == "POST" else b"")
                assert answer.status == code, path
                assert b"not like this" in answer.body, path

    asyncio.run(scenario())


def test_a_worker_that_fails_is_told_apart_from_one_that_refuses() -> None:
    async def scenario() -> None:
        async with fleet(1, 1) as made:
            made.prefills[0].others["/flush_cache"] = status(400, "requests are running")
            answer = await made.ask("POST", "/flush_cache")
            assert (answer.status, answer.json()["success"]) == (400, False)
            assert sorted(one["status"] for one in answer.json()["workers"]) == [200, 400]
            made.decodes[0].others["/flush_cache"] = status(500)
            assert (await made.ask("POST", "/flush_cache")).status == 502
            made.prefills[0].others["/server_info"] = status(500)
            assert (await made.ask("GET", "/server_info")).status == 200  # the decode answered

    asyncio.run(scenario())


def test_the_first_answer_counts_where_no_worker_has_a_good_one() -> None:
    async def text(way: Way) -> None:
        await way.send(b"HTTP/1.1 401 X\r\ncontent-type: text/plain\r\ncontent-length: 3\r\n\r\nkey")

    async def scenario() -> None:
        async with fleet(1, 1) as made:
            made.prefills[0].others["/v1/models"] = text
            made.decodes[0].others["/v1/models"] = close
            answer = await made.ask("GET", "/v1/models")
            assert (answer.status, answer.headers["content-type"], answer.body) == (401, "text/plain", b"key")

    asyncio.run(scenario())
