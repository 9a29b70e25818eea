"""The command line of every process: one per node of an instance, alike but for rank and host fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.kinds import EMBEDDED, ENGINES, ROUTERS
from pdctl.engines.sglang.arguments import words
from pdctl.layout.ports import node_http
from pdctl.layout.serving import NodeCommand, Pairs
from pdctl.loopback import bracketed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pdctl.layout.ports import Numbers
    from pdctl.layout.serving import Serving
    from pdctl.layout.shape import Shape
    from pdctl.topology.model import FlagValue, Router

METRICS_FLAG = "prometheus-port"


def instance(serving: Serving, shape: Shape, numbers: Numbers, leader: str) -> tuple[NodeCommand, ...]:
    """One command per node; `leader` is the address at which the other nodes reach node 0."""
    if serving.kind == EMBEDDED:
        nodes = range(shape.nodes)
        return tuple(NodeCommand(node, _embedded(serving, shape, numbers, leader, node), serving.env) for node in nodes)
    return tuple(
        NodeCommand(node, _sglang(serving, shape, numbers, leader, node), serving.env) for node in range(shape.nodes)
    )


def flag_words(flags: Iterable[tuple[str, FlagValue]]) -> tuple[str, ...]:
    """`("moe-dense-tp-size", 1)` → `--moe-dense-tp-size 1`; True: bare, False: left out, a tuple: several values."""
    found: list[str] = []
    for name, value in flags:
        if value is False:
            continue
        found.append(f"--{name}")
        if isinstance(value, tuple):
            found += map(str, value)
        elif value is not True:
            found.append(str(value))
    return tuple(found)


def _embedded(serving: Serving, shape: Shape, numbers: Numbers, leader: str, node: int) -> tuple[str, ...]:
    multi = shape.nodes > 1
    wanted: list[tuple[str, FlagValue | None]] = [
        ("model-path", serving.model_path),
        ("served-model-name", serving.served_name),
        ("host", serving.bind),
        ("port", node_http(numbers, node)),
        ("disaggregation-mode", serving.role),
        ("disaggregation-bootstrap-port", numbers.bootstrap),
        ("disaggregation-transfer-backend", serving.backend),
        ("tp-size", _above_one(shape.tp)),
        ("attn-dp-size", _above_one(shape.dp)),
        ("dp-size", _above_one(shape.replicas)),
        ("pp-size", _above_one(shape.pp)),
        ("ep-size", _above_one(shape.ep)),
        ("nnodes", shape.nodes if multi else None),
        ("node-rank", node if multi else None),
        ("dist-init-addr", f"{bracketed(leader)}:{numbers.dist}" if multi else None),
        ("base-gpu-id", shape.base_gpu_id if serving.gpu_flags and shape.base_gpu_id else None),
        ("page-size", serving.page_size),
        ("dtype", None if serving.dtype == "auto" else serving.dtype),
        ("context-length", serving.context_length),
        ("pace", serving.pace),
        *serving.args,
    ]
    return (serving.command or ENGINES[EMBEDDED].command) + flag_words(
        (name, value) for name, value in wanted if value is not None
    )


def _sglang(serving: Serving, shape: Shape, numbers: Numbers, leader: str, node: int) -> tuple[str, ...]:
    given = dict(serving.args)
    multi = shape.nodes > 1
    dist = f"{bracketed(leader)}:{numbers.dist}" if numbers.dist is not None else None
    wanted: list[tuple[str, object]] = [
        ("model_path", serving.model_path),
        ("served_model_name", serving.served_name),
        ("host", serving.bind),
        ("port", numbers.http),
        ("tp", shape.tp),
        ("attn_dp", _above_one(shape.dp)),
        ("replicas", _above_one(shape.replicas)),
        ("pp", _above_one(shape.pp)),
        # sglang asserts it for pp > 1 in every release up to 0.5.23
        ("no_overlap", (shape.pp > 1 and "disable-overlap-schedule" not in given) or None),
        ("ep", _above_one(shape.ep) if not shape.deepep else None),
        ("deepep", (shape.deepep and "moe-a2a-backend" not in given) or None),
        ("attn_cp", _above_one(shape.cp) if "attn-cp-size" not in given else None),
        ("moe_dp", _above_one(shape.moe_dp) if "moe-dp-size" not in given else None),
        ("nnodes", shape.nodes if multi else None),
        ("node_rank", node if multi else None),
        ("dist_init_addr", dist),
        ("nccl_port", numbers.nccl),
        ("base_gpu_id", shape.base_gpu_id or None if serving.gpu_flags else None),
        ("gpu_id_step", _above_one(shape.gpu_id_step)),
        ("disaggregation_mode", serving.role),
        ("transfer_backend", serving.backend),
        ("bootstrap_port", numbers.bootstrap),
        ("ib_device", ",".join(serving.ib_devices) or None),
        *_peer_widths(serving, shape),
        ("page_size", serving.page_size),
        ("mem_fraction", serving.mem_fraction),
        ("dtype", None if serving.dtype == "auto" else serving.dtype),
        ("kv_dtype", None if serving.kv_dtype == "auto" else serving.kv_dtype),
        ("context_length", serving.context_length),
        *(_traceable(given) if serving.traceable else ()),
    ]
    argv = serving.command or ENGINES[serving.kind].command
    for meaning, value in wanted:
        if value is not None:
            argv += words(meaning, serving.version, value)
    return argv + flag_words(serving.args)


def _traceable(given: Mapping[str, FlagValue]) -> list[tuple[str, object]]:
    """The flags that trace-room and doctor need, except those the user has set either way."""
    log = "log-requests" not in given and "log-requests-level" not in given
    return [
        ("time_stats", True if "enable-request-time-stats-logging" not in given else None),
        ("log_requests", 0 if log else None),
        ("metrics", True if "enable-metrics" not in given else None),
    ]


def _above_one(size: int) -> int | None:
    return size if size > 1 else None


def _peer_widths(serving: Serving, shape: Shape) -> list[tuple[str, object]]:
    """Rows that `words` drops for releases that learn the other side's widths from the bootstrap server."""
    peer = serving.peer
    if peer is None:
        return []
    if serving.role == "prefill":
        return [
            ("decode_tp", peer.tp if peer.tp != shape.tp else None),
            ("decode_dp", peer.dp_ranks if peer.dp_ranks != shape.dp_ranks else None),
        ]
    return [
        ("prefill_pp", _above_one(peer.pp)),
        ("decode_follows_room", True if shape.dp_ranks > 1 else None),
    ]


def router(
    spec: Router, prefills: Sequence[tuple[str, int | None]], decodes: Sequence[str], env: Pairs = ()
) -> NodeCommand:
    """Every prefill with its bootstrap port: a router that is not told one sends null, and SGLang then guesses."""
    wanted: list[tuple[str, FlagValue]] = [("host", spec.host), ("port", spec.port), ("policy", spec.policy)]
    if spec.prefill_policy is not None:
        wanted.append(("prefill-policy", spec.prefill_policy))
    if spec.decode_policy is not None:
        wanted.append(("decode-policy", spec.decode_policy))
    for url, bootstrap in prefills:
        wanted.append(("prefill", url if bootstrap is None else (url, bootstrap)))
    wanted += [("decode", url) for url in decodes]
    kind = ROUTERS[spec.kind]
    head = (spec.command or kind.command) + kind.flags
    return NodeCommand(0, head + flag_words([*wanted, *spec.args.items()]), env)


def router_metrics(spec: Router) -> int | None:
    """The metrics port, which sglang-router and smg open even unasked; None where metrics are on the HTTP port."""
    given = spec.args.get(METRICS_FLAG)
    return given if isinstance(given, int) else ROUTERS[spec.kind].metrics
