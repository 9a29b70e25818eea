"""Real requests through every pair, pinned by our own room: what really works, whatever health says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.fleet import document, http, legs
from pdctl.fleet.deadline import Deadline, each
from pdctl.fleet.facts import Canary
from pdctl.fleet.legs import Exchange, Prompt, Side
from pdctl.fleet.queues import queues

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pdctl.fleet.http import Answer

__all__ = ["EXTRAS", "PAIR", "Prompt", "Side", "extras", "matrix", "queues"]

PAIR, OVER_LENGTH, CANCEL, N2, BURST = "pair", "over-length", "cancel", "n2", "burst"
EXTRAS = (OVER_LENGTH, CANCEL, N2, BURST)
AT_ONCE = 16  # pairs of the matrix
PATIENCE = 20.0  # seconds for one pair: on a wrong pairing real engines are silent for 300
TOGETHER = 8  # requests of a burst
LONG_ANSWER = 128  # tokens of the answer that is cancelled
FILLER = 1  # the token an over-long prompt is made of


@dataclass(frozen=True, slots=True)
class Errand:
    """One kind of request for one pair: `patience` seconds for it, `whole` for all of them."""

    kind: str
    prefill: Side
    decode: Side
    whole: Deadline
    patience: float
    key: str

    def send(self, body: dict[str, object], *, both: bool = False, leave: bool = False) -> Exchange | None:
        """None when the time for all of them is over."""
        if self.whole.passed:
            return None
        within = self.whole.within(self.patience)
        return legs.exchange(self.prefill, self.decode, body, within, key=self.key, both=both, leave=leave)

    def unsent(self, reason: str = "") -> Canary:
        reason = reason or f"the {self.whole.seconds:.3g} s for all of them were over"
        return Canary(self.kind, self.prefill.name, self.decode.name, 0, None, 0.0, reason=f"not sent: {reason}")

    def result(self, done: Exchange, reason: str) -> Canary:
        """ok without a reason."""
        given = legs.outputs(done.decode.json()) if done.decode.ok else ()
        return Canary(
            kind=self.kind,
            prefill=self.prefill.name,
            decode=self.decode.name,
            room=done.room,
            ok=not reason,
            seconds=done.seconds,
            text=given[0].text if given else "",
            prefill_status=done.prefill.status,
            decode_status=done.decode.status,
            finish_reason=given[0].finish if given else "",
            reason=reason,
        )

    def judged(self, done: Exchange | None) -> Canary:
        """ok: both legs answered 200, and the decode's answer holds tokens that were not aborted."""
        if done is None:
            return self.unsent()
        sides = ((self.prefill.name, done.prefill), (self.decode.name, done.decode))
        problems = [said for name, answer in sides if (said := _problem(name, answer))]
        if not problems and not legs.outputs(done.decode.json()):
            problems = [f"{self.decode.name} answered 200 without a token: {document.excerpt(done.decode.text)}"]
        return self.result(done, "; ".join(problems))


def matrix(
    prefills: Sequence[Side],
    decodes: Sequence[Side],
    deadline: float,
    *,
    prompt: Prompt | None = None,
    patience: float = PATIENCE,
    at_once: int = AT_ONCE,
    key: str = "",
    told: Callable[[Canary], None] | None = None,
) -> tuple[Canary, ...]:
    """One request per pair within `deadline` seconds, by prefill, then decode. `told`: each as it ends, in a thread."""
    whole = Deadline(deadline)
    body = (prompt or Prompt()).body()

    def attempt(errand: Errand) -> Canary:
        cell = errand.judged(errand.send(body))
        if told is not None:
            told(cell)
        return cell

    # Along the diagonals: no instance gets a second room while others have none.
    width = len(decodes)
    order = [(i, (i + shift) % width) for shift in range(width) for i in range(len(prefills))]
    errands = [Errand(PAIR, prefills[i], decodes[j], whole, patience, key) for i, j in order]
    placed = zip(order, each(attempt, errands, at_once, whole), strict=True)
    return tuple(cell for _, cell in sorted(placed, key=lambda one: one[0]))


def extras(
    prefill: Side,
    decode: Side,
    deadline: float,
    *,
    kinds: Sequence[str] = EXTRAS,
    too_long: int | None = None,
    prompt: Prompt | None = None,
    patience: float = PATIENCE,
    key: str = "",
) -> tuple[Canary, ...]:
    """The named kinds on one pair, one after the other. `too_long`: tokens neither side may take, None: not known."""
    whole = Deadline(deadline)
    found: list[Canary] = []
    for kind in kinds:
        errand = Errand(kind, prefill, decode, whole, patience, key)
        if kind == OVER_LENGTH:
            found.append(_over_length(errand, too_long))
        elif kind == CANCEL:
            found.append(_cancel(errand, prompt or Prompt()))
        elif kind == N2:
            found.append(_n2(errand, prompt or Prompt()))
        else:
            found += _burst(errand, prompt or Prompt())
    return tuple(found)


def _over_length(errand: Errand, length: int | None) -> Canary:
    """Good is a 4xx of both legs; `seconds` is until the slower one refused."""
    if length is None:
        return errand.unsent("no limit of their prompts is known")
    done = errand.send(Prompt(ids=(FILLER,) * length, tokens=1).body(), both=True)
    if done is None:
        return errand.unsent()
    sides = ((errand.prefill.name, done.prefill), (errand.decode.name, done.decode))
    wrong = (_not_refused(name, answer, length) for name, answer in sides if not 400 <= answer.status < 500)
    return errand.result(done, "; ".join(wrong))


def _not_refused(name: str, answer: Answer, length: int) -> str:
    return f"{name} took a prompt of {length} tokens" if answer.ok else _problem(name, answer)


def _cancel(errand: Errand, prompt: Prompt) -> Canary:
    """Good is that the decode had begun to speak when both legs were left; what remains of it, the queues show.

    Not for sglang 0.5.13 with NIXL: there a decode's abort ends the prefill's bootstrap thread (quirks of the dialect).
    """
    done = errand.send(Prompt(prompt.text, prompt.ids, LONG_ANSWER).body(), leave=True)
    return errand.result(done, "") if done is not None and done.spoke else errand.judged(done)


def _n2(errand: Errand, prompt: Prompt) -> Canary:
    done = errand.send(prompt.body(samples=2))
    found = errand.judged(done)
    if done is None or not found.ok:
        return found
    texts = [output.text for output in legs.outputs(done.decode.json())]
    if len(texts) != 2:
        return errand.result(done, f"{errand.decode.name} gave {len(texts)} of 2 samples")
    return errand.result(done, "" if texts[0] == texts[1] else "its two greedy samples differ")


def _burst(errand: Errand, prompt: Prompt) -> tuple[Canary, ...]:
    body = prompt.body()
    return each(lambda one: one.judged(one.send(body)), (errand,) * TOGETHER, TOGETHER, errand.whole)


def _problem(name: str, answer: Answer) -> str:
    """Empty for an answer as it should be. A leg that was cancelled because the other failed is no news."""
    if not answer.reached:
        return "" if answer.reason == http.CANCELLED else f"{name}: {answer.reason}"
    if not answer.ok:
        return f"{name} answered {answer.status}: {document.complaint(answer.body)}"
    aborted = [output for output in legs.outputs(answer.json()) if output.finish == "abort"]
    return f"{name} answered 200, aborted: {aborted[0].message}" if aborted else ""
