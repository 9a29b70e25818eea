from __future__ import annotations

from pdctl.logs.clock import LogTimes, infer_zones, offset_by_entries

HOUR = 3600
IDS = {b"7707449254856086911": 1000.0, b"5111113946003395278": 1010.0, b"6496630583363406345": 1025.0}


def log(
    name: str,
    *,
    own: int | None = None,
    utc: bool = False,
    span: tuple[float, float] | None = (0.0, 3000.0),
    ids: dict[bytes, float] | None = None,
    away: float = 0.0,
) -> LogTimes:
    """A log whose times as written are `away` seconds later than given."""
    found = {key: t + away for key, t in (ids or {}).items()}
    moved = None if span is None else (span[0] + away, span[1] + away)
    return LogTimes(name, own, utc, moved, lambda: found)


def zones(*logs: LogTimes) -> dict[str, int]:
    return {name: found.offset for name, found in infer_zones(logs).items()}


def test_nothing_tells() -> None:
    assert zones(log("prefill0"), log("decode0", ids=IDS)) == {}


def test_a_zone_one_log_shows_is_that_of_the_set() -> None:
    assert zones(log("prefill0", own=HOUR), log("decode0")) == {"prefill0": HOUR, "decode0": HOUR}


def test_shared_rooms_tell_more_than_the_set() -> None:
    prefill = log("prefill0", own=8 * HOUR, ids=IDS, away=8 * HOUR)
    assert zones(prefill, log("decode0", ids=IDS, away=2))["decode0"] == 0
    assert zones(prefill, log("decode0", ids=IDS, away=20700))["decode0"] == 20700  # UTC+05:45


def test_rooms_minutes_apart_tell_nothing_and_the_set_does() -> None:
    prefill = log("prefill0", own=0, ids=IDS)
    assert zones(prefill, log("decode0", ids=IDS, away=400))["decode0"] == 0
    assert zones(prefill, log("decode0", ids=IDS, away=HOUR + 400))["decode0"] == 0


def test_a_zone_inferred_tells_that_of_a_third_log() -> None:
    second = {b"8454906648683667359": 2000.0}
    found = zones(
        log("prefill0", own=0, ids=IDS),
        log("prefill1", ids=second, away=HOUR),
        log("decode0", ids={**IDS, **second}, away=HOUR),
    )
    assert found == {"prefill0": 0, "decode0": HOUR, "prefill1": HOUR}


def test_logs_with_two_zones_tell_nothing_of_a_third() -> None:
    assert "decode0" not in zones(log("prefill0", own=0), log("prefill1", own=HOUR), log("decode0"))


def test_a_router_that_writes_utc_is_in_utc_whatever_the_engines_are_in() -> None:
    engine = log("prefill0", own=8 * HOUR, away=8 * HOUR)
    assert zones(engine, log("router", utc=True)) == {"prefill0": 8 * HOUR, "router": 0}


def test_unless_its_lines_then_stand_beside_none_of_the_engines() -> None:
    engine = log("prefill0", own=8 * HOUR, away=8 * HOUR)
    assert zones(engine, log("router", utc=True, away=8 * HOUR))["router"] == 8 * HOUR


def test_logs_that_end_with_a_router_in_utc_are_that_far_from_it() -> None:
    router = log("router", utc=True, span=(60.0, 2990.0))
    engines = [log("prefill0", away=-5 * HOUR), log("decode0", span=(10.0, 2000.0), away=-5 * HOUR)]
    assert set(zones(router, *engines).items()) == {("router", 0), ("prefill0", -5 * HOUR), ("decode0", -5 * HOUR)}


def test_logs_that_end_elsewhere_share_the_readers_zone_with_the_router() -> None:
    router = log("router", utc=True, span=(60.0, 2990.0))
    assert zones(router, log("prefill0", away=HOUR + 400)) == {}
    assert zones(router, log("prefill0", span=(-5 * HOUR, 3000.0))) == {}


def test_a_log_without_dates_takes_the_zone_of_the_set() -> None:
    assert zones(log("prefill0", own=HOUR), log("decode0", span=None))["decode0"] == HOUR
    assert zones(log("router", utc=True), log("decode0", span=None)) == {}


def test_the_entries_of_requests_tell_the_zone_of_their_lines() -> None:
    assert offset_by_entries([(20700.0 + 1000, 999.8), (20700.0 + 1100, 1000.0)]) == 20700
    assert offset_by_entries([(1000.0, 1000.4), (1600.0, 1590.0)]) == 0
    assert offset_by_entries([(-5 * HOUR + 1000.0, 700.0)]) == -5 * HOUR
    assert offset_by_entries([(1000.0, 999.0), (HOUR + 1000.0, 999.0)]) is None
    assert offset_by_entries([]) is None
