"""Sampling over a pair: the first token comes from the prefill, the others from the decode, and nobody can tell."""

from __future__ import annotations

import pytest

from pdctl.engine.ipc.messages import Generate, Sampling
from tests.engine.scheduler.rig import Pair, Station, ask, ids, pair, unified, with_fields

PLAIN = {"max_new_tokens": 12, "ignore_eos": True}
WISHES: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.0, "seed": 7},
    "filtered": {"temperature": 1.3, "seed": 8, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "penalties": {"temperature": 0.0, "frequency_penalty": 1.5, "presence_penalty": 0.5, "repetition_penalty": 1.3},
}


def wish(rid: str, room: int, prompt: list[int] | int = 19, **sampling: object) -> Generate:
    made = Sampling(**{**PLAIN, **sampling})  # type: ignore[arg-type]
    return with_fields(ask(rid, prompt, room=room), sampling=made, return_logprob=True, top_logprobs_num=3)


def run(both: Pair, station: Station, *requests: Generate) -> None:
    both.run(*requests)
    station.run(*requests)


def test_tokens_and_log_probabilities_are_those_of_one_engine() -> None:
    with pair() as both, unified() as station:
        requests = [wish(rid, room, **fields) for room, (rid, fields) in enumerate(WISHES.items(), 1)]
        run(both, station, *requests)
        for request in requests:
            rid = request.rid
            assert both.decode.answer[rid] == station.answer[rid]
            assert both.decode.logprobs[rid] == pytest.approx(station.logprobs[rid], abs=1e-4)
            assert len(both.decode.logprobs[rid]) == 12
            assert both.decode.finish[rid] == station.finish[rid]


def test_the_first_token_may_be_the_last() -> None:
    """The prefill's token stops the answer: the decode never runs."""
    with pair() as both, unified() as station:
        station.run(ask("look", ids(19), tokens=2))
        first, second = station.answer["look"]
        stop = {"temperature": 0.0, "prompt": ids(19)}
        run(both, station, wish("first", 1, stop_token_ids=(first,), **stop), wish("one", 2, max_new_tokens=1, **stop))
        assert both.decode.answer == {"first": [first], "one": [first]}
        assert both.decode.finish == {rid: station.finish[rid] for rid in ("first", "one")}
        if first != second:
            run(both, station, wish("second", 3, stop_token_ids=(second,), **stop))
            assert both.decode.answer["second"] == [first, second]


@pytest.mark.parametrize("least", [1, 2, 5])
def test_an_answer_does_not_end_before_its_shortest_length(least: int) -> None:
    """Nor does it hold the tokens that would have ended it."""
    with pair() as both, unified() as station:
        station.run(ask("look", ids(19), tokens=12))
        likely = tuple(dict.fromkeys(station.answer["look"]))
        run(
            both,
            station,
            wish("least", 1, ids(19), temperature=0.0, stop_token_ids=likely, min_new_tokens=least, ignore_eos=False),
        )
        got = both.decode.answer["least"]
        assert got == station.answer["least"]
        assert len(got) > least
        assert not set(got[:least]) & set(likely)
