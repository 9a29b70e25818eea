"""SGLang's logs: every row it writes, and the details of some lines that distinguish its releases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.base import Adapter, Hint, Speaker
from pdctl.engines.sglang.logs import (
    bootstrap_lines,
    crashes,
    failures,
    handshake,
    health,
    life,
    requests,
    scheduling,
    transfer,
    transfer_libraries,
)
from pdctl.engines.versions import (
    V0_5_3,
    V0_5_4,
    V0_5_4_POST2,
    V0_5_8,
    V0_5_10,
    V0_5_11,
    V0_5_12,
    V0_5_16,
    V0_5_23,
    Span,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.engines.row_matching import Said


def _value(name: str) -> Callable[[Said], str]:
    return lambda said: said.values.get(name, "")


def _asked(said: Said) -> str:
    return f"{said.values['path']} {said.values['status']}"


def _behind_batch(said: Said) -> str:
    """The punctuation mark after "batch" and its counter."""
    return said.prefix.message.partition(" batch")[2].lstrip(" [0123456789]")[:1]


def _message(said: Said) -> str:
    return said.prefix.message


HINTS = (
    # A decode queries with its own release's parameters, whatever the answer.
    Hint("shape-called", _value("path"), r"/route\?engine_rank", Span(V0_5_3, V0_5_10)),
    Hint("shape-called", _value("path"), r"/route\?prefill_dp_rank", Span(V0_5_10)),
    Hint("rank-called", _value("path"), r"/route\?engine_rank", Span(V0_5_3, V0_5_10)),
    Hint("rank-called", _value("path"), r"/route\?prefill_dp_rank", Span(V0_5_10)),
    # Any decode may query a prefill, which answers 400 to what it does not understand.
    Hint("bootstrap-shape-answered", _asked, r"/route\?engine_rank\S* (?:200|5)", Span(V0_5_3, V0_5_10)),
    Hint("bootstrap-shape-answered", _asked, r"/route\?engine_rank\S* 400", Span(V0_5_10)),
    Hint("bootstrap-shape-answered", _asked, r"/route\?prefill_dp_rank\S* (?:200|503)", Span(V0_5_10)),
    Hint("bootstrap-shape-answered", _asked, r"/route\?prefill_dp_rank\S* 400", Span(V0_5_3, V0_5_10)),
    # The repr() of the record as the decode's own release defines it.
    Hint(
        "prefill-shape-fetched", _value("info"), r"PrefillServerInfo\((?!.*prefill_http_port)", Span(V0_5_10, V0_5_16)
    ),
    Hint(
        "prefill-shape-fetched", _value("info"), r"PrefillServerInfo\((?!.*kv_layout).*prefill_http_port",
        Span(V0_5_16, V0_5_23),
    ),
    Hint("prefill-shape-fetched", _value("info"), r".*kv_layout", Span(V0_5_23)),
    Hint("prefill-shape-fetched-old", _value("page_size"), r"\d", Span(V0_5_8, V0_5_10)),
    Hint("prefill-warm-up-ended-old", _message, r".*'total_retractions'", Span(V0_5_4_POST2, V0_5_11)),
    Hint("decode-warm-up-ended-old", _message, r".*'total_retractions'", Span(V0_5_4_POST2, V0_5_11)),
    Hint("prefill-times", _value("attempts"), r"\d", Span(V0_5_16)),
    Hint("prefill-times", _value("attempts"), r"$", Span(V0_5_12, V0_5_16)),
    Hint("decode-times", _value("attempts"), r"\d", Span(V0_5_16)),
    Hint("decode-times", _value("attempts"), r"$", Span(V0_5_12, V0_5_16)),
    Hint("prefill-batch-old", _behind_batch, r"\.", Span(V0_5_3, V0_5_4)),
    Hint("prefill-batch-old", _behind_batch, r",", Span(V0_5_4, V0_5_11)),
    Hint("decode-batch", _behind_batch, r"\.", Span(V0_5_3, V0_5_4)),
    Hint("decode-batch", _behind_batch, r",", Span(V0_5_4)),
)  # fmt: skip

ENGINE = Adapter(
    Speaker.SGLANG,
    (
        *failures.ROWS, *handshake.ROWS, *requests.ROWS, *bootstrap_lines.ROWS, *health.ROWS, *life.ROWS,
        *crashes.ROWS, *scheduling.ROWS, *transfer.ROWS, *transfer_libraries.ROWS,
        *transfer_libraries.COMPLAINTS,
    ),
    dated=True,
    hints=HINTS,
)  # fmt: skip
