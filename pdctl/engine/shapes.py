"""What the engine refuses about its parallel shape before anything is started, with the flag to change."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from pdctl.layout.feasibility import check
from pdctl.layout.neighbours import nearest

if TYPE_CHECKING:
    from pdctl.engine.args import ServerArgs
    from pdctl.layout.shape import Shape

DEPRECATED = "sglang until 0.5.18: --dp-size N --enable-dp-attention is --attn-dp-size N"
FLAGS = (
    ("tp", "--tp-size"),
    ("dp", "--attn-dp-size"),
    ("pp", "--pp-size"),
    ("ep", "--ep-size"),
    ("replicas", "--dp-size"),
    ("nnodes", "--nnodes"),
)


def refuse(args: ServerArgs) -> str:
    """Why this shape cannot run, naming flag and fix; empty when it can."""
    shape = args.shape
    problems = check(shape, engine="embedded")
    if problems:
        ways = [_words(shape, other) for other in nearest(shape, lambda other: not check(other, engine="embedded"))]
        fix = f"; try {' or '.join(filter(None, ways))}" if any(ways) else ""
        return f"{_as_flags(problems[0].message)}{fix}"
    if not 0 <= args.node_rank < args.nnodes:
        return f"--node-rank {args.node_rank}: must be 0 to {args.nnodes - 1} with --nnodes {args.nnodes}"
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
    share = args.chunked_prefill_size // args.attn_dp_size
    if args.attn_dp_size > 1 and args.disaggregation_mode != "decode" and share % args.page_size:
        return (
            f"--chunked-prefill-size {args.chunked_prefill_size}: each of the {args.attn_dp_size} attention DP ranks "
            f"gets {share} tokens, no multiple of --page-size {args.page_size}; "
            f"use {max(1, share // args.page_size) * args.page_size * args.attn_dp_size}"
        )
    return ""


def divided(args: ServerArgs) -> ServerArgs:
    """sglang, every release: the attention DP ranks share one chunk of prefill tokens."""
    share = max(1, args.chunked_prefill_size // args.attn_dp_size)
    return dataclasses.replace(args, chunked_prefill_size=share)


def _as_flags(message: str) -> str:
    """`attn_dp_size 3` → `--attn-dp-size 3`, where a size of ours is named with its value."""

    def flag(match: re.Match[str]) -> str:
        return f"--{match[1].replace('_', '-')} {match[2]}"

    return re.sub(r"\b((?:tp|attn_dp|dp|pp|ep)_size|nnodes|base_gpu_id) (-?\d+)", flag, message)


def _words(given: Shape, wanted: Shape) -> str:
    changed = [
        f"{flag} {getattr(wanted, field)}" for field, flag in FLAGS if getattr(wanted, field) != getattr(given, field)
    ]
    return " ".join(changed)
