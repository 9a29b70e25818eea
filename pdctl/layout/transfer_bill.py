"""What moving one request's KV cache from prefill to decode costs, and what the NICs must carry at a request rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.layout.gpu_memory import kv_bytes_per_token
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from pdctl.layout.model_config import ModelShape
    from pdctl.layout.shape import Shape

EFFICIENCY = 0.8  # of line rate, assumed


class Nics(NamedTuple):
    """One side's: `speed` in bits per second of one NIC, `per_host` NICs on each of the role's `hosts`."""

    speed: int
    per_host: int
    hosts: int


class TransferBill(NamedTuple):
    """Seconds and bits per second are None where no NIC speed was given, the required rate where no request rate was.

    `window_bytes` is the lower bound for a model with sliding-window layers, where only the window moves for them.
    """

    tokens: int
    bytes_per_request: int
    window_bytes: int | None
    copies: int
    nics: int | None
    bits_per_second: int | None
    efficiency: float
    seconds: float | None
    line_rate_seconds: float | None
    rate: float | None
    required_bits_per_second: float | None
    available_bits_per_second: float | None
    share_of_ttft: float | None


def seconds(size: int, bits_per_second: int, efficiency: float = EFFICIENCY) -> float:
    return size * 8 / (bits_per_second * efficiency)


def wire_bytes(model: ModelShape, prefill: Shape, decode: Shape, tokens: int, itemsize: int) -> tuple[int, int]:
    """Bytes of `tokens` tokens, all layers and stages, and how many copies of the cache they are.

    MLA: every decode attention rank needs the whole latent. GQA: each head once, unless a side is wider than there are
    heads; then each of its ranks sends or takes a copy of its own.
    """
    whole = kv_bytes_per_token(model, 1, itemsize)
    if model.mla:
        copies = decode.attn_tp_size
    else:
        copies = max(1, prefill.attn_tp_size // model.kv_heads, decode.attn_tp_size // model.kv_heads)
    return tokens * whole * copies, copies


def windowed_bytes(model: ModelShape, tokens: int, itemsize: int) -> int:
    """Bytes of one copy if sliding-window layers move only their window."""
    sliding = len(model.sliding_layers)
    full = kv_bytes_per_token(model, 1, itemsize, model.layers - sliding)
    return tokens * full + min(tokens, model.window) * kv_bytes_per_token(model, 1, itemsize, sliding)


def senders(model: ModelShape, prefill: Shape, decode: Shape) -> int:
    """Prefill ranks that send one request's KV: its DP group, of an MLA group no more than decode ranks listen."""
    width = min(prefill.attn_tp_size, decode.attn_tp_size) if model.mla else prefill.attn_tp_size
    return width * prefill.pp


def used(nics: Nics, ranks: int, gpus_per_host: int) -> int:
    """How many NICs `ranks` ranks of one DP group use: each GPU has its share of the host's."""
    return max(1, ranks * nics.per_host // gpus_per_host)


def bill(
    model: ModelShape,
    prefill: Shape,
    decode: Shape,
    *,
    isl: int,
    page_size: int,
    itemsize: int,
    nics: tuple[Nics | None, Nics | None] = (None, None),
    rate: float | None = None,
    ttft: float | None = None,
    efficiency: float = EFFICIENCY,
) -> TransferBill:
    """`nics` of the prefill side and of the decode side; the slower side sets the time."""
    tokens = -(-isl // page_size) * page_size
    size, copies = wire_bytes(model, prefill, decode, tokens, itemsize)
    ends = [
        (side, used(side, ranks, shape.gpus_per_host))
        for side, ranks, shape in (
            (nics[0], senders(model, prefill, decode), prefill),
            (nics[1], decode.attn_tp_size * decode.pp, decode),
        )
        if side is not None
    ]
    slowest = min(ends, key=lambda end: end[0].speed * end[1]) if ends else None
    bits = slowest[0].speed * slowest[1] if slowest else None
    time = seconds(size, bits, efficiency) if bits else None
    return TransferBill(
        tokens=tokens,
        bytes_per_request=size,
        window_bytes=windowed_bytes(model, tokens, itemsize) * copies if model.sliding_layers else None,
        copies=copies,
        nics=slowest[1] if slowest else None,
        bits_per_second=bits,
        efficiency=efficiency,
        seconds=time,
        line_rate_seconds=seconds(size, bits, 1.0) if bits else None,
        rate=rate,
        required_bits_per_second=size * 8 * rate if rate else None,
        available_bits_per_second=min((n.speed * n.per_host * n.hosts * efficiency for n, _ in ends), default=None),
        share_of_ttft=time / ttft if time and ttft else None,
    )
