"""Probe engines: what each reports about itself on its HTTP port (engines/reported_settings.py)."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl.engines.reported_settings import Surface, surfaces
from pdctl.engines.sglang.endpoints import paths
from pdctl.fleet import http_client, peer_json, prober, prometheus_text
from pdctl.fleet.deadline import Deadline, map_within
from pdctl.fleet.observations import ObservedEngine, Reply
from pdctl.fleet.prober import Prober
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pdctl.fleet.http_client import Answer
    from pdctl.fleet.observations import Endpoint
    from pdctl.fleet.peer_json import Object

PATHS = paths("server_info")
AT_ONCE = 48  # engines probed at once, with up to five sockets each
PATIENCE = 5.0  # seconds for one request: /server_info and /health ask the scheduler
EVERYTHING = ("model", "loads", "metrics", "health")  # of a Surface, beside what it was started with


class Look(NamedTuple):
    """A reply and the answer it was made from."""

    reply: Reply
    answer: Answer


def probe_engines(
    endpoints: Sequence[Endpoint],
    deadline: float,
    *,
    patience: float = PATIENCE,
    generate: bool = False,
    wanted: Collection[str] = EVERYTHING,
    key: str = "",
    at_once: int = AT_ONCE,
) -> tuple[ObservedEngine, ...]:
    """One ObservedEngine per endpoint, in order, within `deadline` seconds.

    `generate`: ask /health_generate too. `wanted`: those of EVERYTHING that are asked for.
    """
    whole = Deadline(deadline)
    probing = Prober(whole, patience, key)
    named = (*wanted, "health_generate") if generate else tuple(wanted)
    return map_within(lambda endpoint: _probe(endpoint, probing, named), endpoints, at_once, whole)


def mode(url: str, timeout: float = 2.0) -> str | None:
    """The role an engine has now: null, prefill or decode; None if nothing at `url` answers like an engine."""
    for path in PATHS:
        answer = http_client.get(url + path, timeout)
        body = answer.json() if answer.ok else None
        if isinstance(body, dict):
            return peer_json.role(body) or "null"
        if answer.status != 404:
            return None
    return None


def _probe(endpoint: Endpoint, probing: Prober, wanted: Collection[str]) -> ObservedEngine:
    url = endpoint.url.rstrip("/")
    surface, first = _introduced(url, probing)
    if not first[-1].answer.connected:
        return ObservedEngine(endpoint, False, first[-1].reply.reason, replies=tuple(look.reply for look in first))
    model, other = (*surface.model, "", "")[:2] if "model" in wanted else ("", "")
    asked = {"loads": surface.loads, "metrics": surface.metrics, "health": surface.health}
    asked["health_generate"] = surface.health_generate
    paths = list(filter(None, (model, *(path for name, path in asked.items() if name in wanted))))
    answers = zip(paths, probing.ask_all(url, paths), strict=True)
    looks = {path: _read_answer(path, answer, surface) for path, answer in answers}
    if other and looks[model].reply.status == 404:
        model = other
        looks[model] = _read_answer(model, probing.ask(url, model), surface)
    every = (*first, *looks.values())
    info = surface.read(_object(first[-1]))
    loads, metrics = looks.get(surface.loads), looks.get(surface.metrics)
    return ObservedEngine(
        endpoint=endpoint,
        reached=any(look.answer.reached for look in every),
        reason="" if info else _no_info(first[-1].reply),
        info=info,
        model=_object(looks[model]) if model else peer_json.NOTHING,
        loads=peer_json.mappings(peer_json.mapping(loads.reply.body).get("loads")) if loads else (),
        metrics=prometheus_text.totals(metrics.answer.text) if metrics and metrics.reply.ok else MappingProxyType({}),
        health=looks[surface.health].reply if surface.health in looks else None,
        health_generate=looks[surface.health_generate].reply if surface.health_generate in looks else None,
        replies=tuple(look.reply for look in every),
        clock_offset=_clock_offset(every),
    )


def _introduced(url: str, probing: Prober) -> tuple[Surface, tuple[Look, ...]]:
    """The surface of the first info path that does not answer 404, and all looks; the first surface if none does."""
    known, looks = surfaces(), list[Look]()
    for surface in known:
        for path in surface.info:
            looks.append(_read_answer(path, probing.ask(url, path), surface))
            if looks[-1].reply.status != 404:
                return surface, tuple(looks)
    return known[0], tuple(looks)


def _read_answer(path: str, answer: Answer, surface: Surface) -> Look:
    if path == surface.metrics and answer.ok:  # read for its numbers; its 80 KiB of text per engine are not kept
        return Look(Reply(path, answer.status, answer.seconds), answer)
    return Look(prober.reply(path, answer), answer)


def _object(look: Look) -> Object:
    return peer_json.mapping(look.reply.body) if look.reply.ok else peer_json.NOTHING


def _no_info(reply: Reply) -> str:
    if reply.ok:
        return f"{reply.path} answered 200 with something that is not an engine's"
    return f"{reply.path} answered {reply.status}: {reply.reason}" if reply.status else f"{reply.path}: {reply.reason}"


def _clock_offset(looks: Sequence[Look]) -> float | None:
    """The least clock offset consistent with every answer, in seconds; None if none has a Date."""
    seen = [prober.clock_offset(look.answer) for look in looks]
    return max((offset for offset in seen if offset is not None), key=abs, default=None)
