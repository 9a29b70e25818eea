"""The PD rules: every request names its prefill, or is refused at once with the reason and the fix."""

from __future__ import annotations

import dataclasses

import pytest

from pdctl.engine.config.instance_args import ServerArgs
from pdctl.engine.frontend.intake import MAX_ROOM, Pairing, pairings
from pdctl.engine.frontend.request_bodies import RoutedBody
from tests.engine.frontend.conftest import Engine

REAL = {"bootstrap_host": "10.0.0.1", "bootstrap_port": 8998, "bootstrap_room": 77}


def refusal(engine: Engine, path: str = "/generate", **body: object) -> tuple[str, str]:
    response = engine.client.post(path, json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["code"] == 400
    return error["type"], error["message"]


@pytest.fixture(params=["prefill", "decode"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/generate", {"text": "hi"}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
@pytest.mark.parametrize("port", [{}, {"bootstrap_port": None}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_missing_port_is_never_guessed(
    engine: Engine, path: str, prompt: dict[str, object], port: dict[str, None], stream: bool
) -> None:
    body = {**prompt, "bootstrap_host": "10.0.0.1", "bootstrap_room": 77, "stream": stream, **port}
    kind, message = refusal(engine, path, **body)
    assert kind == "bootstrap_port_missing"
    assert "bootstrap_port is missing for bootstrap_host '10.0.0.1' (room 77)" in message
    assert "--prefill URL PORT" in message


def test_a_missing_room_has_sglangs_words(engine: Engine) -> None:
    kind, message = refusal(engine, text="hi", rid="r1")
    assert message == "Invalid request: Disaggregated request received without bootstrap room id. req.rid='r1'"
    assert kind == "bootstrap_room_missing"


def test_a_missing_host(engine: Engine) -> None:
    kind, message = refusal(engine, text="hi", bootstrap_room=5, bootstrap_port=8998)
    assert kind == "bootstrap_host_missing"
    assert "bootstrap_host is missing for room 5" in message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bootstrap_room": 0}, "room 0 means 'not written yet'"),
        ({"bootstrap_room": -1}, "bootstrap_room -1 is out of range"),
        ({"bootstrap_room": 1 << 63}, "is out of range"),
        ({"bootstrap_room": 10**30}, "is out of range"),
        ({"bootstrap_port": 0}, "a port is 1 to 65535"),
        ({"bootstrap_port": 65536}, "a port is 1 to 65535"),
        ({"bootstrap_port": "8998"}, "bootstrap_port: Input should be a valid integer (got '8998')"),
        ({"bootstrap_room": True}, "bootstrap_room: Input should be a valid integer (got True)"),
        ({"bootstrap_host": "a\nb"}, "is not a host name"),
        ({"bootstrap_host": ["10.0.0.1", "10.0.0.2"]}, "bootstrap_host has 2 entries for 1 request(s)"),
    ],
)
def test_values_no_room_can_have(decode: Engine, change: dict[str, object], said: str) -> None:
    assert said in refusal(decode, text="hi", **{**REAL, **change})[1]


def rooms(engine: Engine, **body: object) -> list[int]:
    response = engine.client.post("/generate", json=body)
    assert response.status_code == 200, response.text
    answers = response.json()
    return [answer["meta_info"]["bootstrap_room"] for answer in (answers if isinstance(answers, list) else [answers])]


def test_rooms_of_a_batch(decode: Engine) -> None:
    assert rooms(decode, text="hi", **REAL) == [77]
    assert rooms(decode, text=["a", "b", "c"], **REAL) == [77, 78, 79]
    assert rooms(decode, text=["a", "b"], **{**REAL, "bootstrap_room": [5, 9]}) == [5, 9]
    assert rooms(decode, text=["a", "b"], sampling_params={"n": 2}, **REAL) == [77, 78, 79, 80]
    lists = {"bootstrap_host": ["h1", "h2"], "bootstrap_port": [8998, 8999], "bootstrap_room": [3, 4]}
    assert rooms(decode, text=["a", "b"], **lists) == [3, 4]


def test_a_room_for_each_prompt_becomes_one_for_each_sample() -> None:
    """What sglang's router sends for a batch with n > 1; both engines must come to the same rooms."""
    body = RoutedBody(bootstrap_host=["h1", "h2"], bootstrap_port=[8998, None], bootstrap_room=[70, MAX_ROOM])
    args = ServerArgs("/nowhere", disaggregation_mode="prefill", rehearse=("null-port-fallback",))
    pairs = pairings(body, args, [str(index) for index in range(6)], samples=3)
    assert [(pair.host, pair.port) for pair in pairs] == [("h1", 8998)] * 3 + [("h2", None)] * 3
    rooms = [pair.room for pair in pairs if pair.room is not None]
    assert (rooms[0], rooms[3]) == (70, MAX_ROOM)
    assert len(set(rooms)) == 6
    assert all(0 < room <= MAX_ROOM for room in rooms)
    decode = dataclasses.replace(args, disaggregation_mode="decode")
    assert pairings(body, decode, list("abcdef"), samples=3) == pairs


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bootstrap_room": [1]}, "bootstrap_room has 1 entries for 2 request(s)"),
        ({"bootstrap_port": [8998, None]}, "bootstrap_port is missing for bootstrap_host '10.0.0.1' (room 78)"),
        ({"bootstrap_room": [4, 4]}, "two requests of this batch have the same room"),
        ({"bootstrap_room": [4, 5, 6], "sampling_params": {"n": 2}}, "bootstrap_room has 3 entries for 4 request(s)"),
        ({"bootstrap_room": [4, 4], "sampling_params": {"n": 2}}, "two requests of this batch have the same room"),
        ({"bootstrap_room": [4, 0], "sampling_params": {"n": 2}}, "bootstrap_room 0 with bootstrap_host"),
        (
            {"bootstrap_room": [4, 4, 4, 4], "sampling_params": {"n": 2}},
            "two requests of this batch have the same room",
        ),
    ],
)
def test_lists_that_do_not_match(decode: Engine, change: dict[str, object], said: str) -> None:
    assert said in refusal(decode, text=["a", "b"], **{**REAL, **change})[1]


def test_the_fake_host_needs_no_port(engine: Engine) -> None:
    assert rooms(engine, text="hi", bootstrap_host="2.2.2.2", bootstrap_room=0) == [0]


def test_a_unified_engine_ignores_the_pairing(unified: Engine) -> None:
    assert rooms(unified, text="hi", bootstrap_host="10.0.0.1", bootstrap_room=0) == [None]


def test_rid_and_room_stand_on_one_line_at_info(decode: Engine) -> None:
    mark = len(decode.lines)
    rooms(decode, text="hi", rid="linked", **REAL)
    described = "obj=GenerateReqInput(rid='linked', bootstrap_host='10.0.0.1', bootstrap_port=8998, bootstrap_room=77)"
    decode.wait_for(f"Receive: {described}", mark)
    assert "'finish_reason': 'stop'" in decode.wait_for(f"Finish: {described}", mark)
    decode.wait_for('"POST /generate HTTP/1.1" 200 OK', mark)


def test_a_decode_with_the_fake_backend_takes_requests_that_name_no_prefill() -> None:
    args = ServerArgs("/nowhere", disaggregation_mode="decode", disaggregation_transfer_backend="fake")
    assert pairings(RoutedBody(), args, ["a", "b"]) == [Pairing("2.2.2.2", None, 0)] * 2
