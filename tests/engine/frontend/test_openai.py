"""/v1/completions and /v1/chat/completions, by hand and through the `openai` client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.engine.frontend.byte_tokens import ids_of
from tests.engine.frontend.conftest import Engine, events

if TYPE_CHECKING:
    import openai

SLOW = 25  # the echo rank's milliseconds for a token travel as the seed


@pytest.fixture(scope="module")
def client(unified: Engine) -> Iterator[openai.OpenAI]:
    import openai  # here: every test process reads this file, one runs it

    with openai.OpenAI(base_url=f"{unified.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="echo", messages=user("hällo"))
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "hällo", "stop")
    # The template puts one special token before the text; the echo gives it back, and an end of its own.
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (7, 8, 15)
    assert answer.model == "echo"
    assert answer.object == "chat.completion"


def test_chat_stream(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="echo", messages=user("hällo"), stream=True, seed=SLOW, stream_options={"include_usage": True}
        )
    )
    first, *middle, last, usage = chunks
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert "".join(chunk.choices[0].delta.content or "" for chunk in middle) == "hällo"
    assert len(middle) > 1
    assert (last.choices[0].finish_reason, last.choices[0].delta.content) == ("stop", None)
    assert not usage.choices
    assert (usage.usage.prompt_tokens, usage.usage.completion_tokens) == (7, 8)
    assert {chunk.id for chunk in chunks} == {first.id}
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


def test_chat_stream_on_the_wire_has_no_usage_unless_asked(unified: Engine) -> None:
    body = {"messages": user("hi"), "stream": True}
    with unified.client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        parts = events(response)
    assert all(part["choices"] and "usage" not in part for part in parts)
    body["stream_options"] = {"continuous_usage_stats": True}
    parts = events(unified.client.post("/v1/chat/completions", json=body))
    assert parts[-1]["usage"]["completion_tokens"] == 4


def test_chat_length_stop_and_samples(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="echo", messages=user("hello"), max_completion_tokens=3)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("he", "length")
    answer = client.chat.completions.create(model="echo", messages=user("hello"), max_tokens=2)
    assert answer.choices[0].message.content == "h"
    answer = client.chat.completions.create(model="echo", messages=user("hello"), stop=["l"], n=2)
    assert [(choice.index, choice.message.content) for choice in answer.choices] == [(0, "he"), (1, "he")]
    assert answer.choices[0].model_extra["matched_stop"] == "l"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 8)


def test_chat_stream_of_two_samples(client: openai.OpenAI) -> None:
    texts = {0: "", 1: ""}
    for chunk in client.chat.completions.create(model="echo", messages=user("hello"), n=2, stream=True, seed=SLOW):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == {0: "hello", 1: "hello"}


@pytest.mark.parametrize("stream", [False, True])
def test_chat_logprobs_give_the_bytes_of_half_characters(client: openai.OpenAI, stream: bool) -> None:
    answer = client.chat.completions.create(
        model="echo",
        messages=[{"role": "system", "content": "aé"}],
        logprobs=True,
        top_logprobs=2,
        stream=stream,
        seed=SLOW,
    )
    chunks = list(answer) if stream else [answer]
    scores = [score for chunk in chunks if chunk.choices[0].logprobs for score in chunk.choices[0].logprobs.content]
    assert [score.bytes for score in scores] == [[0x61], [0xC3], [0xA9], list(b"<|end|>")]
    assert [score.token for score in scores[:2]] == ["a", "\ufffd"]
    assert scores[0].logprob == -0.5
    assert [other.bytes for other in scores[0].top_logprobs] == [[0x61], [0x02]]


def test_chat_content_in_parts_and_a_conversation(client: openai.OpenAI) -> None:
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
        *user("d"),
    ]
    answer = client.chat.completions.create(model="echo", messages=messages)
    assert answer.choices[0].message.content == "Sabcd"
    assert answer.usage.prompt_tokens == 7


def test_chat_without_a_length_runs_to_the_end_of_the_context(unified: Engine) -> None:
    body = {"messages": user("hello"), "ignore_eos": True}
    answer = unified.client.post("/v1/chat/completions", json=body).json()
    assert answer["usage"]["total_tokens"] == 512
    assert answer["choices"][0]["finish_reason"] == "length"


def test_chat_may_bring_ids_instead_of_a_template(unified: Engine) -> None:
    body = {"messages": user("ignored"), "input_ids": ids_of("ids")}
    assert unified.client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"] == "ids"


def test_models(client: openai.OpenAI) -> None:
    import openai

    (model,) = client.models.list().data
    assert (model.id, model.model_extra["max_model_len"]) == ("echo", 512)
    assert client.models.retrieve("echo").id == "echo"
    with pytest.raises(openai.NotFoundError, match="serves 'echo'"):
        client.models.retrieve("gpt")


def test_an_error_reads_well_in_the_client(client: openai.OpenAI) -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match="context length \\(512 tokens\\)") as caught:
        client.completions.create(model="echo", prompt="a" * 600)
    assert caught.value.type == "context_length_exceeded"


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("hello", ["hello"]),
        (["ab", "c"], ["ab", "c"]),
        (ids_of("ids"), ["ids"]),
        ([ids_of("x"), ids_of("yz")], ["x", "yz"]),
    ],
)
@pytest.mark.parametrize("echo", [False, True])
def test_completion_prompts(client: openai.OpenAI, prompt: object, texts: list[str], echo: bool) -> None:
    answer = client.completions.create(model="echo", prompt=prompt, echo=echo)
    assert [choice.text for choice in answer.choices] == [text * 2 if echo else text for text in texts]
    assert [choice.index for choice in answer.choices] == list(range(len(texts)))
    chunks = list(client.completions.create(model="echo", prompt=prompt, echo=echo, stream=True, seed=SLOW))
    streamed = [
        "".join(chunk.choices[0].text for chunk in chunks if chunk.choices[0].index == i) for i in range(len(texts))
    ]
    assert streamed == [choice.text for choice in answer.choices]
    for i in range(len(texts)):  # one chunk or more: on a busy machine tokens travel together
        *before, last = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].index == i]
        assert (set(before) <= {None}, last) == (True, "stop"), "the last chunk of a choice, and no other, says why"


def test_completion_default_length_is_16(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="echo", prompt="x" * 20)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("x" * 16, "length")


def test_completion_usage_counts_a_prompt_once_for_all_its_samples(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="echo", prompt=["ab", "cde"], n=2)
    assert [choice.text for choice in answer.choices] == ["ab", "ab", "cde", "cde"]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 14)
    *_, last = client.completions.create(
        model="echo", prompt=["ab", "cde"], n=2, stream=True, stream_options={"include_usage": True}
    )
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (5, 14)


def test_completion_logprobs(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="echo", prompt="ab", logprobs=1, max_tokens=2)
    scores = answer.choices[0].logprobs
    assert (scores.tokens, scores.token_logprobs, scores.text_offset) == (["a", "b"], [-0.5, -0.5], [0, 1])
    assert scores.top_logprobs == [{"a": -0.5}, {"b": -0.5}]
    chunks = client.completions.create(model="echo", prompt="ab", logprobs=0, max_tokens=2, stream=True, seed=SLOW)
    tokens = [token for chunk in chunks for token in chunk.choices[0].logprobs.tokens]
    assert tokens == ["a", "b"]


def test_completion_stop_string_never_leaks_into_a_stream(unified: Engine) -> None:
    body = {"prompt": "one two three", "stop": "two", "stream": True, "seed": SLOW}
    parts = events(unified.client.post("/v1/completions", json=body))
    assert "".join(part["choices"][0]["text"] for part in parts) == "one "
    assert parts[-1]["choices"][0]["matched_stop"] == "two"


def test_chat_defaults_come_from_the_checkpoint(unified: Engine) -> None:
    """generation_config.json: temperature 0.25, top_k 7. A field in the request wins."""
    from pdctl.engine.frontend.openai import _sampling
    from pdctl.engine.frontend.request_bodies import ChatBody
    from pdctl.engine.frontend.tokenizer import SamplingDefaults

    defaults = SamplingDefaults(temperature=0.25, top_k=7)
    body = ChatBody.model_validate_json(json.dumps({"messages": user("hi"), "top_k": 3}))
    chosen = _sampling(body, defaults)
    assert (chosen["temperature"], chosen["top_k"], chosen["top_p"]) == (0.25, 3, 1.0)
