"""Canary requests against engines that answer, refuse, abort or keep silent; nothing stays behind on either leg."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings

from pdctl.fleet import canary_probe
from pdctl.fleet.canary_probe import Prompt, Side, extras, matrix
from pdctl.fleet.observations import Canary
from tests.fleet.conftest import ANY_JSON, LONG, closed_port
from tests.fleet.engine import Engine, Face, Handler, is_silent, refuses, result, speaks

Start = Callable[..., tuple[Engine, Side]]


@pytest.fixture
def engine() -> Iterator[Start]:
    started: list[Engine] = []

    def start(name: str, generates: Handler = speaks("the red fox")) -> tuple[Engine, Side]:  # noqa: B008
        started.append(Engine(name, generates))
        port = 8998 if name.startswith("prefill") else None
        return started[-1], Side(name, started[-1].url, "127.0.0.1" if port else None, port)

    yield start
    for one in started:
        one.close()


def pair(prefill: Side, decode: Side, patience: float = LONG, **more: Any) -> Canary:
    return matrix([prefill], [decode], LONG, patience=patience, **more)[0]


def test_every_pair_gets_a_room_of_its_own_on_both_legs(engine: Start) -> None:
    prefills = [engine(f"prefill-{i}") for i in range(3)]
    decodes = [engine(f"decode-{i}", speaks(f"from {i}")) for i in range(2)]
    told: list[Canary] = []
    cells = matrix([side for _, side in prefills], [side for _, side in decodes], LONG, patience=LONG, told=told.append)
    assert [(one.prefill, one.decode) for one in cells] == [
        (f"prefill-{i}", f"decode-{j}") for i in range(3) for j in range(2)
    ]
    assert all(one.ok and one.finish_reason == "length" and not one.reason for one in cells)
    assert [one.text for one in cells] == ["from 0", "from 1"] * 3
    assert sorted(told, key=lambda one: one.room) == sorted(cells, key=lambda one: one.room)
    sent = [body for one, _ in prefills for body in one.bodies]
    received = [body for one, _ in decodes for body in one.bodies]
    assert sorted(map(json.dumps, sent)) == sorted(map(json.dumps, received))  # the same body on both legs
    rooms = [body["bootstrap_room"] for body in sent]
    assert len(set(rooms)) == 6
    assert all(0 < room < 2**53 for room in rooms)
    assert {body["sampling_params"]["temperature"] for body in sent} == {0.0}
    assert not any(one.aborted for one, _ in (*prefills, *decodes))


@pytest.mark.parametrize(("host", "port"), [("10.0.0.9", None), (None, None), ("[fd00::1]", 9001)])
def test_the_callers_bootstrap_address_is_sent_as_it_is(engine: Start, host: str | None, port: int | None) -> None:
    """But never a null host: that ends the scheduler of a real decode."""
    prefill, _ = engine("prefill-0")
    _, decode = engine("decode-0")
    pair(Side("prefill-0", prefill.url, host, port), decode)
    assert prefill.bodies[0]["bootstrap_port"] == port
    assert prefill.bodies[0]["bootstrap_host"] == (host or "127.0.0.1")


@pytest.mark.parametrize("failing", ["prefill", "decode"])
def test_when_one_leg_fails_the_other_is_left_and_aborted(engine: Start, failing: str) -> None:
    """The silent leg would hold its request for minutes."""
    words = "KVTransferError(bootstrap_room=1): no page\nlist"
    prefill, first = engine("prefill-0", refuses(500, words) if failing == "prefill" else is_silent)
    decode, second = engine("decode-0", refuses(500, words) if failing == "decode" else is_silent)
    cell = pair(first, second)
    refused, silent = (prefill, decode) if failing == "prefill" else (decode, prefill)
    assert cell.ok is False
    assert cell.reason == f"{failing}-0 answered 500: KVTransferError(bootstrap_room=1): no page list"
    assert (cell.prefill_status, cell.decode_status) == ((500, 0) if failing == "prefill" else (0, 500))
    assert silent.left.wait(LONG)
    assert silent.aborted == [silent.bodies[0]["rid"]]
    assert not refused.aborted


def test_a_pairing_that_hangs_ends_with_the_deadline(engine: Start) -> None:
    prefill, first = engine("prefill-1", is_silent)
    decode, second = engine("decode-0", is_silent)
    cell = pair(first, second, patience=0.3)
    assert cell.reason == "prefill-1: no answer within 0.3 s; decode-0: no answer within 0.3 s"
    assert (cell.ok, cell.prefill_status, cell.decode_status) == (False, 0, 0)
    for one in (prefill, decode):
        assert one.left.wait(LONG)
        assert len(one.aborted) == 1


def test_a_decode_that_never_hears_of_its_pages(engine: Start) -> None:
    _, first = engine("prefill-0")
    decode, second = engine("decode-0", is_silent)
    cell = pair(first, second, patience=0.3)
    assert (cell.reason, cell.prefill_status) == ("decode-0: no answer within 0.3 s", 200)
    assert len(decode.aborted) == 1


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            result("", "abort", message="Decode transfer failed"),
            "decode-0 answered 200, aborted: Decode transfer failed",
        ),
        ({"text": ""}, 'decode-0 answered 200 without a token: {"text": ""}'),
        ("not json", "decode-0 answered 200 without a token: not json"),
        ([], "decode-0 answered 200 without a token: []"),
    ],
)
def test_a_200_that_is_no_answer_is_not_ok(engine: Start, said: object, reason: str) -> None:
    _, first = engine("prefill-0")
    _, second = engine("decode-0", lambda _, face, body: face.answer(200, said))
    cell = pair(first, second)
    assert (cell.ok, cell.reason, cell.decode_status) == (False, reason, 200)


def test_a_leg_nobody_listens_on(engine: Start) -> None:
    prefill, first = engine("prefill-0", is_silent)
    cell = pair(first, Side("decode-0", f"http://127.0.0.1:{closed_port()}"))
    assert cell.reason == "decode-0: connection refused"
    assert prefill.left.wait(LONG)


def test_what_there_was_no_time_for_was_not_sent(engine: Start) -> None:
    prefill, first = engine("prefill-0", is_silent)
    _, second = engine("decode-0", is_silent)
    cells = matrix([first], [second] * 3, 0.3, patience=0.3, at_once=1)
    assert [one.ok for one in cells] == [False, None, None]
    assert cells[-1].reason == "not sent: the 0.3 s for all of them were over"
    assert len(prefill.bodies) == 1
    assert matrix([], [second], 1.0) == ()


def test_an_engine_without_a_tokenizer_is_compared_by_ids(engine: Start) -> None:
    _, first = engine("prefill-0")
    said = {"output_ids": [5, 6, 7], "meta_info": {"completion_tokens": 3}}
    decode, second = engine("decode-0", lambda _, face, body: face.answer(200, said))
    assert pair(first, second, prompt=Prompt(ids=(1, 2, 3))).text == "5 6 7"
    assert decode.bodies[0]["input_ids"] == [1, 2, 3]
    assert "text" not in decode.bodies[0]


def limit(tokens: int) -> Handler:
    """Refuses what is longer; as sglang's tokenizer manager does."""

    def generate(one: Engine, face: Face, body: dict[str, Any]) -> None:
        if len(body["input_ids"]) > tokens:
            face.answer(400, {"error": {"message": "The input is longer than the model's context length"}})
        else:
            face.answer(200, result("x"))

    return generate


def test_an_over_long_prompt_is_refused_by_both(engine: Start) -> None:
    _, first = engine("prefill-0", limit(100))
    _, second = engine("decode-0", limit(100))
    (found,) = extras(first, second, LONG, kinds=["over-length"], too_long=101)
    assert (found.kind, found.ok, found.prefill_status, found.decode_status) == ("over-length", True, 400, 400)
    (shorter,) = extras(first, second, LONG, kinds=["over-length"], too_long=100)
    assert shorter.reason == "prefill-0 took a prompt of 100 tokens; decode-0 took a prompt of 100 tokens"
    (unknown,) = extras(first, second, LONG, kinds=["over-length"])
    assert (unknown.ok, unknown.reason) == (None, "not sent: no limit of their prompts is known")


def test_a_decode_that_waits_for_what_the_prefill_refused(engine: Start) -> None:
    _, first = engine("prefill-0", limit(100))
    decode, second = engine("decode-0", is_silent)
    (found,) = extras(first, second, LONG, kinds=["over-length"], too_long=101, patience=0.3)
    assert (found.ok, found.reason) == (False, "decode-0: no answer within 0.3 s")
    assert len(decode.aborted) == 1


def test_a_request_is_left_in_mid_stream_on_both_legs(engine: Start) -> None:
    prefill, first = engine("prefill-0")
    decode, second = engine("decode-0")
    (found,) = extras(first, second, LONG, kinds=["cancel"])
    assert (found.ok, found.reason) == (True, "")
    assert decode.bodies[0]["stream"] is True
    for one in (prefill, decode):
        assert one.left.wait(LONG)
        assert one.aborted == [one.bodies[0]["rid"]]


def test_a_stream_that_never_speaks_cannot_be_left(engine: Start) -> None:
    _, first = engine("prefill-0", is_silent)
    _, second = engine("decode-0", refuses(503, "starting"))
    (found,) = extras(first, second, LONG, kinds=["cancel"])
    assert (found.ok, found.reason) == (False, "decode-0 answered 503: starting")


def two(first: str, second: str) -> Handler:
    return lambda _, face, body: face.answer(200, [result(first), result(second)])


@pytest.mark.parametrize(
    ("decode", "reason"),
    [
        (speaks("a b"), ""),
        (two("a b", "a c"), "its two greedy samples differ"),
        (lambda _, face, body: face.answer(200, result("a b")), "decode-0 gave 1 of 2 samples"),
        (refuses(400, "n > 1"), "decode-0 answered 400: n > 1"),
    ],
)
def test_two_samples_of_one_request(engine: Start, decode: Handler, reason: str) -> None:
    _, first = engine("prefill-0")
    server, second = engine("decode-0", decode)
    (found,) = extras(first, second, LONG, kinds=["n2"])
    assert (found.ok, found.reason) == (not reason, reason)
    assert server.bodies[0]["sampling_params"]["n"] == 2


def test_a_burst_is_eight_rooms(engine: Start) -> None:
    prefill, first = engine("prefill-0")
    _, second = engine("decode-0")
    found = extras(first, second, LONG, kinds=["burst"])
    assert [(one.kind, one.ok, one.text) for one in found] == [("burst", True, "the red fox")] * 8
    assert len({body["bootstrap_room"] for body in prefill.bodies}) == 8


def test_extras_without_time_are_not_sent(engine: Start) -> None:
    _, first = engine("prefill-0")
    found = extras(first, first, 0.0, too_long=5)
    assert [one.kind for one in found] == ["over-length", "cancel", "n2", *["burst"] * 8]
    assert {one.ok for one in found} == {None}


@given(ANY_JSON)
@settings(max_examples=60, deadline=None)
def test_any_answer_has_outputs_or_none(value: object) -> None:
    shapes = [value, [value], {"text": value, "output_ids": value, "meta_info": value}]
    shapes.append({"meta_info": {"finish_reason": value, "completion_tokens": value}, "output_ids": [value]})
    for shape in shapes:
        for output in canary_probe.outputs(shape):
            assert isinstance(output.text, str)
            assert output.tokens or output.finish == "abort"


def test_rooms_are_fresh() -> None:
    rooms = {canary_probe.fresh_room() for _ in range(1000)}
    assert len(rooms) == 1000
    assert all(0 < room < 2**53 - 1 for room in rooms)
    assert canary_probe.EXTRAS == ("over-length", "cancel", "n2", "burst")
