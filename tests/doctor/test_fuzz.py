"""Whatever servers answer, a report comes out: no crash, every code accounted for."""

from __future__ import annotations

import dataclasses
import random
from types import MappingProxyType

from pdctl.catalogue.book import ENTRIES
from pdctl.doctor import check_run
from pdctl.doctor.check import Facts
from tests.cases import for_each
from tests.doctor.fixtures import recorded as real

ODD = (
    None, 0, -1, 1, 7, 10**400,
    float("inf"), float("nan"), True, "", "x", "0.5.23", "9" * 5000, "0.0.0.0", "[", "auto",
    "fp8_e4m3", "prefill", "decode", "null", [], [1], {}, "mlx5_0,mlx5_1", "http://[::1", "\x1b[31m", 8998, 30000,
)  # fmt: skip
KEYS = (
    "tp_size", "dp_size", "pp_size", "attn_dp_size", "attn_cp_size", "enable_dp_attention", "page_size", "dtype",
    "kv_cache_dtype", "disaggregation_bootstrap_port", "disaggregation_mode", "disaggregation_transfer_backend", "port",
    "disaggregation_ib_device", "version", "nnodes", "dist_init_addr", "context_length", "max_total_num_tokens",
    "chunked_prefill_size", "speculative_algorithm", "model_path", "served_model_name", "mamba_ssm_dtype",
    "attention_backend", "load_balance_method", "max_running_requests", "num_reserved_decode_tokens", "log_level",
    "host",
)  # fmt: skip
NAMES = tuple(real.URLS)


def broken(rng: random.Random) -> Facts:
    facts = real.canaried(real.on_gpus(real.healthy()) if rng.random() < 0.5 else real.healthy())
    for _ in range(rng.randrange(1, 8)):
        facts = real.info(facts, rng.choice(NAMES), **{rng.choice(KEYS): rng.choice(ODD)})
    inner = {key: rng.choice(ODD) for key in ("decode_prealloc_queue_reqs", "prefill_inflight_queue_reqs")}
    memory = rng.choice((None, [], {"kv_cache_gb": rng.choice(ODD)}))
    load = {"token_usage": rng.choice(ODD), "disaggregation": rng.choice((None, "x", inner)), "memory": memory}
    model = {"architectures": rng.choice(ODD), "weight_version": rng.choice(ODD)}
    facts = real.on(
        facts,
        rng.choice(NAMES),
        do=lambda one: dataclasses.replace(one, loads=(MappingProxyType(load),), model=MappingProxyType(model)),
    )
    facts = real.boot(
        facts,
        rng.choice(NAMES[:2]),
        style=rng.choice(("", "new", "old")),
        topology=MappingProxyType({"prefill_http_port": rng.choice(ODD)}),
        registered=rng.choice((None, 0, 5)),
        unranked=rng.choice(((), ("",), ("dp0: 404 x",))),
    )
    return real.worker(
        facts,
        rng.choice(NAMES),
        url=rng.choice(("", "http://", "http://[::1", "http://h:99999999", real.URLS["prefill-0"])),
        role=rng.choice(("", "prefill", "decode", "regular")),
        bootstrap_port=rng.choice((None, -1, 0, 8998)),
    )


@for_each("seed", range(60))
def test_odd_answers_give_a_report(seed: int) -> None:
    report = check_run.run(broken(random.Random(seed)))
    assert len(report.checks) == len(ENTRIES)
    assert all(one.headline and one.fix for one in report.findings)
