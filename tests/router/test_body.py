"""The splice: three fields in, every other byte as it was."""

from __future__ import annotations

import json
import random

import pytest

from pdctl.large_json import BadBody
from pdctl.router.body import MAX_ROOM, GenerationBody
from tests.cases import for_each

FIELDS = ("bootstrap_host", "bootstrap_port", "bootstrap_room")


def spliced(raw: bytes, path: bytes = b"/generate", rooms: tuple[int, ...] = (7,)) -> bytes:
    return GenerationBody(path, raw).addressed("10.0.0.1", 8998, rooms)


def read(raw: bytes) -> dict:
    return json.loads(raw, parse_int=lambda digits: int(digits) if len(digits) < 4000 else digits)


@for_each(
    "raw",
    [
        b"{}",
        b" \n{ } \r\n",
        b'{"text":"hi"}',
        b'{"text" : "}{\\"}" , "n":[{"}":{}}] }',
        b'{"big":123456789012345678901234567890,"e":1.50e-07,"u":"\\u00e9\\ud83d\\ude00"}',
        '{"text":"é😀"}'.encode(),
        b'{"sampling_params":{"bootstrap_room":1}}',
        b'{"half":"\\ud83d","huge":1e999,"long":' + b"7" * 5000 + b"}",
    ],
)
def test_bytes_of_the_client_are_kept(raw: bytes) -> None:
    after = spliced(raw)
    assert after.startswith(raw.rstrip()[:-1])
    assert read(after) == {**read(raw), **dict(zip(FIELDS, ("10.0.0.1", 8998, 7), strict=True))}


@for_each(
    ("raw", "left"),
    [
        (b'{"bootstrap_room":5}', b"{"),
        (b'{"a": 1 , "bootstrap_room" : [1, 2] ,"b":"]"}', b'{"a": 1,"b":"]",'),
        (b'{"bootstrap_port":null,"bootstrap_host":"evil","z":1e999}', b'{"z":1e999,'),
        (b'{"bootstrap\\u005froom":1,"bootstrap_room":2,"k":3}', b'{"k":3,'),
        (b'{"k":"bootstrap_room","bootstrap_room":' + b"9" * 5000 + b"}", b'{"k":"bootstrap_room",'),
        (b'{"a":1,"a":2,"bootstrap_host":"x"}', b'{"a":1,"a":2,'),
    ],
)
def test_fields_of_the_client_are_overwritten(raw: bytes, left: bytes) -> None:
    assert spliced(raw) == left + b'"bootstrap_host":"10.0.0.1","bootstrap_port":8998,"bootstrap_room":7}'


@for_each(
    ("field", "wrong", "wanted"),
    [
        ("bootstrap_room", '"abc"', 'the JSON string "abc"; an integer is expected'),
        ("bootstrap_room", "true", "the JSON boolean true; an integer"),
        ("bootstrap_room", "1.5", "the JSON number 1.5; an integer"),
        ("bootstrap_room", "1e3", "the JSON number 1000.0; an integer"),
        ("bootstrap_room", "[5,2.0]", "the JSON number 2.0; an integer"),
        ("bootstrap_port", "8998.0", "the JSON number 8998.0; an integer"),
        ("bootstrap_room", '{"x":[1,2]}', "the JSON object; an integer"),
        ("bootstrap_room", '[1,"7"]', 'the JSON string "7"; an integer'),
        ("bootstrap_room", "[[1]]", "the JSON array; an integer"),
        ("bootstrap_port", '"8998"', 'the JSON string "8998"; an integer'),
        ("bootstrap_host", "7", "the JSON number 7; a string"),
        ("bootstrap_host", "[null,false]", "the JSON boolean false; a string"),
        ("bootstrap_room", '"\\ud83d"', 'the JSON string "\\ud83d"; an integer'),
    ],
)
def test_a_field_of_the_wrong_type_is_named(field: str, wrong: str, wanted: str) -> None:
    """What the client says there is replaced: a client whose say is lost on a mistake would never learn of it."""
    with pytest.raises(BadBody) as refused:
        GenerationBody(b"/generate", f'{{"text":"hi","{field}":{wrong}}}'.encode())
    assert str(refused.value).startswith(f"{field}: {wanted}")


@for_each("value", ["5", "null", "[5,null]", "-1", "1e999", "1" + 40 * "0"])
def test_numbers_that_could_be_a_room_are_replaced(value: str) -> None:
    assert read(spliced(f'{{"bootstrap_room":{value}}}'.encode()))["bootstrap_room"] == 7


def test_random_documents_survive() -> None:
    source = random.Random(7)
    said = {
        "bootstrap_host": [None, "}", ["a", None]],
        "bootstrap_port": [None, 1, [1, 2]],
        "bootstrap_room": [None, 10**25, []],
    }

    def value(depth: int) -> object:
        kind = source.randrange(7 if depth else 5)
        if kind == 0:
            return source.choice([None, True, False])
        if kind == 1:
            return source.randrange(-(10**25), 10**25)
        if kind == 2:
            return source.uniform(-1e9, 1e9)
        if kind in (3, 4):
            return "".join(source.choice('{}[]":,\\\n é😀bootstrap_room') for _ in range(source.randrange(12)))
        if kind == 5:
            return [value(depth - 1) for _ in range(source.randrange(4))]
        return document(depth - 1)

    def document(depth: int) -> dict:
        names = ["a", "b", "title", "}", *FIELDS]
        return {source.choice(names): value(depth) for _ in range(source.randrange(6))}

    for _ in range(300):
        made = document(3)
        made |= {name: source.choice(said[name]) for name in FIELDS if name in made}
        raw = json.dumps(made, ensure_ascii=source.random() < 0.5, indent=source.choice([None, 1])).encode()
        expected = {name: one for name, one in made.items() if name not in FIELDS}
        after = spliced(raw)
        pairs = json.loads(after, object_pairs_hook=list)
        assert [name for name, _ in pairs][-3:] == list(FIELDS)
        assert json.loads(after) == {**expected, **dict(zip(FIELDS, ("10.0.0.1", 8998, 7), strict=True))}


@for_each(
    ("path", "body", "items"),
    [
        ("/generate", {"text": "a"}, None),
        ("/generate", {"text": ["a"]}, 1),
        ("/generate", {"text": ["a", "b"]}, 2),
        ("/generate", {"input_ids": [1, 2]}, None),
        ("/generate", {"input_ids": [[1], [2], [3]]}, 3),
        ("/generate", {"input_embeds": [[0.1]]}, None),
        ("/generate", {"input_embeds": [[[0.1]], [[0.2]]]}, 2),
        ("/generate", {"text": "a", "sampling_params": {"n": 2}}, None),
        ("/v1/completions", {"prompt": "a"}, None),
        ("/v1/completions", {"prompt": [1, 2]}, None),
        ("/v1/completions", {"prompt": ["a", "b"]}, 2),
        ("/v1/completions", {"prompt": [[1], [2]]}, 2),
        ("/v1/chat/completions", {"messages": []}, None),
        ("/v1/chat/completions", {"messages": [], "n": 1}, None),
        ("/v1/chat/completions", {"messages": [], "n": 3}, 3),
    ],
)
def test_batches_get_a_list_of_distinct_rooms(path: str, body: dict, items: int | None) -> None:
    read = GenerationBody(path.encode(), json.dumps(body).encode())
    rooms = read.rooms()
    sent = json.loads(read.addressed("h", 1, rooms))
    assert read.items == items
    assert all(1 <= room <= MAX_ROOM for room in rooms)
    if items is None:
        assert (sent["bootstrap_host"], sent["bootstrap_port"], sent["bootstrap_room"]) == ("h", 1, rooms[0])
    else:
        assert len(set(rooms)) == items
        assert (sent["bootstrap_host"], sent["bootstrap_port"]) == (["h"] * items, [1] * items)
        assert sent["bootstrap_room"] == list(rooms)


def test_samples_of_one_prompt_take_the_rooms_that_follow() -> None:
    rooms = GenerationBody(b"/generate", b'{"text":"a","sampling_params":{"n":3}}').rooms()
    assert rooms == (rooms[0], rooms[0] + 1, rooms[0] + 2)


@for_each(
    ("raw", "message"),
    [
        (b"", "not valid JSON"),
        (b'{"a":1,}', "line 1 column 7"),
        (b'{\n"a": nope}', "line 2 column 6"),
        (b'{"a":NaN}', "column 6"),
        (b"[1]", "JSON array; an object is expected"),
        (b"null", "JSON null"),
        (b"\xff", "UTF-8"),
        (b'{"a":' * 100_000, "not valid JSON|nested too deeply"),
        (b'{"a":1}{', "unexpected content"),
    ],
)
def test_bad_bodies_name_the_place(raw: bytes, message: str) -> None:
    with pytest.raises(BadBody, match=message):
        GenerationBody(b"/generate", raw)


@for_each(("body", "rids"), [({}, ()), ({"rid": "a"}, ("a",)), ({"rid": ["a", "b"]}, ("a", "b")), ({"rid": ""}, ())])
def test_rids(body: dict, rids: tuple[str, ...]) -> None:
    assert GenerationBody(b"/generate", json.dumps(body).encode()).rids == rids
