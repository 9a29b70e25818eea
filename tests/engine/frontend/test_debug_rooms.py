"""GET /debug/rooms of a real prefill: a room whose decode never comes is listed, with what it waits for."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx

from tests import plain_http
from tests.engine.frontend.conftest import READY, running, until
from tests.ports import free_port

TINY = Path(__file__).resolve().parents[3] / "pdctl" / "checkpoints" / "tiny"
ROOM = 77001


def test_a_room_that_waits_says_for_what() -> None:
    flags = ("--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", str(free_port()))
    flags = (*flags, "--admin-api-key", "boss")
    with running(TINY, *flags, "--disaggregation-transfer-backend", "shm", module="pdctl.engine") as engine:
        engine.wait_for(READY)
        assert engine.client.get("/debug/rooms").json() == {"role": "prefill", "count": 0, "rooms": []}
        answers: list[httpx.Response] = []

        def ask() -> None:
            body = {
                "text": "Repeat: the red fox",
                "rid": "lonely",
                "bootstrap_host": "127.0.0.1",
                "bootstrap_port": 8998,
                "bootstrap_room": ROOM,
            }
            answers.append(plain_http.post(f"{engine.url}/generate", json=body, timeout=30))

        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: engine.client.get(f"/debug/rooms?room={ROOM}").json()["count"], "the room to be listed")
        (room,) = engine.client.get("/debug/rooms").json()["rooms"]
        assert room["rid"] is None  # who knows it may abort the request
        admin = {"Authorization": "Bearer boss"}
        (room,) = engine.client.get("/debug/rooms", headers=admin).json()["rooms"]
        assert (room["room"], room["rid"], room["queue"], room["dp_rank"]) == (ROOM, "lonely", "bootstrap", 0)
        assert (room["state"], room["waiting_for"]) == ("KVPoll.Bootstrapping", "the decode's page list for this room")
        assert room["age"] > 0
        assert (room["peers"], room["pages"], room["output_tokens"]) == ([], 0, 0)
        assert engine.client.get("/debug/rooms?room=1").json()["rooms"] == []
        engine.client.post("/abort_request", json={"rid": "lonely"})
        asking.join(30)
        until(lambda: engine.client.get("/debug/rooms").json()["count"] == 0, "the room to be gone")
        assert answers[0].status_code in (200, 499)
