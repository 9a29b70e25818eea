"""The engine's command line, in SGLang's flag names: one command works for both (sglang 0.5.23 srt/server_args.py).

Out-of-bounds numbers and unusable shapes, checkpoints and rehearsals are rejected before anything is started:
`first_problem` returns one sentence that names the flag and the fix, or an empty string.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl import deployment_secret, http_auth
from pdctl.engine.config.checkpoint_config import CheckpointError, ModelConfig, check_weight_files
from pdctl.engine.config.instance_args import ServerArgs
from pdctl.engine.drill import fault_points, rehearsed_mistakes
from pdctl.engines.kinds import EMBEDDED
from pdctl.errors import UsageError
from pdctl.layout.feasibility import broken_rules, nearest
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    from pdctl.http_auth import Keys
    from pdctl.layout.shape import Shape


# Not argparse's own usage, which is forty lines long and would hide the error printed below it.
USAGE = "python -m pdctl.engine --model-path DIRECTORY [FLAG ...]; --help lists every flag"
# Flags whose name differs from the field's, or that have a second spelling in SGLang.
SPELLINGS = {
    "model_path": ("--model-path", "--model"),
    "tp_size": ("--tp-size", "--tensor-parallel-size", "--tp"),
    "dp_size": ("--dp-size", "--data-parallel-size", "--dp"),
    "attn_dp_size": ("--attn-dp-size", "--attention-data-parallel-size"),
    "pp_size": ("--pp-size", "--pipeline-parallel-size", "--pp"),
    "ep_size": ("--ep-size", "--expert-parallel-size", "--ep"),
    "dist_init_addr": ("--dist-init-addr", "--nccl-init-addr"),
}
CHOICES = {
    "disaggregation_mode": ("null", "prefill", "decode"),
    "disaggregation_transfer_backend": ("auto", "nixl", "shm", "mooncake", "mooncake_tcp", "fake"),
    "device": ("auto", "cpu", "cuda"),
    "dtype": ("auto", "float32", "bfloat16"),
    "kv_layout": ("layer-major", "page-major", "head-major"),
    "load_balance_method": ("auto", "round_robin", "follow_bootstrap_room", "total_requests", "total_tokens"),
    "disaggregation_decode_retraction_backup": ("cpu_tensor",),
    "log_level": ("debug", "info", "warning", "error"),
}
# Settings that SGLang reads from the environment: the same variables set the defaults here.
ENVIRONMENT = {
    "bootstrap_timeout": "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT",
    "waiting_timeout": "SGLANG_DISAGGREGATION_WAITING_TIMEOUT",
    "disaggregation_transfer_threads": "SGLANG_DISAGGREGATION_QUEUE_SIZE",
    "heartbeat_interval": "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL",
    "heartbeat_max_failure": "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE",
}


def parse(argv: Sequence[str], environ: MutableMapping[str, str]) -> ServerArgs:
    """Return the ServerArgs of a command line; exit 2 with argparse's message if a flag is unknown or cannot work."""
    return parse_with_keys(argv, environ)[0]


def parse_with_keys(argv: Sequence[str], environ: MutableMapping[str, str]) -> tuple[ServerArgs, Keys]:
    """Return the keys as well. Only the HTTP process may know them, whereas ServerArgs appear in command lines.

    `--deployment-secret-file` stays in `environ` for the processes that this one starts; API keys are removed from it.
    """
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m pdctl.engine", usage=USAGE, allow_abbrev=False, formatter_class=raw
    )
    for field in dataclasses.fields(ServerArgs):
        if field.name == "rehearse":
            continue
        spellings = SPELLINGS.get(field.name, ("--" + field.name.replace("_", "-"),))
        default = None if field.name == "model_path" else field.default
        variable = ENVIRONMENT.get(field.name, "")
        if field.type == "bool":  # a bare flag
            parser.add_argument(*spellings, dest=field.name, action="store_true")
            continue
        kind = {"int": int, "float": float}.get(str(field.type), str)
        if variable in environ:
            try:
                default = kind(float(environ[variable]))
            except (ValueError, OverflowError):
                parser.error(f"environment variable {variable}={environ[variable]!r} is not a number")
        parser.add_argument(
            *spellings,
            dest=field.name,
            type=kind,
            default=default,
            required=field.name == "model_path",
            choices=CHOICES.get(field.name),
        )
    http_auth.add_flags(parser)
    parser.add_argument("--deployment-secret-file", default="", metavar="FILE", help=deployment_secret.HELP)
    parser.add_argument("--enable-dp-attention", action="store_true", help=DEPRECATED)
    group = parser.add_argument_group("rehearsal", rehearsed_mistakes.HELP)
    group.add_argument("--rehearse", nargs="+", action="extend", default=[], metavar="INCIDENT")
    values = vars(parser.parse_args(argv))
    try:
        deployment_secret.choose(values.pop("deployment_secret_file"), environ)
        keys = http_auth.chosen(values, environ)
    except UsageError as error:
        parser.error(f"{error.message}{f'; {error.fix}' if error.fix else ''}")
    if values.pop("enable_dp_attention"):
        values["attn_dp_size"], values["dp_size"] = max(values["dp_size"], values["attn_dp_size"]), 1
    args = ServerArgs(**{**values, "rehearse": tuple(values["rehearse"])})
    problem = first_problem(args)
    if problem:
        parser.error(problem)
    args = divided(args)
    port = args.rehearsal.fallback_port
    for variable in (http_auth.KEY_VARIABLE, http_auth.ADMIN_VARIABLE):
        environ.pop(variable, None)
    return (dataclasses.replace(args, disaggregation_bootstrap_port=port) if port else args), keys


DEPRECATED = "sglang until 0.5.18: --dp-size N --enable-dp-attention is --attn-dp-size N"
# GPUs of a host, which the command line does not tell: a number that every size of an instance divides.
ANY_HOST = 5040
FLAGS = (
    ("tp", "--tp-size"),
    ("dp", "--attn-dp-size"),
    ("pp", "--pp-size"),
    ("ep", "--ep-size"),
    ("replicas", "--dp-size"),
    ("nnodes", "--nnodes"),
)
LONGEST = 2_000_000.0  # seconds, 23 days: sockets keep a timeout's milliseconds in 31 bits


class Bound(NamedTuple):
    """The values a flag may have. `zero`: what 0 means if it is valid in spite of `least`; empty if it is not."""

    least: float
    most: float = math.inf
    zero: str = ""

    def holds(self, value: float) -> bool:
        return (self.least <= value <= self.most and math.isfinite(value)) or (value == 0 and bool(self.zero))

    def __str__(self) -> str:
        span = f"at least {self.least:g}" if math.isinf(self.most) else f"{self.least:g} to {self.most:.10g}"
        return f"must be {span}{f', or 0: {self.zero}' if self.zero else ''}"


PORT = Bound(1, 65535)
WAIT = Bound(0.001, LONGEST)

BOUNDS = {
    "port": PORT,
    "disaggregation_bootstrap_port": PORT,
    "disaggregation_transfer_threads": Bound(1, 64, zero="by cores"),
    "tp_size": Bound(1),
    "dp_size": Bound(1),
    "attn_dp_size": Bound(1),
    "pp_size": Bound(1),
    "ep_size": Bound(1),
    "nnodes": Bound(1),
    "base_gpu_id": Bound(0),
    "page_size": Bound(1),
    "max_total_tokens": Bound(1, zero="from the memory at hand"),
    "max_running_requests": Bound(1),
    "max_queued_requests": Bound(0),
    "chunked_prefill_size": Bound(1),
    "num_reserved_decode_tokens": Bound(1),
    "optimistic_prefill_attempts": Bound(0),
    "context_length": Bound(1, zero="from the checkpoint"),
    "random_seed": Bound(0),
    "num_threads": Bound(1, zero="by cores"),
    "decode_log_interval": Bound(1),
    "dist_timeout": WAIT,
    "bootstrap_timeout": WAIT,
    "waiting_timeout": WAIT,
    "heartbeat_interval": WAIT,
    "heartbeat_max_failure": Bound(0),
    "shutdown_grace": Bound(0, LONGEST),
}


def first_problem(args: ServerArgs) -> str:
    """Return why these arguments cannot run, naming the flag and the fix; empty if they can."""
    return _bad_number(args) or _bad_checkpoint(args) or _bad_chunk(args) or _bad_pace(args) or _bad_rehearsal(args)


def _bad_number(args: ServerArgs) -> str:
    if not (Path(args.model_path) / "config.json").is_file():
        return f"--model-path {args.model_path}: no config.json there; give the directory of a Hugging Face checkpoint"
    for name, bound in BOUNDS.items():
        value = getattr(args, name)
        if not bound.holds(value):
            return f"--{name.replace('_', '-')} {value}: {bound}"
    if 0 < args.max_total_tokens < args.page_size:
        return f"--max-total-tokens {args.max_total_tokens}: must be at least one page, --page-size {args.page_size}"
    return ""


def _bad_checkpoint(args: ServerArgs) -> str:
    """Check the checkpoint's files, and whether the model can be split into the requested shape."""
    path = Path(args.model_path)
    try:
        problem = _bad_shape(args, ModelConfig.from_dir(path))
        if not problem:
            check_weight_files(path)
    except CheckpointError as error:
        return f"--model-path: {'; '.join(filter(None, (error.message, error.fix)))}"
    return problem


def _bad_shape(args: ServerArgs, model: ModelConfig) -> str:
    """Return the flag that is wrong, or the flag and the model's number, with sizes that work; empty if none is."""
    if not 0 <= args.node_rank < args.nnodes:
        return f"--node-rank {args.node_rank}: {_node_ranks(args.nnodes)}"
    shape = args.shape
    problem = _misfit(shape, model)
    if problem:
        return f"{problem}{_ways(shape, model)}"
    if args.nnodes > 1 and not args.dist_init_addr:
        return f"--nnodes {args.nnodes} needs --dist-init-addr HOST:PORT of node 0, the same on every node"
    if args.dist_init_addr is not None:
        host, _, port = args.dist_init_addr.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) <= 65535 - 13:
            return f"--dist-init-addr {args.dist_init_addr}: give HOST:PORT, with 13 more ports above it"
    if args.load_balance_method == "follow_bootstrap_room" and args.disaggregation_mode == "null" and args.dp_ranks > 1:
        return (
            "--load-balance-method follow_bootstrap_room: only requests of --disaggregation-mode prefill or decode "
            "have a room; use round_robin, total_requests or total_tokens"
        )
    if args.may_switch and max(args.pp_size, args.ep_size) > 1:
        return (
            f"--enable-pd-role-switch: sglang 0.5.23 switches no instance with --pp-size {args.pp_size} --ep-size "
            f"{args.ep_size}; leave it out, or give sizes of 1"
        )
    share = args.chunked_prefill_size // args.attn_dp_size
    if args.attn_dp_size > 1 and args.prefills and share % args.page_size:
        return (
            f"--chunked-prefill-size {args.chunked_prefill_size}: each of the {args.attn_dp_size} attention DP ranks "
            f"gets {share} tokens, no multiple of --page-size {args.page_size}; "
            f"use {max(1, share // args.page_size) * args.page_size * args.attn_dp_size}"
        )
    return ""


def _bad_chunk(args: ServerArgs) -> str:
    if args.prefills and args.chunked_prefill_size % args.page_size:
        return (
            f"--chunked-prefill-size {args.chunked_prefill_size} must be a multiple of --page-size {args.page_size} "
            "(sglang: chunked_prefill_size % page_size == 0); "
            f"use {max(1, args.chunked_prefill_size // args.page_size) * args.page_size}"
        )
    return ""


def _bad_pace(args: ServerArgs) -> str:
    if not args.pace:
        return ""
    from pdctl.layout.cost_profile import profile_problem  # every process parses a command line, few have a pace

    problem = profile_problem(args.pace)
    return f"--pace: {problem}" if problem else ""


def _bad_rehearsal(args: ServerArgs) -> str:
    if args.may_switch and args.rehearse:
        return f"--rehearse {args.rehearse[0]} belongs to one role: leave --enable-pd-role-switch out"
    try:
        fault_points.read(os.environ.get(fault_points.ENV, ""))
    except ValueError as error:
        return f"{fault_points.ENV}: {error}"
    return rehearsed_mistakes.misused(args.rehearse, args.role)


def divided(args: ServerArgs) -> ServerArgs:
    """Divide the chunk of prefill tokens among the attention DP ranks, as every release of sglang does."""
    share = max(1, args.chunked_prefill_size // args.attn_dp_size)
    return dataclasses.replace(args, chunked_prefill_size=share)


def _misfit(shape: Shape, model: ModelConfig) -> str:
    """Return why no instance can have this shape, or why the model cannot be split into it; empty if it can."""
    problems = broken_rules(shape, engine=EMBEDDED)
    if problems:
        return _as_flags(problems[0].message)
    try:
        model.check_shape(shape)
    except CheckpointError as error:
        return error.message
    return ""


def _ways(shape: Shape, model: ModelConfig) -> str:
    """Return `; try --tp-size 4 or --tp-size 2`, the closest shapes that work; empty if there is none."""
    anywhere = shape._replace(gpus_per_host=ANY_HOST)
    words = [_words(anywhere, other) for other in nearest(anywhere, lambda other: not _misfit(other, model))]
    return f"; try {' or '.join(filter(None, words))}" if any(words) else ""


def _node_ranks(nnodes: int) -> str:
    if nnodes == 1:
        return "an instance of one node has node 0 alone; give every node the --nnodes of the instance"
    return f"an instance with --nnodes {nnodes} has nodes 0 to {nnodes - 1}"


def _as_flags(message: str) -> str:
    """Write sizes that are named with a value as flags: `attn_dp_size 3` → `--attn-dp-size 3`."""

    def flag(match: re.Match[str]) -> str:
        return f"--{match[1].replace('_', '-')} {match[2]}"

    return re.sub(r"\b((?:tp|attn_dp|dp|pp|ep)_size|nnodes|base_gpu_id) (-?\d+)", flag, message)


def _words(given: Shape, wanted: Shape) -> str:
    changed = [
        f"{flag} {getattr(wanted, field)}" for field, flag in FLAGS if getattr(wanted, field) != getattr(given, field)
    ]
    return " ".join(changed)
