"""What an instance says about itself: health, server and model facts, load, metrics (sglang 0.5.23 http_server.py)."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import APIRouter, Request, Response

from pdctl import __version__
from pdctl.engine.drill import fault_points
from pdctl.engine.frontend import responses
from pdctl.engine.frontend.loads import loads
from pdctl.engine.frontend.refusal import Refusal
from pdctl.engine.frontend.tokenizer_manager import Status
from pdctl.http_auth import masked

if TYPE_CHECKING:
    from pdctl.engine.frontend.instance import Instance

router = APIRouter()

HEALTH_WITHIN = 20.0  # seconds, sglang's HEALTH_CHECK_TIMEOUT
REPORT_WITHIN = 5.0
SCRAPE_WITHIN = 1.0
EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
SPEAKS = "0.5.23"  # the SGLang release whose HTTP, handshake and log forms this engine follows


def _instance(request: Request) -> Instance:
    instance: Instance = request.app.state.instance
    return instance


@router.get("/ready")
async def ready(request: Request) -> Response:
    """200 or 503, with what the instance waits for: how many ranks have taken each step of the start."""
    instance = _instance(request)
    status, ranks = instance.manager.status, instance.ranks
    steps: dict[str, int] = {}
    for stage in ranks.stages:
        steps[stage.name] = steps.get(stage.name, 0) + 1
    content = {"status": status.value, "ranks": ranks.expected, "ready": ranks.ready_count, "stages": steps}
    return responses.json(content, 200 if status is Status.UP else 503)


@router.get("/health")
@router.get("/health_generate")
async def health(request: Request) -> Response:
    """Both run a real one-token request, as in sglang; through the fake KV path, so the other role is not tested."""
    manager = _instance(request).manager
    await manager.settled(HEALTH_WITHIN)
    if manager.status is not Status.UP or not await manager.healthy(HEALTH_WITHIN):
        return Response(status_code=503)
    return Response(status_code=200)


@router.get("/server_info")
@router.get("/get_server_info")
async def server_info(request: Request) -> Response:
    """Arguments as resolved, scheduler facts, an internal state for each DP replica; keys and types are sglang's."""
    instance = _instance(request)
    _require_started(instance)
    reports = await instance.manager.reports(REPORT_WITHIN)
    states = [{**report.state, "dp_rank": report.dp_rank, "load": report.load} for report in reports]
    content = {
        **_arguments(instance),
        "status": "ready" if instance.manager.status is Status.UP else instance.manager.status.value,
        "startup_time": instance.phases,
        "internal_states": states,
        "version": f"pdctl-{__version__}",
        "sglang_compat": SPEAKS,
        "frontend": "pdctl",
        "launch_command": shlex.join(masked(sys.orig_argv)),
        "kv_events": None,
    }
    asked_for = [*instance.args.rehearse, *fault_points.words()]
    if asked_for:
        content["pdctl_rehearsal"] = asked_for
    return responses.json(content)


def _arguments(instance: Instance) -> dict[str, Any]:
    """`auto` and 0 never leave the process: a router reads what is in force."""
    args, facts = instance.args, instance.ranks.facts
    given = dataclasses.asdict(args)
    del given["rehearse"]  # said elsewhere, and only where there is one
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


def _require_started(instance: Instance) -> None:
    if instance.manager.status in (Status.STARTING, Status.DEAD):
        instance.manager.admit()


@router.get("/model_info")
@router.get("/get_model_info")
async def model_info(request: Request) -> Response:
    instance = _instance(request)
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
    return responses.json({"object": "list", "data": [_card(_instance(request))]})


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> Response:
    instance = _instance(request)
    if name != instance.args.name:
        raise Refusal(404, f"The model {name!r} does not exist; this instance serves {instance.args.name!r}.")
    return responses.json(_card(instance))


def _card(instance: Instance) -> dict[str, Any]:
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
    """`format=prometheus` is refused: /metrics carries the same numbers under sglang's metric names."""
    instance = _instance(request)
    _require_started(instance)
    if format != "json":
        raise Refusal(400, f"format={format!r}: this route answers JSON; read /metrics for Prometheus text.")
    reports = await instance.manager.reports(REPORT_WITHIN)
    if dp_rank is not None:
        reports = [report for report in reports if report.dp_rank == dp_rank]
        if not reports:
            raise Refusal(400, f"dp_rank={dp_rank} out of range [0, {instance.args.dp_ranks})")
    sections = frozenset(name.strip() for name in include.split(",") if name.strip())
    return responses.json(loads(instance, reports, sections))


@router.get("/debug/rooms")
async def debug_rooms(request: Request, room: int | None = None) -> Response:
    """Every request that has not ended: its room, the queue it is in, its age, and what it waits for."""
    instance = _instance(request)
    _require_started(instance)
    groups = await instance.manager.rooms(REPORT_WITHIN)
    rows = [{"dp_rank": group.dp_rank, **msgspec.to_builtins(live)} for group in groups for live in group.rooms]
    if room is not None:
        rows = [row for row in rows if row["room"] == room]
    return responses.json({"role": instance.now.role, "count": len(rows), "rooms": rows})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Never waits long for a rank: a scrape must come back also when the scheduler is stuck."""
    instance = _instance(request)
    try:
        up = instance.manager.status is not Status.STARTING
        reports = await instance.manager.reports(SCRAPE_WITHIN) if up else []
    except Refusal:
        reports = []
    return Response(instance.metrics.text(reports), media_type=EXPOSITION)
