"""What routers, dashboards and tools read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.engine.frontend.conftest import Engine

ANSWERS = Path(__file__).parents[2] / "data" / "answers"
# Types a router's parser insists on (sglang 0.5.23 /server_info).
SERVER_INFO = {
    "model_path": str,
    "served_model_name": str,
    "tokenizer_path": str,
    "disaggregation_mode": str,
    "disaggregation_bootstrap_port": int,
    "disaggregation_transfer_backend": str,
    "tp_size": int,
    "dp_size": int,
    "pp_size": int,
    "ep_size": int,
    "attn_dp_size": int,
    "attn_cp_size": int,
    "moe_dp_size": int,
    "enable_dp_attention": bool,
    "nnodes": int,
    "node_rank": int,
    "base_gpu_id": int,
    "gpu_id_step": int,
    "host": str,
    "port": int,
    "page_size": int,
    "kv_cache_dtype": str,
    "load_balance_method": str,
    "max_running_requests": int,
    "max_total_tokens": int,
    "max_total_num_tokens": int,
    "max_req_input_len": int,
    "context_length": int,
    "chunked_prefill_size": int,
    "disable_radix_cache": bool,
    "log_level": str,
    "enable_metrics": bool,
    "status": str,
    "version": str,
    "sglang_compat": str,
    "internal_states": list,
}


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
@pytest.mark.parametrize("engine", ["unified", "prefill", "decode", "replicas"])
def test_server_info(request: pytest.FixtureRequest, engine: str, path: str) -> None:
    running: Engine = request.getfixturevalue(engine)
    info = running.client.get(path).json()
    assert {name: type(info.get(name)) for name in SERVER_INFO} == SERVER_INFO
    mode = {"unified": "null", "replicas": "null"}.get(engine, engine)
    assert (info["disaggregation_mode"], info["status"], info["port"]) == (mode, "ready", running.port)
    assert info["load_balance_method"] == ("follow_bootstrap_room" if engine == "prefill" else "round_robin")
    # Nothing is left to be guessed: what was `auto` or 0 is what the ranks made of it.
    assert (info["context_length"], info["max_total_tokens"], info["kv_cache_dtype"]) == (512, 4096, "float32")
    assert info["disaggregation_transfer_backend"] == "shm"
    assert [state["dp_rank"] for state in info["internal_states"]] == list(range(info["dp_size"]))
    assert info["version"].startswith("pdctl-")


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
def test_model_info(decode: Engine, path: str) -> None:
    info = decode.client.get(path).json()
    assert info["is_generation"] is True
    assert (info["model_type"], info["architectures"]) == ("llama", ["LlamaForCausalLM"])
    assert info["disaggregation_mode"] == "decode"


@pytest.mark.parametrize("path", ["/health", "/health_generate"])
@pytest.mark.parametrize("engine", ["unified", "prefill", "decode", "replicas"])
def test_health_runs_a_request_and_leaves_no_line(request: pytest.FixtureRequest, engine: str, path: str) -> None:
    running: Engine = request.getfixturevalue(engine)

    def seen() -> int:
        return sum(state["seen"] for state in running.client.get("/server_info").json()["internal_states"])

    before, mark = seen(), len(running.lines)
    response = running.client.get(path)
    assert (response.status_code, response.content) == (200, b"")
    assert seen() == before + 1
    running.wait_for(f'"GET {path} HTTP/1.1" 200 OK', mark)
    assert not any("HEALTH_CHECK" in line for line in running.lines[mark:])


def test_ready(replicas: Engine) -> None:
    response = replicas.client.get("/ready")
    assert response.status_code == 200
    assert response.json() == {"status": "up", "ranks": 4, "ready": 4, "stages": {"weights_loaded": 4}}


def test_loads(unified: Engine, replicas: Engine) -> None:
    answer = unified.client.get("/v1/loads").json()
    (load,) = answer["loads"]
    for name in (
        "num_running_reqs",
        "num_waiting_reqs",
        "num_used_tokens",
        "max_total_num_tokens",
        "max_running_requests",
    ):
        assert type(load[name]) is int, name
    assert load["num_used_tokens"] == 7
    assert load["queues"]["waiting"] == 2
    assert load["memory"]["kv_cache_gb"] == 1.0
    assert load["disaggregation"]["mode"] == "null"
    assert [load["dp_rank"] for load in replicas.client.get("/v1/loads").json()["loads"]] == [0, 1]
    assert [load["dp_rank"] for load in replicas.client.get("/v1/loads?dp_rank=1").json()["loads"]] == [1]
    (core,) = unified.client.get("/v1/loads?include=core,disagg").json()["loads"]
    assert "disaggregation" in core
    assert "memory" not in core


def test_a_load_has_the_keys_of_sglang(unified: Engine) -> None:
    """Those of the recorded entry of 0.5.18, and what 0.5.23 (managers/load_snapshot.py) has beyond."""
    (real,) = json.loads((ANSWERS / "0.5.18-1p" / "prefill0.v1_loads").read_text())["loads"]
    (load,) = unified.client.get("/v1/loads").json()["loads"]
    assert set(load) == {*real, "num_prealloc_ready_tokens"}
    for section in ("memory", "disaggregation", "queues"):
        assert set(load[section]) == set(real[section])


def test_loads_as_prometheus_text(unified: Engine, replicas: Engine) -> None:
    response = replicas.client.get("/v1/loads?format=prometheus")
    assert response.headers["content-type"].startswith("text/plain")
    found = {family.name: family for family in text_string_to_metric_families(response.text)}
    for name in ("num_used_tokens", "total_prefill_busy_us", "num_waiting_uncached_tokens", "queues_waiting"):
        family = found[f"sglang_{name}"]
        assert family.type == "gauge"
        assert sorted(sample.labels["dp_rank"] for sample in family.samples) == ["0", "1"]
    assert {"sglang_disagg_prefill_bootstrap_queue_reqs", "sglang_memory_token_capacity"} <= found.keys()
    core = unified.client.get("/v1/loads?format=prometheus&include=core").text
    assert "sglang_num_used_tokens{" in core
    assert "sglang_memory_" not in core


def samples(engine: Engine) -> dict[str, float]:
    response = engine.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(response.text)
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_metrics_have_sglangs_names_and_count(decode: Engine) -> None:
    body = {"text": "abcd", "bootstrap_host": "10.0.0.1", "bootstrap_port": 8998, "bootstrap_room": 5}
    before = samples(decode)
    decode.client.post("/generate", json=body)
    decode.client.post("/generate", json={**body, "text": "!fail 500"})
    after = samples(decode)

    def grown(name: str) -> float:
        return after[f"sglang:{name}"] - before.get(f"sglang:{name}", 0.0)

    assert grown("num_requests_total") == 2
    assert grown("num_aborted_requests_total") == 1
    assert grown("prompt_tokens_total") == 4 + 9
    assert grown("generation_tokens_total") == 5
    assert grown("num_transfer_failed_reqs_total") == 1
    assert grown("num_bootstrap_failed_reqs_total") == 0
    assert grown("num_prefill_retries_total") == 2
    assert grown("decode_deferred_kv_release_total") == 1
    assert grown("decode_deferred_kv_release_seconds_sum") == 30.25
    assert grown("time_to_first_token_seconds_count") == 1
    assert grown("inter_token_latency_seconds_count") == 4
    assert grown("e2e_request_latency_seconds_count") == 2
    assert grown("kv_transfer_latency_ms_sum") == pytest.approx(8)
    assert 'outcome="timeout"' in decode.client.get("/metrics").text
    assert after["sglang:num_used_tokens"] == 7
    assert after["sglang:num_decode_transfer_queue_reqs"] == 0
    assert after["sglang:page_size"] == 16


def test_metric_labels(decode: Engine, replicas: Engine) -> None:
    text = decode.client.get("/metrics").text
    model = decode.client.get("/v1/models").json()["data"][0]["id"]
    assert re.search(
        rf'sglang:num_running_reqs{{engine_type="decode",model_name="{re.escape(model)}",.*tp_rank="0"}}', text
    )
    ranks = re.findall(r'sglang:num_running_reqs{dp_rank="(\d)"', replicas.client.get("/metrics").text)
    assert sorted(ranks) == ["0", "1"]


def test_flush_cache(unified: Engine) -> None:
    assert unified.client.get("/flush_cache").text.startswith("Cache flushed.")
    body = {"text": "abc", "stream": True, "sampling_params": {"sampling_seed": 60_000}}
    with unified.client.stream("POST", "/generate", json=body) as response:
        lines = response.iter_lines()
        assert next(lines)
        refused = unified.client.post("/flush_cache")
        assert refused.status_code == 400
        assert "1 request(s) are running or queued" in refused.text


def test_replicas_take_turns_and_obey_a_router(replicas: Engine) -> None:
    def ranks(**body: object) -> list[int]:
        answers = replicas.client.post("/generate", json={"text": ["a", "b", "c", "d"], **body}).json()
        return [answer["meta_info"]["dp_rank"] for answer in answers]

    assert sorted(ranks()) == [0, 0, 1, 1]
    assert ranks(routed_dp_rank=1) == [1, 1, 1, 1]
    assert ranks(data_parallel_rank=0) == [0, 0, 0, 0]
