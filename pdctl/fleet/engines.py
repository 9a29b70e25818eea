"""Engines as they are now: what each says of itself on its HTTP port (sglang 0.5.3 to 0.5.23, and pdctl's own)."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines.sglang.http import paths
from pdctl.fleet import document, exposition, prober
from pdctl.fleet.deadline import Deadline, each
from pdctl.fleet.facts import Engine, Reply
from pdctl.fleet.prober import Prober
from pdctl.fleet.server_info import PATHS as INFO_PATHS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.fleet.document import Object
    from pdctl.fleet.facts import Endpoint
    from pdctl.fleet.http import Answer

MODEL_PATHS = paths("model_info")
(LOADS, *_), (METRICS,), (HEALTH,), (HEALTH_GENERATE,) = map(paths, ("loads", "metrics", "health", "health_generate"))
SAYS = frozenset({"disaggregation_mode", "model_path", "tp_size", "version"})  # every release tells one of them
AT_ONCE = 48  # engines looked at together, with up to five sockets each
PATIENCE = 5.0  # seconds for one look: /server_info and /health ask the scheduler


class Look(NamedTuple):
    """A reply and what it was made of."""

    reply: Reply
    answer: Answer


def probe_engines(
    endpoints: Sequence[Endpoint],
    deadline: float,
    *,
    patience: float = PATIENCE,
    generate: bool = False,
    key: str = "",
    at_once: int = AT_ONCE,
) -> tuple[Engine, ...]:
    """One Engine per endpoint, in order, within `deadline` seconds. `generate`: ask /health_generate too."""
    whole = Deadline(deadline)
    probing = Prober(whole, patience, key)
    return each(lambda endpoint: _probe(endpoint, probing, generate), endpoints, at_once, whole)


def _probe(endpoint: Endpoint, probing: Prober, generate: bool) -> Engine:
    url = endpoint.url.rstrip("/")
    first = _either(url, INFO_PATHS, probing)
    if not first[-1].answer.connected:
        return Engine(endpoint, False, first[-1].reply.reason, replies=tuple(look.reply for look in first))
    paths = [MODEL_PATHS[0], LOADS, METRICS, HEALTH, *([HEALTH_GENERATE] if generate else [])]
    looks = {path: _look(path, answer) for path, answer in zip(paths, probing.ask_all(url, paths), strict=True)}
    if looks[MODEL_PATHS[0]].reply.status == 404:
        looks[MODEL_PATHS[1]] = _look(MODEL_PATHS[1], probing.ask(url, MODEL_PATHS[1]))
    every = (*first, *looks.values())
    info = _server_info(first[-1])
    return Engine(
        endpoint=endpoint,
        reached=any(look.answer.reached for look in every),
        reason="" if info else _no_info(first[-1].reply),
        info=info,
        model=_object(looks.get(MODEL_PATHS[1], looks[MODEL_PATHS[0]])),
        loads=document.mappings(document.mapping(looks[LOADS].reply.body).get("loads")),
        metrics=exposition.totals(looks[METRICS].answer.text) if looks[METRICS].reply.ok else MappingProxyType({}),
        health=looks[HEALTH].reply,
        health_generate=looks[HEALTH_GENERATE].reply if generate else None,
        replies=tuple(look.reply for look in every),
        clock_offset=_clock_offset(every),
    )


def _either(url: str, paths: Sequence[str], probing: Prober) -> tuple[Look, ...]:
    """The first path, and the next one only where that is not known."""
    looks: list[Look] = []
    for path in paths:
        looks.append(_look(path, probing.ask(url, path)))
        if looks[-1].reply.status != 404:
            break
    return tuple(looks)


def _look(path: str, answer: Answer) -> Look:
    if path == METRICS and answer.ok:  # read for its numbers; nobody wants 80 KiB of text per engine
        return Look(Reply(path, answer.status, answer.seconds), answer)
    return Look(prober.reply(path, answer), answer)


def _object(look: Look) -> Object:
    return document.mapping(look.reply.body) if look.reply.ok else document.NOTHING


def _server_info(look: Look) -> Object:
    """A JSON object of something else (mini_lb's, which lists its workers; a dashboard's) is none."""
    said = _object(look)
    return said if not SAYS.isdisjoint(said) else document.NOTHING


def _no_info(reply: Reply) -> str:
    if reply.ok:
        return f"{reply.path} answered 200 with something that is not an engine's"
    return f"{reply.path} answered {reply.status}: {reply.reason}" if reply.status else f"{reply.path}: {reply.reason}"


def _clock_offset(looks: Sequence[Look]) -> float | None:
    """What every answer allows: the largest of the least differences they prove."""
    seen = [prober.clock_offset(look.answer) for look in looks]
    return max((offset for offset in seen if offset is not None), key=abs, default=None)
