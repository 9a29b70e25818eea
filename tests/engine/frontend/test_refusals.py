"""What a client does wrong is said in one sentence, with the status it deserves; the engine goes on."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from pdctl.engine.ipc.http_protocol import MAX_BODY
from tests.cases import for_each
from tests.engine.frontend.conftest import Engine, running

ROUTES = ("/generate", "/v1/completions", "/v1/chat/completions")
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def refused(response: httpx.Response, status: int, *words: str) -> None:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == status
    assert "Traceback" not in response.text
    for word in words:
        assert word in error["message"]


@for_each("path", ROUTES)
@for_each(
    ("raw", "said"),
    [
        (b"", "the body is not valid JSON: EOF while parsing"),
        (b"{", "the body is not valid JSON"),
        (b'{"text": "\xff\xfe"}', "the body is not valid JSON: invalid unicode"),
        (b'{"text": "\\ud800"}', "the body is not valid JSON"),
        (b"[1, 2]", "Input should be"),
        (b'"text"', "Input should be"),
        (b"null", "Input should be"),
        (b"[" * 100_000, "the body is not valid JSON"),
    ],
)
def test_bodies_that_are_not_a_json_object(unified: Engine, path: str, raw: bytes, said: str) -> None:
    refused(unified.client.post(path, content=raw), 400, said)


@for_each(
    ("body", "said"),
    [
        ({}, "Either text or input_ids should be provided."),
        ({"text": "a", "input_ids": [5]}, "not both"),
        ({"text": ""}, "text cannot be empty"),
        ({"text": []}, "text cannot be empty"),
        ({"text": ["a", ""]}, "text cannot be empty"),
        ({"input_ids": []}, "input_ids cannot be empty"),
        ({"input_ids": [[]]}, "input_ids cannot be empty"),
        ({"input_ids": [5, -1]}, "input_ids contains -1, which is not in the vocabulary: valid range is [0, 300)"),
        ({"input_ids": [300]}, "input_ids contains 300"),
        ({"input_ids": [10**30]}, "input_ids contains 1000"),
        ({"input_ids": [1, "a"]}, "input_ids.1: Input should be a valid integer (got 'a')"),
        ({"text": 5}, "text: Input should be a valid string (got 5)"),
        ({"text": "a", "stream": "yes"}, "stream: Input should be a valid boolean (got 'yes')"),
        ({"text": "a", "rid": 7}, "rid: Input should be a valid string (got 7)"),
        ({"text": "a", "rid": ""}, "rid must be 1 to 256 printable characters"),
        ({"text": "a", "rid": "x" * 257}, "rid must be 1 to 256 printable characters"),
        ({"text": "a", "rid": "a\nb"}, "rid must be 1 to 256 printable characters"),
        ({"text": "a", "rid": "a b"}, "without spaces, quotes, brackets and backslashes, got 'a b'"),
        ({"text": "a", "rid": "a' phase=aborted"}, "without spaces, quotes, brackets and backslashes"),
        ({"text": ["a", "b"], "rid": ["a", "[2026-11-22"]}, "without spaces, quotes, brackets and backslashes"),
        ({"text": ["a", "b"], "rid": ["x"]}, "rids length mismatch"),
        ({"text": ["a", "b"], "rid": ["x", "x"]}, "Duplicate request IDs detected within the request: ['x']"),
        ({"text": "a", "sampling_params": [{}, {}]}, "sampling_params has 2 entries for 1 prompt(s)"),
        ({"text": ["a", "b"], "sampling_params": [{"n": 1}, {"n": 2}]}, "should be the same for all samples"),
        ({"text": "a", "routed_dp_rank": 1}, "routed_dp_rank=1 out of range [0, 1)"),
        ({"text": "a", "data_parallel_rank": -1}, "data_parallel_rank: Input should be greater than or equal to 0"),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": 1000}, "top_logprobs_num must be in [0, 128]"),
        ({"text": "a", "logprob_start_len": 0}, "output tokens only"),
        ({"text": "a", "lora_path": "x"}, "not supported by this engine: lora_path"),
        (
            {"text": "a", "sampling_params": {"regex": "a+", "json_schema": "{}"}},
            "not supported by this engine: json_schema, regex",
        ),
    ],
)
def test_generate_bodies(unified: Engine, body: dict[str, object], said: str) -> None:
    refused(unified.client.post("/generate", json=body), 400, said)


@for_each("path", ROUTES)
def test_a_priority_is_a_whole_number(unified: Engine, path: str) -> None:
    body = '{"text": "a", "prompt": "a", "messages": [{"role": "user", "content": "a"}], "priority": %s}'
    for value in ("1e400", "1.5", '"high"', "true"):
        refused(unified.client.post(path, content=body % value), 400, "priority: Input should be a valid integer")
    assert unified.client.post(path, content=body % "3").status_code == 200


@for_each("path", (*ROUTES, "/abort_request"))
def test_a_compressed_body_is_refused(unified: Engine, path: str) -> None:
    headers = {"content-encoding": "gzip"}
    refused(unified.client.post(path, content=b'{"text": "a"}', headers=headers), 400, "compressed", "send it plain")


@for_each(
    ("params", "said"),
    [
        ({"max_new_tokens": -5}, "max_new_tokens must be at least 0, got -5."),
        ({"max_new_tokens": "five"}, "sampling_params.max_new_tokens: Input should be a valid integer (got 'five')"),
        ({"max_new_tokens": 2.5}, "sampling_params.max_new_tokens: Input should be a valid integer"),
        ({"max_new_tokens": 10**30}, "exceeds the model's maximum context length"),
        ({"temperature": -0.1}, "temperature must be a non-negative finite number, got -0.1."),
        ({"top_p": 0}, "top_p must be in (0, 1], got 0.0."),
        ({"top_p": 1.1}, "top_p must be in (0, 1], got 1.1."),
        ({"top_k": 0}, "top_k must be -1 (disable) or at least 1, got 0."),
        ({"min_p": 2}, "min_p must be in [0, 1], got 2.0."),
        ({"frequency_penalty": 3}, "frequency_penalty must be in [-2, 2], got 3.0."),
        ({"repetition_penalty": 0}, "repetition_penalty must be in (0, 2]"),
        ({"min_new_tokens": 9, "max_new_tokens": 3}, "min_new_tokens must be in [0, max_new_tokens(3)], got 9."),
        ({"n": 0}, "n must be in [1, 128], got 0."),
        ({"n": 129}, "n must be in [1, 128], got 129."),
        ({"sampling_seed": 1 << 63}, "sampling_seed must be in"),
        ({"stop": ["a"] * 65}, "at most 64 stop strings are allowed, got 65"),
        ({"stop": "a" * 1025}, "1024 characters at most"),
    ],
)
def test_sampling_parameters(unified: Engine, params: dict[str, object], said: str) -> None:
    refused(unified.client.post("/generate", json={"text": "a", "sampling_params": params}), 400, said)


def test_not_a_number_is_not_a_temperature(unified: Engine) -> None:
    raw = b'{"text": "a", "sampling_params": {"temperature": NaN}}'
    refused(
        unified.client.post("/generate", content=raw),
        400,
        "sampling_params.temperature: Input should be a finite number",
    )


def test_a_prompt_too_long_names_both_numbers(unified: Engine) -> None:
    said = "The input (600 tokens) is longer than the model's context length (512 tokens)."
    refused(unified.client.post("/generate", json={"text": "a" * 600}), 400, said)
    refused(unified.client.post("/generate", json={"input_ids": [5] * 600}), 400, said)
    refused(unified.client.post("/v1/completions", json={"prompt": "a" * 600}), 400, said)
    chat = {"messages": [{"role": "user", "content": "a" * 599}]}
    refused(unified.client.post("/v1/chat/completions", json=chat), 400, said)


def test_a_text_far_too_long_is_not_even_tokenized(unified: Engine) -> None:
    text = "a" * 2_000_000
    said = ("2000000 bytes of text, at least", "context length (512 tokens)")
    refused(unified.client.post("/generate", json={"text": text}), 400, *said)


@pytest.mark.parametrize("declared", [True, False])
def test_a_huge_body_is_turned_away(unified: Engine, declared: bool) -> None:
    block = b" " * (1 << 20)
    blocks = MAX_BODY // len(block) + 1
    headers = {"content-length": str(blocks * len(block))} if declared else {}
    try:
        response = unified.client.post("/generate", content=(block for _ in range(blocks)), headers=headers)
    except httpx.WriteError:
        return  # the connection was closed while we were still sending: turned away as well
    refused(response, 413, f"larger than {MAX_BODY} bytes")


@for_each(
    ("body", "said"),
    [
        ({}, "prompt: Field required"),
        ({"prompt": ""}, "Prompt cannot be empty"),
        ({"prompt": []}, "Prompt cannot be empty"),
        ({"prompt": ["a", ""]}, "Prompt cannot be empty"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens must be positive"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "echo": True, "logprobs": 1}, "echo with logprobs"),
        ({"prompt": "a", "suffix": "b"}, "not supported by this engine: suffix"),
        ({"prompt": "a", "logit_bias": {"5": 1}}, "not supported by this engine: logit_bias"),
        ({"prompt": "a", "logprobs": -1}, "must be in [0, 128], got -1"),
        ({"prompt": "a", "response_format": {"type": "json_object"}}, "response_format 'json_object'"),
    ],
)
def test_completion_bodies(unified: Engine, body: dict[str, object], said: str) -> None:
    refused(unified.client.post("/v1/completions", json=body), 400, said)


@for_each(
    ("body", "said"),
    [
        ({}, "messages: Field required"),
        ({"messages": []}, "Messages cannot be empty"),
        ({"messages": ["hi"]}, "messages.0: Input should be"),
        ({"messages": [{"content": "hi"}]}, "messages.0.role: Field required"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content: Input should be a string"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages.0.content: this model reads text parts only",
        ),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "does not accept these messages: Unknown role: robot"),
        ({**CHAT, "max_tokens": 0}, "max_completion_tokens must be positive"),
        ({**CHAT, "tool_choice": "required"}, "tool_choice"),
        ({**CHAT, "n": 0}, "n must be in [1, 128]"),
        ({**CHAT, "continue_final_message": True}, "continue_final_message"),
    ],
)
def test_chat_bodies(unified: Engine, body: dict[str, object], said: str) -> None:
    refused(unified.client.post("/v1/chat/completions", json=body), 400, said)


def test_a_line_of_the_log_holds_the_beginning_of_a_long_path(unified: Engine) -> None:
    refused(unified.client.get("/" + "b" * 7000), 404, "b" * 399 + "... (7001 characters)")
    line = unified.wait_for("bbbb")
    assert line.endswith('b... (7001 characters) HTTP/1.1" 404 Not Found')
    assert len(line) < 600


def test_routes_and_methods_that_do_not_exist(unified: Engine) -> None:
    refused(unified.client.get("/get_load"), 404, "GET /get_load: Not Found")
    refused(unified.client.post("/flush_cache/"), 404, "POST /flush_cache/: Not Found")
    refused(unified.client.get("/generate"), 405, "Method Not Allowed")
    refused(unified.client.get("/v1/models/other"), 404, "'other' does not exist; this instance serves 'echo'")
    refused(unified.client.get("/v1/loads?dp_rank=x"), 400, "dp_rank")
    refused(unified.client.get("/v1/loads?dp_rank=3"), 400, "dp_rank=3 out of range [0, 1)")
    refused(unified.client.get("/v1/loads?format=xml"), 400, "json or prometheus")


@for_each("path", ["/generate", "/v1/completions", "/v1/chat/completions"])
@for_each("stream", [False, True])
@for_each("code", [400, 500, 503])
def test_the_schedulers_reason_reaches_the_client(unified: Engine, path: str, stream: bool, code: int) -> None:
    """Before the first token also a stream fails with a real status: a router can act on that."""
    command = f"!fail {code}"
    body = {"text": command, "prompt": command, "messages": [{"role": "system", "content": command}], "stream": stream}
    response = unified.client.post(path, json=body)
    refused(response, code, "Decode transfer failed: Request None timed out")
    assert response.json()["error"]["type"] == "transfer_timeout"
    assert response.headers.get("retry-after") == ("1" if code == 503 else None)


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions"])
def test_a_stream_that_fails_later_says_so_and_ends(unified: Engine, path: str) -> None:
    command = "!late 500"
    body = {"text": command, "prompt": command, "messages": [{"role": "system", "content": command}], "stream": True}
    response = unified.client.post(path, json=body)
    lines = [line for line in response.text.split("\n\n") if line]
    assert response.status_code == 200
    assert lines[-1] == "data: [DONE]"
    assert '"message":"Decode transfer failed: Request None timed out","type":"transfer_timeout"' in lines[-2]


def test_one_failure_ends_the_batch(unified: Engine) -> None:
    texts = ["!fail 500", "!mute", "fine"]
    refused(unified.client.post("/generate", json={"text": texts}), 500, "timed out")
    assert unified.client.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 0


def test_a_rid_in_use_is_refused(unified: Engine) -> None:
    body = {"text": "abc", "rid": "twice", "stream": True, "sampling_params": {"sampling_seed": 60_000}}
    with unified.client.stream("POST", "/generate", json=body) as response:
        lines = response.iter_lines()
        assert next(lines)
        refused(unified.client.post("/generate", json={"text": "a", "rid": "twice"}), 400, "'twice' is already running")


def test_a_full_queue_is_503_with_a_time_to_come_back(model: Path) -> None:
    with running(model, "--max-running-requests", "1", "--max-queued-requests", "2") as engine:
        engine.wait_for("ready to roll")
        texts = ["!mute"] * 3
        with engine.client.stream("POST", "/generate", json={"text": ["abc", *texts[:2]], "stream": True}) as response:
            lines = response.iter_lines()
            assert next(lines)
            refused(engine.client.post("/generate", json={"text": texts}), 503, "The request queue is full")
            full = engine.client.post("/generate", json={"text": texts})
            refused(full, 503, "--max-queued-requests is 2")
            assert 1 <= int(full.headers["retry-after"]) <= 60
