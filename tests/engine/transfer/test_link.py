"""The words that describe a link, and when operations on one are through: arithmetic in time, on no clock at all."""

from __future__ import annotations

import math

import pytest

from pdctl.engine.drill.modelled_link import WORDS, LinkOp, ModelledLink, OperationStage, Window, Wire, rate
from tests.cases import for_each

LAYERS = 61
LAYER_BYTES = 256 * 1152
USABLE = 45e9  # bytes a second that 400 Gb/s carry


def through(wire: Wire, passages: list[LinkOp], start: float = 0.0) -> list[float]:
    """Seconds after `start` at which each is over, by following `due` and nothing else."""
    ends: dict[int, float] = {}
    while len(ends) < len(passages):
        assert wire.due < math.inf, "something is under way, and nothing will ever happen"
        wire.advance(wire.due)
        for index, passage in enumerate(passages):
            if passage.over:
                ends.setdefault(index, wire.now - start)
    return [ends[index] for index in range(len(passages))]


def alone(link: ModelledLink, nbytes: int, descriptors: int = 1, start: float = 0.0) -> float:
    wire = Wire(link, 0.0)
    return through(wire, [wire.begin(nbytes, descriptors, start)], start)[0]


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("400Gbps", ModelledLink(rate=50e9)),
        ("400Gb/s", ModelledLink(rate=50e9)),
        ("rate=64KiB/s", ModelledLink(rate=65536.0)),
        ("1.5MB", ModelledLink(rate=1.5e6)),
        (
            "400Gbps,op=50us,latency=5us,loss=0.01%,stall=200ms/5s",
            ModelledLink(rate=50e9, op=50e-6, latency=5e-6, loss=1e-4, stall=Window(0.2, 5.0)),
        ),
        ("op=50us, descriptor=1.5us, k=12", ModelledLink(op=50e-6, descriptor=1.5e-6, lanes=12)),
        (
            "flap=2s/30s,seed=7,mtu=1500,retransmit=4ms",
            ModelledLink(flap=Window(2.0, 30.0), seed=7, mtu=1500, retransmit=4e-3),
        ),
        (
            "8Gbps,op=1ms,stall=1s/4s,slower=2",
            ModelledLink(rate=0.5e9, op=2e-3, retransmit=2e-3, stall=Window(2.0, 8.0)),
        ),
    ],
)
def test_words(text: str, link: ModelledLink) -> None:
    read = ModelledLink.parse(text)
    for field in ModelledLink.__dataclass_fields__:
        assert getattr(read, field) == pytest.approx(getattr(link, field)), field


@for_each(
    ("text", "message"),
    [
        ("fast", "fast: write rate=400Gbps"),
        ("0Gbps", "0Gbps: write rate=400Gbps"),
        ("400Gbps,rate=1GB", "rate=1GB: rate is given twice"),
        ("400Gbps,speed=1", "speed=1: no such property of a link; there are rate, op, "),
        ("op=5us,", ": write rate=400Gbps"),
        ("op=50", "op=50: write op=50us"),
        ("op=-5us", "op=-5us: write op=50us"),
        ("loss=100%", "loss=100%: write loss=0.01%"),
        ("loss=0.01", "loss=0.01: write loss=0.01%"),
        ("stall=5s", "stall=5s: write stall=200ms/5s"),
        ("stall=5s/5s", "stall=5s/5s: write stall=200ms/5s"),
        ("stall=0s/5s", "stall=0s/5s: write stall=200ms/5s"),
        ("k=0", "k=0: write k=3"),
        ("k=1.5", "k=1.5: write k=3"),
        ("k=²", "k=²: write k=3"),
        ("slower=0", "slower=0: write slower=100"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"write|no such|twice") as caught:
        ModelledLink.parse(text)
    assert message in str(caught.value)


def test_every_example_can_be_read() -> None:
    for name, word in WORDS.items():
        ModelledLink.parse(f"{name}={word.example}")


def test_a_rate_may_be_in_bits_or_bytes() -> None:
    assert [rate(text) for text in ("8Gbps", "1GB", "1 GB/s", "8000Mbps")] == [1e9] * 4


def test_what_each_property_costs() -> None:
    assert alone(ModelledLink(), 10**9) == 0.0
    assert alone(ModelledLink(rate=1e9), 5 * 10**8) == pytest.approx(0.5)
    assert alone(ModelledLink(rate=1e9, op=0.1, descriptor=0.01, latency=0.2), 5 * 10**8, 3) == pytest.approx(0.83)
    assert alone(ModelledLink(op=0.1), 0) == pytest.approx(0.1)


@pytest.mark.parametrize("lanes", [1, 3, 12, 100])
def test_only_the_cost_per_operation_divides_by_the_lanes(lanes: int) -> None:
    wire = Wire(ModelledLink(rate=USABLE, op=50e-6, lanes=lanes), 0.0)
    ends = through(wire, [wire.begin(LAYER_BYTES, 1, 0.0) for _ in range(LAYERS)])
    assert max(ends) == pytest.approx(math.ceil(LAYERS / lanes) * 50e-6 + LAYERS * LAYER_BYTES / USABLE)


def test_one_lane_is_first_come_first_served() -> None:
    wire = Wire(ModelledLink(rate=100.0), 0.0)
    assert through(wire, [wire.begin(size, 1, 0.0) for size in (100, 10, 50)]) == pytest.approx([1.0, 1.1, 1.6])


def test_the_wire_is_shared_evenly() -> None:
    """100 bytes alone for half a second, then beside 25 others: those take 0.5 s at half the rate."""
    wire = Wire(ModelledLink(rate=100.0, lanes=2), 0.0)
    first = wire.begin(100, 1, 0.0)
    assert through(wire, [first, wire.begin(25, 1, 0.5)]) == pytest.approx([1.25, 1.0])


def test_who_is_cancelled_leaves_the_wire_and_the_lane_to_others() -> None:
    wire = Wire(ModelledLink(rate=100.0), 0.0)
    first, second = wire.begin(100, 1, 0.0), wire.begin(100, 1, 0.0)
    wire.advance(0.5)
    wire.cancel(first)
    assert (first.stage, second.stage) == (OperationStage.LOST, OperationStage.PREPARED)
    assert through(wire, [second]) == pytest.approx([1.5])


def test_losses_cost_their_time_and_are_the_same_in_every_run() -> None:
    lossy = ModelledLink(rate=1e9, loss=0.1, retransmit=0.01, mtu=1000, seed=3)

    def run(link: ModelledLink) -> list[float]:
        wire = Wire(link, 0.0)
        return through(wire, [wire.begin(10**6, 1, 0.0) for _ in range(5)])

    assert run(lossy) == run(lossy)
    other = run(ModelledLink(rate=1e9, loss=0.1, retransmit=0.01, mtu=1000, seed=4))
    assert other != run(lossy)
    # 5,000 packets, of which about a tenth is lost: each costs its own time on the wire and 10 ms.
    assert run(lossy)[-1] == pytest.approx(5 * (1e-3 + 100 * (1e-6 + 0.01)), rel=0.2)
    assert run(ModelledLink(rate=1e9))[-1] == pytest.approx(5e-3)


def test_nothing_moves_in_a_stall() -> None:
    link = ModelledLink(rate=100.0, stall=Window(2.0, 10.0))
    assert alone(link, 500) == pytest.approx(5.0)
    assert alone(link, 1100) == pytest.approx(13.0)  # 10 s, a stall, one more
    assert alone(link, 100, start=10.5) == pytest.approx(2.5)  # begins in one
    assert alone(link, 3000) == pytest.approx(36.0)
    assert alone(ModelledLink(stall=Window(2.0, 10.0)), 100, start=11.0) == pytest.approx(
        1.0
    )  # infinite rate, and still


def test_a_flap_fails_what_is_under_way_and_what_begins_in_it() -> None:
    wire = Wire(ModelledLink(rate=100.0, flap=Window(1.0, 10.0)), 0.0)
    first, queued = wire.begin(2000, 1, 0.0), wire.begin(1, 1, 0.0)
    assert through(wire, [first, queued]) == pytest.approx([10.0, 10.0])
    assert (first.stage, queued.stage) == (OperationStage.LOST, OperationStage.LOST)
    assert wire.begin(1, 1, 10.5).stage == OperationStage.LOST
    after = wire.begin(100, 1, 11.0)
    assert through(wire, [after]) == pytest.approx([12.0])
    assert after.stage == OperationStage.ARRIVED


def test_an_idle_night_is_not_walked_through() -> None:
    """A day of windows of a millisecond would be 86 million steps."""
    link = ModelledLink(rate=100.0, stall=Window(0.0005, 0.001), flap=Window(0.0005, 1000.0))
    start = 86400.0 * 7 + 0.00025
    wire = Wire(link, 0.0)
    passage = wire.begin(1, 1, start)
    assert through(wire, [passage], start)[0] == pytest.approx(0.02, abs=0.0011)


def test_rounding_never_stops_time() -> None:
    """A wire of 400 Gb/s after ten days: what is left of an operation may be less than the clock can tell apart."""
    start = 864000.0
    wire = Wire(ModelledLink(rate=50e9, op=1e-7, lanes=7), start)
    passages = [wire.begin(1 + index, 1, start) for index in range(200)]
    assert len(through(wire, passages, start)) == 200
