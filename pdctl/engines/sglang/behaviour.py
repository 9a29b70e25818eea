"""Behaviour of SGLang that no flag, route or field shows, release by release.

From the sources: bootstrap parameters and answers, and the indices of ZMQ frames, of every release from 0.5.3 to
0.5.23 (engines/releases/sglang/records.tsv). The meaning of a value may change without a field being added or removed.
"""

from __future__ import annotations

from pdctl.engines.versions import (
    V0_5_3,
    V0_5_3_POST2,
    V0_5_6_POST1,
    V0_5_8,
    V0_5_9,
    V0_5_10,
    V0_5_11,
    V0_5_13,
    V0_5_14,
    V0_5_17,
    V0_5_19,
    V0_5_22,
    V0_5_23,
    Span,
)

FAKE_HOST = "2.2.2.2"  # as bootstrap_host, it makes both sides use a fake peer (warm-up, health, probes)
# Pairing.
PAGE_SIZES_COMPARED = Span(V0_5_8)  # before, a decode with a different page size gets pages in the wrong place
KV_DTYPE_COMPARED_BY_WORD = Span(V0_5_10, V0_5_17)  # `auto` then differs from the type it resolves to
DECODE_PULLS_FROM_EVERY_STAGE = Span(V0_5_3, V0_5_6_POST1)  # afterwards from stage to stage, or the last stage first
# State of hybrid models, resliced for another width.
RECURRENT_STATE_CUT_BY_NIXL = Span(V0_5_11)
RECURRENT_STATE_CUT_BY_MOONCAKE = Span(V0_5_9)
WINDOW_STATE_CUT = Span(V0_5_22)
# DP ranks.
ATTENTION_WIDTH_HAS_A_FIELD = Span(V0_5_22)  # attn_dp_size; before, dp_size with enable_dp_attention
ONLY_ROUND_ROBIN_FOLLOWS_ROOM = Span(V0_5_3, V0_5_8)  # --prefill-round-robin-balance has no effect afterwards
RANK_OF_ROOM_CHECKED = Span(V0_5_10)  # a prefill of plain replicas checks the attention rank of the room instead
# Addresses and ports.
WILDCARD_REGISTERS_ITSELF = Span(V0_5_3, V0_5_14)  # --host 0.0.0.0 makes ranks register at 0.0.0.0
STALE_RANKS_KEPT_BEHIND_A_SERVICE = Span(V0_5_3, V0_5_19)
INPUTS_BEHIND_THE_DIST_PORT = Span(V0_5_3, V0_5_3_POST2)  # a scheduler's input was at dist + 6 + DP rank
NIXL_READS_IB_DEVICE = Span(V0_5_23)  # unless UCX_NET_DEVICES is set
# Rooms.
ROOM_ZERO_IS_UNWRITTEN = Span(V0_5_9)  # a decode takes the 0 for "nothing written yet"
# Flags with values that some releases accept and others do not.
MOE_DENSE_TP_MAY_BE_TP = Span(V0_5_13)
