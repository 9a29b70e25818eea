"""The logs of pdctl's own engine, router and launcher, and how pdctl's own requests are told from users'.

A prefill and a decode that do not match each say why; the engine writes it, and the router repeats it.
"""

from __future__ import annotations

import re

from pdctl.engines.base import Adapter, Level, Row, Speaker
from pdctl.engines.pdctl import engine_lines, router_lines
from pdctl.quick_definitions import NamedTuple

_ROOM = r"room=(?P<room>\d+) "
_SHAPES = (
    " Prefill: LlamaForCausalLM-5d2f8a0c1b3e: 4 layers, 2 KV heads, head_dim=16, attn_tp_size=2 pp_size=3 dp_size=1 "
    "page_size=16 kv_cache_dtype=float32. Decode: LlamaForCausalLM-5d2f8a0c1b3e: 4 layers, 2 KV heads, head_dim=16, "
    "attn_tp_size=2 pp_size=2 dp_size=1 page_size=16 kv_cache_dtype=float32."
)


class Sentence(NamedTuple):
    """A reason by its beginning, and what it means."""

    id: str
    pattern: str
    example: str
    cause: str


SENTENCES = (
    Sentence(
        "model", r"Model mismatch: prefill has (?P<field>\w+)=(?P<prefill>[^,\s]+), decode has \w+="
        r"(?P<decode>[^.\s]+)\.",
        "Model mismatch: prefill has num_layers=4, decode has num_layers=5. Both must serve the same model.", "PD311",
    ),
    Sentence(
        "attention", r"Attention mismatch: prefill has (?P<prefill>\w+), decode has (?P<decode>\w+)\.",
        "Attention mismatch: prefill has GQA, decode has MLA. Both servers must serve the same model.", "PD311",
    ),
    Sentence(
        "stages", r"Pipeline mismatch: prefill has pp_size=(?P<prefill>\d+), decode has pp_size=(?P<decode>\d+)\.",
        "Pipeline mismatch: prefill has pp_size=3, decode has pp_size=2. A decode's --pp-size must be 1 or equal to "
        "the prefill's.", "PD315",
    ),
    Sentence(
        "heads", r"Attention TP mismatch: prefill has attn_tp_size=(?P<prefill>\d+), decode has attn_tp_size="
        r"(?P<decode>\d+)\.",
        "Attention TP mismatch: prefill has attn_tp_size=2, decode has attn_tp_size=3. The larger must be a multiple "
        "of the smaller.", "PD316",
    ),
    Sentence(
        "backend", r"Transfer backend mismatch: prefill=(?P<prefill>\w+), decode=(?P<decode>\w+)\.",
        "Transfer backend mismatch: prefill=shm, decode=nixl. Both servers must use the same "
        "--disaggregation-transfer-backend value.", "PD309",
    ),
    Sentence(
        "kv-dtype", r"KV cache dtype mismatch: prefill server has kv_cache_dtype=(?P<prefill_dtype>[^,\s]+), but "
        r"decode server has kv_cache_dtype=(?P<decode_dtype>[^.\s]+)\.",
        "KV cache dtype mismatch: prefill server has kv_cache_dtype=float32, but decode server has "
        "kv_cache_dtype=bfloat16. Both servers must use the same --kv-cache-dtype value.", "PD303",
    ),
)  # fmt: skip


def _rows(sentence: Sentence) -> tuple[Row, Row]:
    literal = sentence.example.partition(":")[0].encode() + b": prefill"
    said = f"(?P<reason>{sentence.pattern}.*)"
    return (
        Row(
            f"prefill-unfit-{sentence.id}", Speaker.PDCTL_ENGINE, Level.ERROR, "decode", literal,
            r"Prefill (?P<addr>\S+) cannot serve this decode: " + said,
            f"[2026-11-21 19:44:33] Prefill 127.0.0.1:8998 cannot serve this decode: {sentence.example}{_SHAPES}",
            cause=sentence.cause,
        ),
        Row(
            f"session-refused-{sentence.id}", Speaker.PDCTL_ENGINE, Level.ERROR, "prefill", literal,
            r"Refused decode session (?P<session>\S+) \((?P<endpoint>[^)]*)\): " + said,
            "[2026-11-21 19:44:33] Refused decode session fb1bf8ca25aa48f4803374e248efd9ce (tcp://127.0.0.1:41011): "
            f"{sentence.example}{_SHAPES}",
            cause=sentence.cause,
        ),
    )  # fmt: skip


PAIR_ROWS = (
    *(row for sentence in SENTENCES for row in _rows(sentence)),
    Row(
        "session-refused-stale", Speaker.PDCTL_ENGINE, Level.ERROR, "prefill", b": this is prefill rank ",
        r"Refused decode session (?P<session>\S+) \((?P<endpoint>[^)]*)\): this is prefill rank (?P<reason>.*)",
        "[2026-11-21 19:44:33] Refused decode session fb1bf8ca25aa48f4803374e248efd9ce (tcp://127.0.0.1:41011): this "
        "is prefill rank 0a3d4b, not 77ce01 that the bootstrap server named",
    ),
    Row(
        "given-up-told", Speaker.PDCTL_ENGINE, Level.INFO, "", b"given up before any page list; told ",
        _ROOM + r"given up before any page list; told (?P<endpoint>\S+)",
        "[2026-11-21 19:44:33] room=3931829090235125 given up before any page list; told tcp://127.0.0.1:33205",
        echo=True,
    ),
    Row(
        "given-up-untold", Speaker.PDCTL_ENGINE, Level.INFO, "", b"given up before any page list, and prefill ",
        _ROOM + r"given up before any page list, and prefill (?P<addr>\S+) cannot be told: (?P<reason>.*)",
        "[2026-11-21 19:44:33] room=3931829090235125 given up before any page list, and prefill 127.0.0.1:8998 cannot "
        "be told: connection refused",
        echo=True,
    ),
)  # fmt: skip


ROUTER = Adapter(Speaker.PDCTL_ROUTER, (*router_lines.ROWS, *PAIR_ROWS), kind="pdctl", names_address=True)
ENGINE = Adapter(
    Speaker.PDCTL_ENGINE,
    engine_lines.ROWS,
    Speaker.SGLANG,
    at_info=engine_lines.AT_INFO,
    names_every_room=True,
)
LAUNCHER = Adapter(Speaker.LAUNCHER, engine_lines.LAUNCHER_ROWS)


PREFIX = "pdctl-canary-"


def rid(room: int) -> str:
    """The request id of doctor's canary with `room`, on both legs."""
    return f"{PREFIX}{room:x}"


def names_canary(text: str, room: int | None) -> bool:
    """Whether a line has the id of doctor's canary: that of `room`, if it is about a room."""
    found = re.search(rf"{PREFIX}([0-9a-f]{{1,16}})(?![\w-])", text)
    return found is not None and (room is None or int(found[1], 16) == room)
