"""What `--rehearse` understands, what it refuses, and that nothing changes without it."""

from __future__ import annotations

import pytest

from pdctl.engine.config.engine_flags import parse
from pdctl.engine.config.instance_args import ServerArgs
from pdctl.engine.drill import fault_points
from pdctl.engine.drill.modelled_link import ModelledLink
from pdctl.engine.drill.rehearsed_mistakes import MARK, OPTIONS, Rehearsal, read
from pdctl.engine.scheduler.resources import _speed
from tests.cases import for_each
from tests.engine.scheduler.rig import TINY

BASE = ["--model-path", str(TINY)]


def given(*words: str, role: str = "prefill", environ: dict[str, str] | None = None) -> ServerArgs:
    return parse([*BASE, "--disaggregation-mode", role, *words], environ or {})


def test_nothing_is_rehearsed_unless_asked_for() -> None:
    assert given().rehearsal == Rehearsal()
    assert not given().rehearsal.dies
    assert given().rehearsal.lines == ()


def test_several_may_be_given_in_one_flag_or_in_many() -> None:
    one = given("--rehearse", "slow-transfer=64KiB", "die-after=2")
    many = given("--rehearse", "slow-transfer=64KiB", "--rehearse", "die-after=2")
    assert one == many
    assert one.rehearsal == Rehearsal(
        words=("slow-transfer=64KiB", "die-after=2"), link=ModelledLink(rate=65536.0), die_after=2
    )
    assert ServerArgs.from_json(one.to_json()) == one


@pytest.mark.parametrize(
    ("text", "rate"), [("64KiB", 65536), ("1.5MB", 1_500_000), ("100B", 100), ("2 GiB/s", 2 << 30), ("8KB/s", 8000)]
)
def test_rates(text: str, rate: float) -> None:
    assert read((f"slow-transfer={text}",)).link == ModelledLink(rate=rate)


def test_a_link_is_read_whole() -> None:
    words = "400Gbps,op=50us,stall=200ms/5s"
    made = given("--rehearse", f"link={words}")
    assert made.rehearsal.link == ModelledLink.parse(words)
    assert made.rehearsal.lines[0].startswith(f"{MARK}: link={words}: send KV cache as if over that network")
    assert ServerArgs.from_json(made.to_json()) == made


def test_death_has_one_clock() -> None:
    assert read(("die-in=transfer",)).die_after == 0
    assert read(("die-in=transfer", "die-after=3")).die_after == 3


def test_death_is_a_fault_at_a_step_of_the_role() -> None:
    rehearsal = read(("die-after=3",))
    assert rehearsal.fault("prefill") == "end:prefill.write@after=3"
    assert rehearsal.fault("decode") == "end:decode.transfer@after=3"
    assert all(fault_points.read(rehearsal.fault(role)) for role in ("prefill", "decode"))
    assert Rehearsal().fault("decode") == ""


def test_the_fallback_port_is_the_servers_own_or_stands_for_it() -> None:
    own = given("--rehearse", "null-port-fallback", role="decode")
    assert (own.rehearsal.null_port_fallback, own.disaggregation_bootstrap_port) == (True, 8998)
    other = given("--rehearse", "null-port-fallback=9100", role="decode")
    assert (other.rehearsal.null_port_fallback, other.disaggregation_bootstrap_port) == (True, 9100)


def test_every_option_has_a_loud_line_and_stands_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parse(["--help"], {})
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert "\nrehearsal:\n" in text
    for option in OPTIONS:
        assert f"  {option.name}{option.value} (" in text
    assert read(("die-after=1",)).lines[0].startswith(f"{MARK}: die-after=1: serve N requests")


@for_each(
    ("role", "words", "message"),
    [
        ("prefill", "slow-tranfer=1MB", "slow-tranfer=1MB: no such rehearsal; there are null-port-fallback, "),
        ("prefill", "slow-transfer", "slow-transfer: write slow-transfer=RATE"),
        ("prefill", "slow-transfer=fast", "slow-transfer=fast: write a size per second, such as 64KiB"),
        ("prefill", "slow-transfer=0MB", "slow-transfer=0MB: write a size per second"),
        ("prefill", "link=400Gbps,op=50", "link=400Gbps,op=50: op=50: write op=50us"),
        ("prefill", "link=", "link=: : write rate=400Gbps"),
        ("prefill", "link=1GB slow-transfer=1MB", "slow-transfer=1MB: link=1GB says how fast the link is"),
        ("prefill", "keep-unclaimed-rooms=1", "keep-unclaimed-rooms=1: write keep-unclaimed-rooms"),
        ("prefill", "die-after=-1", "die-after=-1: a whole number of requests is expected"),
        ("prefill", "die-in=bed", "die-in=bed: only `transfer` is known"),
        ("prefill", "die-after=1 die-after=2", "die-after=2: die-after is given twice"),
        ("prefill", "null-port-fallback=9100", "a prefill contacts nobody"),
        ("decode", "null-port-fallback=0", "null-port-fallback=0: a port is 1 to 65535"),
        ("decode", "slow-transfer=1MB", "it belongs to --disaggregation-mode prefill, this is decode"),
        ("null", "die-after=1", "it belongs to --disaggregation-mode prefill or decode, this is unified"),
    ],
)
def test_mistakes_are_named(role: str, words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        given("--rehearse", *words.split(), role=role)
    assert left.value.code == 2
    assert message in capsys.readouterr().err


def test_a_slow_transfer_is_not_printed_as_none() -> None:
    assert [_speed(speed) for speed in (12.344, 0.01, 6.5e-05, 0.0)] == ["12.34", "0.01", "0.000065", "0.00"]
