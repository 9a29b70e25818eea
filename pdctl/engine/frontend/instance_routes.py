"""Routes that report on an instance and that control it (sglang 0.5.23 http_server.py); how it switches roles."""

from __future__ import annotations

import dataclasses
import logging
import shlex
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.responses import PlainTextResponse

from pdctl import __version__
from pdctl.engine.drill import fault_points
from pdctl.engine.frontend import responses
from pdctl.engine.frontend.body_reader import read_body
from pdctl.engine.frontend.request_bodies import AbortBody, HttpRefusal, RoleSwitchBody
from pdctl.engine.frontend.responses import instance_of
from pdctl.engine.frontend.tokenizer_manager import EngineStatus
from pdctl.engine.ipc.messages import NOT_IDLE, UNHEALTHY
from pdctl.http_auth import masked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdctl.engine.frontend.responses import EngineInstance
    from pdctl.engine.ipc.messages import SchedulerReport, Switched


log = logging.getLogger("pdctl.engine")

router = APIRouter()
HEALTH_WITHIN = 20.0  # seconds, sglang's HEALTH_CHECK_TIMEOUT
REPORT_WITHIN = 5.0
SCRAPE_WITHIN = 1.0
EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
SPEAKS = "0.5.23"  # the SGLang release whose HTTP, handshake and log forms this engine follows
GIB = 1 << 30
CORE_COUNTS = (
    "num_running_reqs",
    "num_waiting_reqs",
    "num_waiting_uncached_tokens",
    "num_used_tokens",
    "num_total_tokens",
    "num_active_tokens",
    "num_prealloc_ready_tokens",
    "max_total_num_tokens",
    "max_running_requests",
    "total_prefill_uncached_tokens",
    "total_prefill_busy_us",
)
MOMENTS = tuple(f"decode_moment_{power}" for power in range(6))
CORE_RATES = ("token_usage", "gen_throughput", "cache_hit_rate", "utilization")
DISAGGREGATION_COUNTS = (
    "prefill_bootstrap_queue_reqs",
    "prefill_inflight_queue_reqs",
    "decode_prealloc_queue_reqs",
    "decode_transfer_queue_reqs",
    "decode_retracted_queue_reqs",
)
DISAGGREGATION_RATES = ("kv_transfer_speed_gb_s", "kv_transfer_latency_ms")
SECTIONS = {"memory": "memory", "disaggregation": "disagg", "queues": "queues"}  # → its word in `include`
FLUSH_WITHIN = 10.0
ROLES = ("prefill", "decode")
ASK_WITHIN = 10.0  # seconds for every DP group to say whether it could switch
TURN_WITHIN = 90.0  # seconds for every DP group to switch: a registration may take 60


@router.get("/ready")
async def ready(request: Request) -> Response:
    """Answer 200 or 503, with how many ranks have taken each step of the start."""
    instance = instance_of(request)
    status, ranks = instance.manager.status, instance.ranks
    steps: dict[str, int] = {}
    for stage in ranks.stages:
        steps[stage.name] = steps.get(stage.name, 0) + 1
    content = {"status": status.value, "ranks": ranks.expected, "ready": ranks.ready_count, "stages": steps}
    return responses.json(content, 200 if status is EngineStatus.UP else 503)


@router.get("/health")
@router.get("/health_generate")
async def health(request: Request) -> Response:
    """Both run a real one-token request, as in sglang; through the fake KV path, so the other role is not tested."""
    manager = instance_of(request).manager
    await manager.wait_for_role_switch(HEALTH_WITHIN)
    if manager.status is not EngineStatus.UP or not await manager.healthy(HEALTH_WITHIN):
        return Response(status_code=503)
    return Response(status_code=200)


@router.get("/server_info")
@router.get("/get_server_info")
async def server_info(request: Request) -> Response:
    """Resolved arguments, scheduler facts, and an internal state for each DP replica; keys and types are sglang's."""
    instance = instance_of(request)
    _require_started(instance)
    reports = await instance.manager.questions.reports(REPORT_WITHIN)
    states = [{**report.state, "dp_rank": report.dp_rank, "load": report.load} for report in reports]
    content = {
        **_arguments(instance),
        "status": "ready" if instance.manager.status is EngineStatus.UP else instance.manager.status.value,
        "startup_time": instance.phases,
        "internal_states": states,
        "version": f"pdctl-{__version__}",
        "sglang_compat": SPEAKS,
        "frontend": "pdctl",
        "launch_command": shlex.join(masked(sys.orig_argv)),
        "kv_events": None,
    }
    rehearsed = [*instance.args.rehearse, *fault_points.asked_for()]
    if rehearsed:
        content["pdctl_rehearsal"] = rehearsed
    return responses.json(content)


def _arguments(instance: EngineInstance) -> dict[str, Any]:
    """Return the arguments with `auto` and 0 resolved: a router needs the values in use."""
    args, facts = instance.args, instance.ranks.facts
    given = dataclasses.asdict(args)
    del given["rehearse"]  # reported as pdctl_rehearsal, if there is one
    return {
        **given,
        "served_model_name": args.name,
        "tokenizer_path": args.model_path,
        "context_length": instance.context_length,
        "max_total_tokens": facts.get("max_total_num_tokens"),
        "max_total_num_tokens": facts.get("max_total_num_tokens"),
        "max_req_input_len": instance.intake.limits.prompt,
        "num_pages": facts.get("num_pages"),
        "dtype": facts.get("dtype"),
        "kv_cache_dtype": facts.get("kv_cache_dtype"),
        "device": facts.get("device"),
        "disaggregation_transfer_backend": facts.get("transfer_backend") or args.disaggregation_transfer_backend,
        "disaggregation_ib_device": None,
        "load_balance_method": instance.load_balance_method,
        "attn_cp_size": 1,
        "moe_dp_size": 1,
        "enable_dp_attention": args.attn_dp_size > 1,
        "gpu_id_step": 1,
        "nccl_port": None,
        "speculative_algorithm": None,
        "disable_radix_cache": not instance.now.keeps_prefixes,
        "enable_metrics": True,
    }


def _require_started(instance: EngineInstance) -> None:
    if instance.manager.status in (EngineStatus.STARTING, EngineStatus.DEAD):
        instance.manager.admit()


@router.get("/model_info")
@router.get("/get_model_info")
async def model_info(request: Request) -> Response:
    instance = instance_of(request)
    args, checkpoint = instance.args, instance.checkpoint
    return responses.json(
        {
            "model_path": args.model_path,
            "served_model_name": args.name,
            "tokenizer_path": args.model_path,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "load_format": "safetensors",
            "reasoning_parser": None,
            "tool_call_parser": None,
            "disaggregation_mode": instance.manager.mode,
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": checkpoint.model_type,
            "architectures": list(checkpoint.architectures),
        }
    )


@router.get("/v1/models")
async def models(request: Request) -> Response:
    return responses.json({"object": "list", "data": [_card(instance_of(request))]})


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> Response:
    instance = instance_of(request)
    if name != instance.args.name:
        raise HttpRefusal(404, f"The model {name!r} does not exist; this instance serves {instance.args.name!r}.")
    return responses.json(_card(instance))


def _card(instance: EngineInstance) -> dict[str, Any]:
    name = instance.args.name
    return {
        "id": name,
        "object": "model",
        "created": int(instance.started),
        "owned_by": "pdctl",
        "root": instance.args.model_path,
        "parent": None,
        "max_model_len": instance.context_length or None,
    }


@router.get("/v1/loads")
async def v1_loads(request: Request, dp_rank: int | None = None, include: str = "", format: str = "json") -> Response:
    """`format`: json or prometheus, the same numbers as gauges (sglang 0.5.23 entrypoints/v1_loads.py)."""
    instance = instance_of(request)
    _require_started(instance)
    if format not in ("json", "prometheus"):
        raise HttpRefusal(400, f"format={format!r}: this route answers json or prometheus.")
    reports = await instance.manager.questions.reports(REPORT_WITHIN)
    if dp_rank is not None:
        reports = [report for report in reports if report.dp_rank == dp_rank]
        if not reports:
            raise HttpRefusal(400, f"dp_rank={dp_rank} out of range [0, {instance.args.dp_ranks})")
    sections = frozenset(name.strip() for name in include.split(",") if name.strip())
    document = loads(instance, reports, sections)
    if format == "prometheus":
        return Response("\n".join(load_gauges(document["loads"])) + "\n", media_type=EXPOSITION)
    return responses.json(document)


@router.get("/debug/rooms")
async def debug_rooms(request: Request, room: int | None = None) -> Response:
    """Every request that has not ended: its room, the queue it is in, its age, and what it waits for.

    Whoever knows a rid may abort its request, so that only an admin is shown one.
    """
    instance = instance_of(request)
    _require_started(instance)
    groups = await instance.manager.questions.rooms(REPORT_WITHIN)
    rows = [{"dp_rank": group.dp_rank, **msgspec.to_builtins(live)} for group in groups for live in group.rooms]
    if not request.scope["state"]["admin"]:
        rows = [{**row, "rid": None} for row in rows]
    if room is not None:
        rows = [row for row in rows if row["room"] == room]
    return responses.json({"role": instance.now.role, "count": len(rows), "rooms": rows})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Never wait long for a rank: a scrape must be answered even if the scheduler is stuck."""
    instance = instance_of(request)
    try:
        up = instance.manager.status is not EngineStatus.STARTING
        reports = await instance.manager.questions.reports(SCRAPE_WITHIN) if up else []
    except HttpRefusal:
        reports = []
    return Response(instance.metrics.text(reports), media_type=EXPOSITION)


def loads(instance: EngineInstance, reports: Sequence[SchedulerReport], include: frozenset[str]) -> dict[str, Any]:
    """`include` holds sglang's section names (core, memory, disagg, queues); empty or `all` means every one."""
    everything = not include or "all" in include
    left_out = {name for name, word in SECTIONS.items() if not everything and not include & {name, word}}
    rows = [_row(instance, report) for report in reports]
    args = instance.args
    return {
        "timestamp": datetime.now(timezone.utc).isoformat(),
        "version": f"pdctl-{__version__}",
        "accelerator": None,
        "num_accelerators": args.tp_size * args.pp_size,
        "loads": [{key: value for key, value in row.items() if key not in left_out} for row in rows],
    }


def load_gauges(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The lines of `format=prometheus`: every number of the entries, the name of a section before those in it."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        numbers = {key: value for key, value in row.items() if key != "dp_rank"}
        for section in numbers.keys() & SECTIONS.keys():
            inner = numbers.pop(section)
            numbers.update({f"{SECTIONS[section]}_{key}": value for key, value in inner.items()})
        for key, value in numbers.items():
            if isinstance(value, int | float):
                found.setdefault(f"sglang_{key}", []).append((row["dp_rank"], value))
    for name in sorted(found):
        yield f"# TYPE {name} gauge"
        yield from (f'{name}{{dp_rank="{rank}"}} {value}' for rank, value in found[name])


def _row(instance: EngineInstance, report: SchedulerReport) -> dict[str, Any]:
    load, facts = report.load, instance.ranks.facts
    counts = {name: int(load.get(name, 0)) for name in (*CORE_COUNTS, *DISAGGREGATION_COUNTS)}
    retracted = counts["decode_retracted_queue_reqs"]
    rates = {name: load.get(name, 0.0) for name in (*CORE_RATES, *DISAGGREGATION_RATES)}
    moments = [load.get(name, 0.0) for name in MOMENTS]
    return {
        "timestamp": datetime.now(timezone.utc).timestamp(),
        "dp_rank": report.dp_rank,
        **{name: counts[name] for name in CORE_COUNTS},
        **{name: rates[name] for name in CORE_RATES},
        "decode_moments": moments if moments[0] else None,
        "memory": {
            "weight_gb": _gib(facts.get("weight_bytes")),
            "kv_cache_gb": _gib(facts.get("kv_cache_bytes")),
            "graph_gb": 0.0,
            "token_capacity": counts["max_total_num_tokens"],
        },
        "disaggregation": {
            "mode": instance.manager.mode,
            **{name: counts[name] for name in DISAGGREGATION_COUNTS},
            **{name: rates[name] for name in DISAGGREGATION_RATES},
        },
        "queues": {
            "waiting": int(load.get("queue_waiting", 0)),
            "grammar": 0,
            "paused": 0,
            "retracted": retracted,
            "prealloc_ready": int(load.get("prealloc_ready_reqs", 0)),
        },
    }


def _gib(size: object) -> float:
    return round(size / GIB, 3) if isinstance(size, int | float) else 0.0


@router.post("/abort_request")
async def abort_request(request: Request) -> Response:
    """Abort by rid prefix, as sglang does. Answer 200 even if nothing matched: the request may just have ended.

    Where admin requests are protected, other clients can abort only a request whose whole rid they give.
    """
    instance = instance_of(request)
    body = await read_body(request, AbortBody)
    admin = request.scope["state"]["admin"]
    if body.abort_all and not admin:
        raise HttpRefusal(401, "abort_all needs the admin API key or the deployment secret (docs/security.md)")
    instance.manager.abort(body.rid, body.abort_all, exact=not admin)
    return Response(status_code=200)


@router.api_route("/flush_cache", methods=["GET", "POST"])
async def flush_cache(request: Request) -> Response:
    """Answer 400 while requests run, with their number."""
    instance = instance_of(request)
    instance.manager.admit(0)
    replies = await instance.manager.questions.flush(FLUSH_WITHIN)
    refused = [reply.reason for reply in replies if not reply.ok]
    if refused:
        return PlainTextResponse(f"Flush cache failed: {'; '.join(refused)}.\n", 400)
    return PlainTextResponse(
        "Cache flushed.\nPlease check backend logs for more details. "
        "(When there are running or waiting requests, the operation will not be performed.)\n"
    )


@router.post("/pd_role_switch")
async def pd_role_switch(request: Request) -> Response:
    """Turn a prefill into a decode, or the reverse; answer 400 with the reason and the state it is left in."""
    instance = instance_of(request)
    body = await read_body(request, RoleSwitchBody)
    outcome = await RoleSwitchCall(instance).turn(body.new_role.lower(), body.prepare_only)
    return responses.json(outcome.document(), 200 if outcome.success else 400)


@dataclass(frozen=True, slots=True)
class SwitchOutcome:
    """The answer to a role switch. `safe_to_restore`: the instance serves as before; a router may use it again."""

    success: bool
    message: str
    old_role: str
    new_role: str
    safe_to_restore: bool = False

    def document(self) -> dict[str, object]:
        return dataclasses.asdict(self)


class RoleSwitchCall:
    """One role switch at a time."""

    def __init__(self, instance: EngineInstance) -> None:
        self._args, self._manager, self._forget = instance.args, instance.manager, instance.forget_ranks

    async def turn(self, role: str, prepare_only: bool) -> SwitchOutcome:
        manager = self._manager
        old = manager.mode
        refused = self._refused(role)
        if refused is None and role == old:
            return SwitchOutcome(True, "ok", old, role)
        if refused is None:
            manager.status = EngineStatus.SWITCHING
            try:
                refused = await self._take(role, prepare_only)
            finally:
                if manager.status is EngineStatus.SWITCHING:
                    manager.status = EngineStatus.UP
        if refused is not None:
            log.warning("PD role switch rejected (%s -> %s): %s", old, role, refused[0])  # sglang's line
            return SwitchOutcome(False, refused[0], old, role, refused[1])
        return SwitchOutcome(True, "ready", old, role, True) if prepare_only else SwitchOutcome(True, "ok", old, role)

    def _refused(self, role: str) -> tuple[str, bool] | None:
        """Return why no switch is attempted and whether the instance serves as before, in sglang's order and words."""
        manager = self._manager
        checks = (
            (not self._args.enable_pd_role_switch, "--enable-pd-role-switch is not set on this server", True),
            (manager.status is EngineStatus.BROKEN, UNHEALTHY, False),
            (manager.status is EngineStatus.SWITCHING, "another role switch is already in progress", False),
            (role not in ROLES, f"invalid new_role={role!r}", True),
            (manager.mode == "null", "instance is not running in PD disaggregation mode", True),
            (manager.status is not EngineStatus.UP, f"the instance is {manager.status.value}", False),
            (role != manager.mode and manager.running > 0, NOT_IDLE, True),
        )
        return next(((text, safe) for failed, text, safe in checks if failed), None)

    async def _take(self, role: str, prepare_only: bool) -> tuple[str, bool] | None:
        ready = await self._ask(role, ASK_WITHIN, commit=False)
        if ready is not None or prepare_only:
            return ready
        refused = await self._ask(role, TURN_WITHIN, commit=True)
        if refused is None:
            self._manager.become(role)
        elif not refused[1]:
            self._manager.status = EngineStatus.BROKEN
        if self._manager.mode != "prefill" or self._manager.status is EngineStatus.BROKEN:
            self._forget()
        return refused

    async def _ask(self, role: str, seconds: float, *, commit: bool) -> tuple[str, bool] | None:
        try:
            return _problem(await self._manager.questions.switch(role, commit, seconds))
        except HttpRefusal as silence:
            return silence.message, not commit


def _problem(answers: Sequence[Switched]) -> tuple[str, bool] | None:
    """Return why groups refused or failed, and whether all groups still serve as before; None if none did."""
    failed = [answer for answer in answers if not answer.ok]
    if not failed:
        return None
    text = "; ".join(dict.fromkeys(answer.message for answer in failed))
    return text, all(answer.safe for answer in answers)
