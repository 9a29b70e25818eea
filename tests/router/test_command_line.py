"""The command line: sglang_router's spelling, and errors that name the flag."""

from __future__ import annotations

import dataclasses

import pytest

from pdctl.errors import UsageError
from pdctl.router.router_args import HELP, NOT_BY_FIELD, BootstrapCheck, Origin, PolicyName, RouterArgs, parse
from tests.cases import for_each


def words(line: str) -> list[str]:
    return line.split()


def test_workers_are_given_as_to_sglang_router() -> None:
    args = parse(
        words(
            "--pd-disaggregation --prefill http://a:1 8998 --prefill http://b:1/ none --prefill http://[::1]:3 "
            "--decode http://c:1 --decode https://d --policy cache_aware --decode-policy power_of_two"
        )
    )
    assert [(one.origin.url, one.bootstrap_port) for one in args.prefill] == [
        ("http://a:1", 8998),
        ("http://b:1", None),
        ("http://[::1]:3", None),
    ]
    assert [one.origin.url for one in args.decode] == ["http://c:1", "https://d:443"]
    assert (args.policy, args.prefill_policy, args.decode_policy) == (
        PolicyName.CACHE_AWARE,
        None,
        PolicyName.POWER_OF_TWO,
    )


def test_spellings_of_sglang_router_are_taken() -> None:
    args = parse(
        words("--request-timeout-secs 7 --health-check-interval-secs 2 --cb-timeout-duration-secs 3 --log-level warn")
    )
    assert (args.request_timeout, args.health_interval, args.cb_timeout, args.log_level) == (7.0, 2.0, 3.0, "warning")
    assert parse(["--bootstrap-check", "warn"]).bootstrap_check is BootstrapCheck.WARN


@for_each(
    ("line", "message"),
    [
        ("--prefil http://a:1", "unrecognized arguments"),
        ("--prefill a:1", "'a:1' is not a worker's URL"),
        ("--prefill http://a:1/v1", "scheme, host and port alone"),
        ("--prefill http://a:99999", "a port is 1 to 65535"),
        ("--prefill http://a:1 99999", "a bootstrap port is 1 to 65535"),
        ("--prefill http://a:1 http://b:1", "a bootstrap port is 1 to 65535"),
        ("--prefill http://a:1 1 2", "takes URL and PORT"),
        ("--decode http://a:1 --decode http://a:1", "http://a:1 is given twice"),
        ("--prefill http://a:1 --decode http://a:1/", "http://a:1 is given twice"),
        ("--policy fastest", "invalid choice"),
        ("--retries -1", "--retries -1: too small"),
        ("--request-timeout 0", "--request-timeout 0.0: too small"),
        ("--request-timeout nan", "--request-timeout nan: too small"),
        ("--port 70000", "--port 70000"),
    ],
)
def test_mistakes_are_named(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parse(line.split())
    assert left.value.code == 2
    told = capsys.readouterr().err
    assert message in told
    assert len(told.splitlines()) == 2  # the usage, and what is wrong


def test_every_flag_is_explained() -> None:
    by_field = {field.name for field in dataclasses.fields(RouterArgs)} - set(NOT_BY_FIELD)
    assert set(HELP) == by_field | {"rehearse"}


def test_ipv6_is_bracketed_where_a_url_is_built() -> None:
    origin = Origin.parse("http://[fe80::1]:30000")
    assert (origin.host, origin.uri_host, origin.url) == ("fe80::1", "[fe80::1]", "http://[fe80::1]:30000")
    with pytest.raises(UsageError):
        Origin.parse("http://user@h:1")
