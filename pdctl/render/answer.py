"""A streamed answer on stdout and, if requested, the servers that gave it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.fleet.completion_stream import Piece, Summary
from pdctl.launch.ending_reasons import span
from pdctl.render.term import as_json, readable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.fleet.completion_stream import Part
    from pdctl.render.term import Term

SCHEMA = "pdctl.answer/1"


@dataclass(frozen=True, slots=True)
class AnswerSource:
    """Where the answer comes from; `run` is empty for an address that pdctl did not start."""

    run: str
    url: str
    model: str


def show(parts: Iterable[Part], term: Term, details: Term | None) -> None:
    for part in parts:
        if isinstance(part, Piece):
            term.write(readable(part.text) if term.tty else part.text, end="")
            term.flush()
            continue
        term.write()
        term.flush()
        if details:
            details.write(details.style(summary(part), "dim"))


def summary(told: Summary) -> str:
    tokens = told.completion_tokens
    words = [
        f"x-pd-prefill {told.prefill}" if told.prefill else "",
        f"x-pd-decode {told.decode}" if told.decode else "",
        f"x-pd-room {told.room}" if told.room else "",
        f"first token after {span(told.ttft)}",
        f"{tokens} tokens in {span(told.seconds)}" if tokens else span(told.seconds),
        f"ended by {told.finish_reason}" if told.finish_reason else "",
    ]
    return "\n".join(word for word in words if word)


def to_json(source: AnswerSource, parts: Iterable[Part]) -> str:
    """The whole answer as one document. The stream always ends with its summary."""
    text: list[str] = []
    document: dict[str, object] = {"schema": SCHEMA, "run": source.run, "url": source.url, "model": source.model}
    for part in parts:
        if isinstance(part, Piece):
            text.append(part.text)
        else:
            document |= {"text": "".join(text), **dataclasses.asdict(part)}
    return as_json(document)
