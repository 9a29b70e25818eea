"""A prefill rank's way into the bootstrap server's table, with SGLang's patience and its lines."""

from __future__ import annotations

import logging
import socket
import sys
from dataclasses import replace

import pytest

from pdctl.engine.kv_link.bootstrap_client import BootstrapError
from pdctl.engine.prefill.registration import advice, delay, rank_row, server_address
from tests.engine.kv_link.rig import HOST, PREFILL, bootstrap, prefill_side
from tests.ports import free_port


def test_delays_double_up_to_half_a_minute_and_jitter_takes_at_most_a_quarter() -> None:
    assert [delay(1.0, attempts, 0.0) for attempts in (1, 2, 3, 4)] == [0.75, 1.5, 3.0, 6.0]
    assert delay(1.0, 9, 1.0) == 30.0


def test_a_server_that_comes_late_is_found(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pdctl.engine")
    port = free_port()
    with prefill_side(port, registered=False, registration_delay=0.2) as prefill:
        prefill.woken.wait("first failed attempt", lambda: "attempt 1/5 failed" in caplog.text)
        with bootstrap(port) as server:
            assert prefill.manager.registered.wait(10)
            assert server.server.registered == (1, 1)
    assert f"Prefill register attempt 1/5 failed: http://{HOST}:{port}/route: connection refused" in caplog.text
    assert "Prefill successfully registered to bootstrap server." in caplog.text


def test_a_server_that_never_comes_is_reported_and_wakes_the_scheduler(caplog: pytest.LogCaptureFixture) -> None:
    with prefill_side(free_port(), registered=False, registration_delay=0.01) as prefill:
        prefill.woken.wait("final failure", lambda: prefill.manager.registration_failure)
        text = "Prefill instance failed to register to bootstrap server after 5 retries"
        assert prefill.manager.registration_failure == text
        assert not prefill.manager.registered.is_set()
    assert [record.levelname for record in caplog.records].count("WARNING") == 5
    assert f"{text}: http://" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux answers a connection to a multicast address so")
@pytest.mark.parametrize(
    ("host", "error", "fix"),
    [
        ("224.0.0.1", "Network is unreachable", "bring up the network of this host"),
        (HOST, "connection refused", "why the bootstrap server of this instance does not listen"),
    ],
)
def test_the_advice_fits_the_error(host: str, error: str, fix: str) -> None:
    with prefill_side(free_port(), registered=False, registration_delay=0.01, bootstrap_host=host) as prefill:
        prefill.woken.wait("final failure", lambda: prefill.manager.registration_failure)
        last = prefill.manager.registration_error
    assert last is not None
    assert error in last.message
    assert fix in advice(last)


def test_advice_where_no_connection_was_tried_or_one_was_answered() -> None:
    assert "a name that can be looked up" in advice(BootstrapError("no such name", errno=socket.EAI_NONAME))
    assert "what else listens on" in advice(None)
    assert "what else listens on" in advice(BootstrapError("http://127.0.0.1:8998/route: 404", status=404))


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("0.0.0.0", "127.0.0.1:8998"),
        ("", "127.0.0.1:8998"),
        ("::", "[::1]:8998"),
        ("10.0.0.9", "10.0.0.9:8998"),
        ("fe80::1", "[fe80::1]:8998"),
    ],
)
def test_a_wildcard_host_is_dialled_on_the_loopback_of_its_family(host: str, address: str) -> None:
    assert server_address(replace(PREFILL, bootstrap_host=host, bootstrap_port=8998)) == address


def test_the_row_is_a_plain_replica_of_sglang() -> None:
    row = rank_row(replace(PREFILL, attn_tp_rank=1, attn_tp_size=2, dp_rank=3, dp_size=4, http_port=30001), 4711)
    assert (row.attn_tp_rank, row.attn_tp_size, row.attn_dp_size, row.attn_cp_size, row.pp_size) == (1, 2, 1, 1, 1)
    assert (row.system_dp_rank, row.system_dp_size, row.dp_group, row.dp_size) == (3, 4, 3, 4)
    assert (row.rank_ip, row.rank_port, row.page_size, row.kv_cache_dtype) == (HOST, 4711, 4, "float32")
    assert (row.prefill_http_port, row.load_balance_method) == (30001, "follow_bootstrap_room")


def test_attention_dp_is_told_apart_from_replicas() -> None:
    config = replace(PREFILL, attn_tp_rank=1, attn_tp_size=2, attn_dp_rank=3, attn_dp_size=4, pp_rank=1, pp_size=2)
    row = rank_row(config, 4711, "one life")
    assert (row.attn_dp_rank, row.attn_dp_size, row.system_dp_rank, row.system_dp_size) == (3, 4, 0, 1)
    assert (row.dp_group, row.dp_size, row.pp_rank, row.pp_size) == (3, 4, 1, 2)
    assert (config.dp_group, config.dp_groups) == (row.dp_group, row.dp_size)
    assert row.instance_id == "one life"
