from __future__ import annotations

from itertools import pairwise

import httpx
import pytest

from tests.cases import for_each
from tests.engine.frontend.byte_tokens import ids_of
from tests.engine.frontend.conftest import Engine, events

SLOW = {"sampling_seed": 25}  # milliseconds a token takes in the echo rank


def generate(engine: Engine, **body: object) -> httpx.Response:
    return engine.client.post("/generate", json=body)


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_text_comes_back_with_the_facts_of_its_life(unified: Engine, method: str) -> None:
    response = unified.client.request(method, "/generate", json={"text": "naïve €", "rid": f"one-{method}"})
    answer = response.json()
    assert response.status_code == 200
    assert answer["text"] == "naïve €"
    assert answer["output_ids"] == [*ids_of("naïve €"), 1]
    info = answer["meta_info"]
    assert info["id"] == f"one-{method}"
    assert info["finish_reason"] == {"type": "stop", "matched": 1}
    assert (info["prompt_tokens"], info["completion_tokens"]) == (10, 11)
    assert info["request_received_ts"] < info["request_finished_ts"] <= info["response_sent_to_client_ts"]
    assert 0 < info["first_token_latency"] <= info["e2e_latency"]


def test_ids_are_taken_as_they_are(unified: Engine) -> None:
    answer = generate(unified, input_ids=[5, 299, 6], sampling_params={"max_new_tokens": 2}).json()
    assert answer["output_ids"] == [5, 299]
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 2}


def test_a_batch_is_answered_in_order_even_a_batch_of_one(unified: Engine) -> None:
    texts = [answer["text"] for answer in generate(unified, text=["ab", "c", "def"], rid="batch").json()]
    assert texts == ["ab", "c", "def"]
    alone = generate(unified, input_ids=[[5, 6]]).json()
    assert [answer["output_ids"] for answer in alone] == [[5, 6, 1]]


def test_rids_of_a_batch(unified: Engine) -> None:
    def rids(**body: object) -> list[str]:
        return [answer["meta_info"]["id"] for answer in generate(unified, text=["a", "b"], **body).json()]

    assert rids(rid="r") == ["r_0", "r_1"]
    assert rids(rid=["x", "y"]) == ["x", "y"]
    assert rids(rid="s", sampling_params={"n": 2}) == ["s_0", "s_1", "s_2", "s_3"]


def test_each_prompt_of_a_batch_may_have_its_own_options(unified: Engine) -> None:
    params = [{"max_new_tokens": 1}, {"max_new_tokens": 3, "stop": "d"}]
    first, second = generate(unified, text=["abc", "cde"], sampling_params=params, return_logprob=[True, False]).json()
    assert (first["text"], second["text"]) == ("a", "c")
    assert first["meta_info"]["output_token_logprobs"] == [[-0.5, ids_of("a")[0], None]]
    assert "output_token_logprobs" not in second["meta_info"]


def test_samples_of_a_prompt_stand_together(unified: Engine) -> None:
    answers = generate(unified, text=["ab", "c"], sampling_params={"n": 2}).json()
    assert [answer["text"] for answer in answers] == ["ab", "ab", "c", "c"]


def test_a_stream_grows_and_never_shows_half_a_character(unified: Engine) -> None:
    with unified.client.stream(
        "POST", "/generate", json={"text": "a€🙂b", "stream": True, "sampling_params": SLOW}
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        parts = events(response)
    texts = [part["text"] for part in parts]
    assert texts[-1] == "a€🙂b"
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    # On a busy machine one part holds several tokens; one that ends within a character brings none of its text.
    assert set(texts) <= {"", "a", "a€", "a€🙂", "a€🙂b"}
    assert len(set(texts)) > 1
    assert parts[-1]["meta_info"]["finish_reason"]["type"] == "stop"
    assert all(part["meta_info"]["finish_reason"] is None for part in parts[:-1])


def test_a_stream_of_a_batch_says_which_member_speaks(unified: Engine) -> None:
    body = {"text": ["abc", "de"], "stream": True, "sampling_params": SLOW}
    with unified.client.stream("POST", "/generate", json=body) as response:
        parts = events(response)
    last = {part["index"]: part["text"] for part in parts}
    assert last == {0: "abc", 1: "de"}


@for_each("stream", [False, True])
@for_each(
    ("params", "text", "matched"),
    [
        ({"stop": "lo w"}, "hel", "lo w"),
        ({"stop": ["xyz", "wor", "o"]}, "hell", "o"),
        ({"stop": "world!!", "max_new_tokens": 64}, "hello world", 1),
        ({"stop": "wo", "no_stop_trim": True}, "hello wo", "wo"),
        ({"stop_token_ids": ids_of("w")}, "hello ", ids_of("w")[0]),
        ({"stop_token_ids": [10**30, -4], "top_k": 10**30}, "hello world", 1),
        ({"stop_token_ids": ids_of("w"), "no_stop_trim": True}, "hello w", ids_of("w")[0]),
        ({"skip_special_tokens": False, "no_stop_trim": True}, "hello world<|end|>", 1),
        ({"skip_special_tokens": False, "stop": "zz"}, "hello world", 1),
    ],
)
def test_where_an_answer_stops(
    unified: Engine, params: dict[str, object], text: str, matched: object, stream: bool
) -> None:
    body = {"text": "hello world", "sampling_params": {**SLOW, **params}, "stream": stream}
    if stream:
        with unified.client.stream("POST", "/generate", json=body) as response:
            parts = events(response)
        answer = parts[-1]
        assert all(text.startswith(part["text"]) for part in parts), "a part of the stop string was sent and taken back"
    else:
        answer = unified.client.post("/generate", json=body).json()
    assert answer["text"] == text
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": matched}


def test_a_stop_string_ends_the_work_too(unified: Engine) -> None:
    """The scheduler is told to stop: it would otherwise go on to the length asked for."""
    params = {"stop": "c", "max_new_tokens": 400, "ignore_eos": True, "sampling_seed": 1}
    answer = generate(unified, text="abcd", sampling_params=params).json()
    assert answer["meta_info"]["completion_tokens"] == 3
    assert unified.client.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 0


def test_an_unfinished_character_at_the_end_stays_visible(unified: Engine) -> None:
    answer = generate(unified, text="a€", sampling_params={"max_new_tokens": 3}).json()
    assert answer["text"] == "a\ufffd"


def test_logprobs_are_sglang_triples(unified: Engine) -> None:
    body = {"text": "ab", "return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True}
    info = generate(unified, **body).json()["meta_info"]
    assert info["output_token_logprobs"][0] == [-0.5, ids_of("a")[0], "a"]
    assert info["output_top_logprobs"][1] == [[-0.5, ids_of("b")[0], "b"], [-2.0, 5, "\x02"]]
    assert info["output_token_logprobs_length"] == info["completion_tokens"] == 3
    assert info["input_token_logprobs"] == []


def test_a_default_length_shrinks_to_the_context_and_an_asked_one_must_fit(unified: Engine) -> None:
    prompt = [7] * 500
    answer = generate(unified, input_ids=prompt, sampling_params={"ignore_eos": True}).json()
    assert answer["meta_info"]["completion_tokens"] == 12
    refused = generate(unified, input_ids=prompt, sampling_params={"max_new_tokens": 13})
    assert refused.status_code == 400
    assert "total of 513 tokens: 500 tokens from the input messages and 13" in refused.json()["error"]["message"]


def test_unknown_fields_and_nulls_change_nothing(unified: Engine) -> None:
    body = {
        "text": "ok",
        "no_such_field": {"a": 1},
        "rid": None,
        "sampling_params": {"stop": None, "what": 1},
        "lora_path": None,
    }
    assert generate(unified, **body).json()["text"] == "ok"
