"""A large body read piece by piece is the body that a parser reads at once, and nothing in it takes long."""

from __future__ import annotations

import json
import types
from array import array
from collections.abc import Callable, Sequence

import orjson
import pytest

from pdctl.engine.frontend import body_reader
from pdctl.engine.frontend.body_reader import (
    MANY,
    MAX_REST,
    MAX_VALUES,
    PIECE,
    PROMPTS,
    SMALL,
    BodyMemory,
    TokenRules,
    is_large,
    parse,
    read_large,
)
from pdctl.engine.frontend.request_bodies import ChatBody, CompletionBody, GenerateBody, HttpRefusal, RequestBody
from pdctl.large_json import has_more_commas
from tests.cases import for_each

Check = Callable[[Sequence[int]], None]
CONTEXT = 100_000
LONG = SMALL + 1
WORDS = 'né \U0001f98a\n"\\ \u2028 x'  # characters of every length, and escapes


def large(raw: bytes, model: type[RequestBody] = GenerateBody, check: Check = lambda ids: None) -> RequestBody:
    parts = [raw[at : at + 100_001] for at in range(0, len(raw), 100_001)]
    found = read_large(parts, model, TokenRules(CONTEXT, 100, check))
    return found.model_copy(update={name: _lists(value) for name, value in found if name in PROMPTS})


def _lists(value: object) -> object:
    """Arrays as the lists a parser makes."""
    if isinstance(value, list):
        return [_lists(one) for one in value]
    return list(value) if isinstance(value, array) else value


@for_each("ascii_only", [True, False])
@for_each(
    "value",
    [
        {"text": WORDS * 20_000, "bootstrap_room": 7},
        {"text": "x" + "\U0001f98a" * PIECE},
        {"text": [WORDS * 9000, "", "short"], "rid": ["a", "b", "c"]},
        {"input_ids": list(range(90_000)), "stream": True},
        {"input_ids": [[1] * 70_000, [], [2, 3]], "sampling_params": {"max_new_tokens": 3}},
        {"input_ids": [[5]] * 4096},
        {"text": "a", "nobody": ["knows"] * LONG, "return_logprob": True},
        {"text": "a", "image_data": "x" * LONG},
        {"text": "a", "rid": ["r" * 64] * 2000},
    ],
)
def test_what_is_read_piece_by_piece_is_what_a_parser_reads(value: dict[str, object], ascii_only: bool) -> None:
    for indent in (None, 1):
        raw = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
        found, expected = large(raw), parse(raw, GenerateBody)
        assert found.refused == expected.refused
        assert {k: v for k, v in found if k != "image_data"} == {k: v for k, v in expected if k != "image_data"}


def test_the_last_of_two_members_of_one_name_counts() -> None:
    long = json.dumps("x" * LONG).encode()
    for raw in (b'{"text": %s, "text": "b"}' % long, b'{"text": "b", "text": %s}' % long):
        assert large(raw) == parse(raw, GenerateBody)


def test_bodies_of_the_other_routes() -> None:
    prompt = json.dumps({"prompt": [WORDS * 9000], "model": "m"}).encode()
    assert large(prompt, CompletionBody) == parse(prompt, CompletionBody)
    chat = json.dumps({"messages": [{"role": "user", "content": WORDS * 9000}]}).encode()
    assert large(chat, ChatBody) == parse(chat, ChatBody)


@for_each(
    ("raw", "status", "why"),
    [
        (b'{"input_ids":[' + b"1," * CONTEXT + b"1]}", 400, r"input \(100001 tokens\) is longer than .*100000"),
        (b'{"input_ids":[[1],[' + b"1," * CONTEXT + b"1]]}", 400, r"100001 tokens"),
        (b'{"text":[' + b'"a",' * LONG + b'"a"]}', 400, "a request may hold 1 to 4096 prompts"),
        (b'{"input_ids":[' + b"true," * LONG + b"1]}", 400, "input_ids: Input should be a list of integers"),
        (b'{"input_ids":[' + b"1.5," * LONG + b"1]}", 400, "input_ids: Input should be a list of integers"),
        (b'{"input_ids":[' + b"1," * LONG + b"]}", 400, "ends with a comma|not valid JSON"),
        (b'{"input_ids":[' + b"1,,1," * LONG + b"1]}", 400, "not valid JSON|tokens"),
        (b'{"input_ids":"' + b"1," * LONG + b'"}', 400, "input_ids: Input should be"),
        (b'{"text":["' + b"a" * LONG + b'",1]}', 400, "text: Input should be a list of strings"),
        (b'{"text":[' + b"1," * (CONTEXT // 2) + b"1]}", 400, "text: Input should be a string"),
        (b'{"text":"' + b"\\q" * LONG + b'"}', 400, "text: the body is not valid JSON"),
        (b'{"text":"' + b"\xff" * LONG + b'"}', 400, "text: the body is not valid JSON"),
        (b'{"text":"' + b"a" * LONG, 400, "a string has no end"),
        (b"[" + b"1," * LONG + b"1]", 400, "no JSON object"),
        (b'{"text":"a","sampling_params":{"stop":[' + b'"a",' * MAX_REST + b"1]}}", 413, "what is no prompt .* larger"),
        (b'{"text":"a","rid":[' + b'"a",' * 4096 + b'"a"]}', 400, "rid has 4097 entries; a request may hold 1 to 4096"),
        (
            b'{"text":[' + b'"a",' * 4096 + b'"a"],"bootstrap_host":[' + b'"h",' * 4096 + b'"h"]}',
            400,
            "^text has 4097 entries; a request may hold 1 to 4096",
        ),
        (b'{"text":"a","sampling_params":[' + b"{}," * 4096 + b"{}]}", 400, "sampling_params has 4097 entries"),
        (b'{"text":"a","sampling_params":{"stop":[' + b"1," * MAX_VALUES + b"1]}}", 413, "more than 131072 values"),
        (b'{"text":"' + b"a" * (200 * CONTEXT) + b'"}', 400, r"20000000 bytes of text, at least 100\d\d\d tokens"),
    ],
    ids=range(20),
)
def test_what_cannot_be_a_request_is_refused(raw: bytes, status: int, why: str) -> None:
    with pytest.raises(HttpRefusal, match=why) as refused:
        large(raw)
    assert refused.value.status == status


def test_an_error_in_each_item_of_a_list_is_one_error() -> None:
    """16 million of them took half a minute and the memory of the machine."""
    with pytest.raises(HttpRefusal) as refused:
        parse(b'{"text":[' + b"1," * 100 + b"1]}", GenerateBody)
    assert refused.value.message.count("text.") == 1


def test_bytes_that_are_held_are_counted() -> None:
    held = BodyMemory(10)
    held.take(6)
    with pytest.raises(HttpRefusal, match="as many bytes") as refused:
        held.take(5)
    assert refused.value.status == 503
    held.give(6)
    held.take(10)


def test_what_is_unknown_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def measured(small: bytes, model: type[GenerateBody]) -> GenerateBody:
        sizes.append(len(small))
        return parse(small, model)

    monkeypatch.setattr(body_reader, "parse", measured)
    raw = json.dumps({"input_ids": [[1] * 7000] * 200, "nobody": [{"a": 1}] * 100_000}).encode()
    rules = TokenRules(CONTEXT, 100, lambda ids: None)
    assert len(read_large([raw], GenerateBody, rules).input_ids or ()) == 200
    assert sizes[0] < 100


def test_token_ids_are_read_in_small_pieces_into_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """What holds the interpreter is one call of the parser, a look of the garbage collector, a list that is freed."""
    parsed: list[int] = []

    def loads(piece: bytes) -> object:
        parsed.append(len(piece))
        return orjson.loads(piece)

    checked: list[int] = []
    ids = list(range(90_000))
    raw = json.dumps({"input_ids": [ids, ids[:5]]}).encode()
    fake = types.SimpleNamespace(loads=loads, dumps=orjson.dumps, JSONDecodeError=orjson.JSONDecodeError)
    monkeypatch.setattr(body_reader, "orjson", fake)
    rules = TokenRules(CONTEXT, 100, checked.extend)
    found = read_large([raw], GenerateBody, rules).input_ids
    assert found == [array("i", ids), array("i", ids[:5])]
    assert checked == ids + ids[:5]
    assert max(parsed) <= PIECE + 8
    assert len(parsed) > len(raw) // PIECE


def test_a_small_body_of_many_values_is_large_and_one_of_long_text_is_not() -> None:
    assert is_large([b"{}," * MANY, b"{},"], 3 * MANY + 3)
    assert not is_large([b"{}," * MANY, b"a" * 1000], 3 * MANY + 1000)
    assert is_large([b"a" * 1000], 256 << 10)


def test_commas_within_strings_are_no_values() -> None:
    raw = json.dumps({"messages": [{"role": "user", "content": 'a, "b", \\ ' * MAX_VALUES}]}).encode()
    assert large(raw, ChatBody) == parse(raw, ChatBody)
    assert not has_more_commas(raw, 1)
    assert has_more_commas(raw + b",", 1)


def test_an_id_outside_the_vocabulary_ends_the_reading() -> None:
    def check(ids: Sequence[int]) -> None:
        if max(ids) >= 1000:
            raise HttpRefusal(400, f"input_ids contains {max(ids)}")

    for bad in (1000, 1 << 40):
        raw = json.dumps({"input_ids": [[1] * LONG, [bad], [2] * LONG]}).encode()
        with pytest.raises(HttpRefusal, match=f"input_ids contains {bad}"):
            large(raw, check=check)
