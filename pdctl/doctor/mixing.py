"""Which two releases cannot hand over to each other, and what breaks.

Source: bootstrap parameters and answers, and ZMQ frames, of sglang 0.5.3, 0.5.8, 0.5.13, 0.5.18 and 0.5.23. A change
between two of them may have come in any release between, so releases that share a row may still differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.dialect.versions import V0_5_3, V0_5_8, V0_5_13, V0_5_18, V0_5_23, Span

if TYPE_CHECKING:
    from pdctl.dialect.versions import Version


class Break(NamedTuple):
    prefill: Span
    decode: Span
    backends: tuple[str, ...]  # empty: whatever the backend
    what: str


BREAKS: tuple[Break, ...] = (
    Break(Span(V0_5_13), Span(V0_5_3, V0_5_13), (), "the decode asks /route with engine_rank and target_dp_group, the "
          "prefill's server answers 400 Missing inputs"),
    Break(Span(V0_5_3, V0_5_13), Span(V0_5_13), (), "the decode asks /route with prefill_dp_rank and target_tp_rank, "
          "the prefill's server answers 400 Missing inputs"),
    Break(Span(V0_5_3, V0_5_8), Span(V0_5_8, V0_5_13), (), "the prefill's topology answer has no prefill_page_size, "
          "which the decode reads"),
    Break(Span(V0_5_18), Span(V0_5_13, V0_5_18), (), "the prefill's topology answer has keys the decode refuses "
          "(unexpected keyword argument enable_dsa_cache_layer_split)"),
    Break(Span(V0_5_23), Span(V0_5_18, V0_5_23), (), "the prefill's topology answer has keys the decode refuses "
          "(unexpected keyword argument decode_allocation_policy)"),
    Break(Span(V0_5_3, V0_5_8), Span(V0_5_8), ("mooncake",), "the registration frames differ: the prefill reads the "
          "decode's state pointers as its rank"),
    Break(Span(V0_5_8, V0_5_13), Span(V0_5_3, V0_5_8), ("mooncake",), "the registration frames differ: the prefill "
          "reads the decode's rank as state pointers"),
    Break(Span(V0_5_13, V0_5_18), Span(V0_5_18), ("mooncake",), "the registration frames differ: the prefill reads "
          "layer ids as its staging buffer's address"),
)  # fmt: skip


def breaks(prefill: Version, decode: Version, backend: str) -> str | None:
    """What goes wrong between two releases, or None where nothing is known to."""
    for row in BREAKS:
        fits = row.prefill.holds(prefill) and row.decode.holds(decode)
        if fits and (not row.backends or backend in row.backends):
            return row.what
    return None
