"""What SGLang says about its own PD arguments as it starts (srt/arg_groups/pd_disaggregation_hook.py)."""

from __future__ import annotations

from pdctl.engines.row import Level, Row, Speaker
from pdctl.engines.versions import V0_5_9, V0_5_11, V0_5_13, V0_5_14, V0_5_17, V0_5_22, Span

# Not in the sets we recorded.
ROWS = (
    Row(
        "prefill-dcp", Speaker.SGLANG, Level.WARNING, "prefill", b"DCP on a PD prefill server is supported when",
        r"DCP on a PD prefill server is supported when prefill and decode use the same DCP layout",
        "[2026-11-21 02:06:23] DCP on a PD prefill server is supported when prefill and decode use the same DCP "
        "layout, but it usually adds communication overhead without improving prefill performance.",
        Span(V0_5_17),
    ),
    Row(
        "decode-radix-cache-dp", Speaker.SGLANG, Level.WARNING, "decode", b"EXPERIMENTAL: Decode radix cache with DP",
        r"EXPERIMENTAL: Decode radix cache with DP attention\.",
        "[2026-11-21 02:06:23] EXPERIMENTAL: Decode radix cache with DP attention. Requires prefix-aware DP rank "
        "routing for optimal cache hits.",
        Span(V0_5_11),
    ),
    Row(
        "decode-radix-cache-on", Speaker.SGLANG, Level.WARNING, "decode", b"EXPERIMENTAL: Radix cache is enabled for",
        r"EXPERIMENTAL: Radix cache is enabled for decode server",
        "[2026-11-21 02:06:23] EXPERIMENTAL: Radix cache is enabled for decode server", Span(V0_5_11),
    ),
    Row(
        "decode-mamba-buffer-off", Speaker.SGLANG, Level.WARNING, "decode", b"Mamba extra_buffer is disabled because",
        r"Mamba extra_buffer is disabled because decode disaggregation currently forces chunk cache\.",
        "[2026-11-21 02:06:23] Mamba extra_buffer is disabled because decode disaggregation currently forces chunk "
        "cache. Falling back to no_buffer.",
        Span(V0_5_11, V0_5_14),
    ),
    Row(
        "backend-mooncake-tcp", Speaker.SGLANG, Level.INFO, "", b"disaggregation transfer backend 'mooncake_tcp'",
        r"disaggregation transfer backend 'mooncake_tcp' -> mooncake with MC_FORCE_TCP=1",
        "[2026-11-21 02:06:23] disaggregation transfer backend 'mooncake_tcp' -> mooncake with MC_FORCE_TCP=1 (TCP "
        "transport, no RDMA)",
        Span(V0_5_13), backend="mooncake",
    ),
    Row(
        "encoders-dynamic", Speaker.SGLANG, Level.INFO, "", b"--language-only is set without --encoder-urls.",
        r"--language-only is set without --encoder-urls\.",
        "[2026-11-21 02:06:23] --language-only is set without --encoder-urls. Encoders are expected to register "
        "dynamically via the EncoderBootstrapServer.",
        Span(V0_5_13),
    ),
    Row(
        "encoder-backend", Speaker.SGLANG, Level.INFO, "", b"Encoder transfer backend auto-resolved to ",
        r"Encoder transfer backend auto-resolved to (?P<encoder_backend>\S+) for (?P<model>\S+) at TP(?P<tp>\d+)\.",
        "[2026-11-21 02:06:23] Encoder transfer backend auto-resolved to zmq for Qwen3VLForConditionalGeneration at "
        "TP1.",
        Span(V0_5_17),
    ),
    Row(
        "no-ib-device", Speaker.SGLANG, Level.WARNING, "", b"No IB devices specified for Mooncake backend",
        r"No IB devices specified for Mooncake backend, falling back to auto discovery\.",
        "[2026-11-21 02:06:23] No IB devices specified for Mooncake backend, falling back to auto discovery.",
        Span(V0_5_9), backend="mooncake",
    ),
    Row(
        "continuous-polling-off", Speaker.SGLANG, Level.WARNING, "prefill", b"Continuous prefill input polling require",
        r"Continuous prefill input polling requires attention DP=CP=1",
        "[2026-11-21 02:06:23] Continuous prefill input polling requires attention DP=CP=1 and non-speculative "
        "autoregressive generation; using the regular overlap loop.",
        Span(V0_5_22),
    ),
)  # fmt: skip
