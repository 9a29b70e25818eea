"""What an operator sees of the requests: Prometheus metrics, and OpenTelemetry spans (sglang 0.5.23 srt/observability).

Metrics have SGLang's names, so that a dashboard made for SGLang works unchanged. What the HTTP process sees itself
(requests, tokens, latencies) is counted as it happens; what only a rank knows is read from the load report that a
scrape asks for.

Spans, off without `--enable-trace`: one for each request, its stages below it, all with the room. The HTTP process
creates them when a request has ended. Ranks only record when each step was reached, so tracing costs a forward pass
nothing. A `traceparent` header makes the spans part of the caller's trace, which then shows router, prefill and decode
together.
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pdctl.errors import MissingExtraError, PdctlError
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Tracer

    from pdctl.engine.config.instance_args import ServerArgs
    from pdctl.engine.frontend.request_state import Pending
    from pdctl.engine.ipc.messages import Drained, Meta, SchedulerReport


SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
MILLISECONDS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 131072)
MEGABYTES = (0.01, 0.1, 1, 4, 16, 64, 256, 1024, 4096)
GB_PER_SECOND = (0.01, 0.1, 0.5, 1, 2, 5, 10, 20, 50, 100)

# Gauge of a rank → (key of its load report, what it counts).
LOAD_GAUGES: dict[str, tuple[str, str]] = {
    "num_running_reqs": ("num_running_reqs", "requests in the running batch"),
    "num_queue_reqs": ("queue_waiting", "requests waiting for their forward pass"),
    "num_used_tokens": ("num_used_tokens", "tokens of KV cache in use"),
    "token_usage": ("token_usage", "share of the KV cache in use"),
    "kv_used_tokens": ("num_used_tokens", "tokens of KV cache that requests hold"),
    "kv_evictable_tokens": ("kv_evictable_tokens", "tokens of KV cache that only the prefix cache keeps"),
    "kv_available_tokens": ("kv_available_tokens", "tokens of KV cache that are free"),
    "pending_prealloc_token_usage": ("pending_prealloc_token_usage", "decode: prompts without pages yet, of the cache"),
    "gen_throughput": ("gen_throughput", "tokens per second made by decode passes"),
    "cache_hit_rate": ("cache_hit_rate", "share of prompt tokens found in the cache"),
    "num_prefill_bootstrap_queue_reqs": ("prefill_bootstrap_queue_reqs", "prefill: rooms waiting for the decode side"),
    "num_prefill_inflight_queue_reqs": ("prefill_inflight_queue_reqs", "prefill: rooms whose KV cache is on its way"),
    "num_decode_prealloc_queue_reqs": ("decode_prealloc_queue_reqs", "decode: rooms waiting for handshake or memory"),
    "num_decode_transfer_queue_reqs": ("decode_transfer_queue_reqs", "decode: rooms whose KV cache is on its way"),
    "decode_transfer_wait_seconds": ("decode_transfer_wait_s", "decode: the longest that one of these has waited"),
    "num_decode_deferred_kv_release_reqs": ("decode_draining_reqs", "decode: failed rooms that keep pages"),
    "num_retracted_reqs": ("decode_retracted_queue_reqs", "requests taken back out of the running batch"),
    "max_total_num_tokens": ("max_total_num_tokens", "tokens the KV cache holds"),
    "decode_sum_seq_lens": ("decode_sum_seq_lens", "tokens of the requests in the running batch"),
}
# Mode of realtime_tokens_total → key of the load report, a total since the start.
COMPUTED_TOKENS = {
    "prefill_compute": "total_prefill_uncached_tokens",
    "prefill_cache": "total_prefill_cached_tokens",
    "decode": "total_decode_tokens",
}
STAGES = ("prefill_bootstrap", "prefill_transfer_kv_cache"), ("decode_bootstrap", "decode_transferred")
BOOTSTRAP_FAILED = re.compile(r"(bootstrap|handshake) failed")
TRANSFER_FAILED = re.compile(r"transfer failed")


class Metrics:
    """Every series has sglang's `model_name` and `engine_type` labels; those of a rank also its tp, pp and dp rank."""

    def __init__(self, args: ServerArgs) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.mode = args.disaggregation_mode  # the current one
        self._names = {"model_name": args.name, "engine_type": args.engine_type}
        self._ranked = {**self._names, "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}
        self._per_dp = args.dp_ranks > 1
        self._requests = self._counter("num_requests_total", "requests that ended")
        self._aborted = self._counter("num_aborted_requests_total", "requests that were aborted")
        self._retracted = self._counter("num_retracted_requests_total", "requests taken back out of the running batch")
        self._retracted_input = self._counter("num_retracted_input_tokens_total", "prompt tokens of those")
        self._retracted_output = self._counter("num_retracted_output_tokens_total", "tokens those had made")
        self._prompt = self._counter("prompt_tokens_total", "prompt tokens")
        self._generated = self._counter("generation_tokens_total", "tokens generated")
        self._cached = self._counter("cached_tokens_total", "prompt tokens found in the cache")
        self._first = self._histogram("time_to_first_token_seconds", "from the request to its first token", SECONDS)
        self._gap = self._histogram("inter_token_latency_seconds", "between two tokens of a request", SECONDS)
        self._whole = self._histogram("e2e_request_latency_seconds", "from the request to its end", SECONDS)
        self._prompts = self._histogram("prompt_tokens_histogram", "prompt length", TOKENS)
        self._answers = self._histogram("generation_tokens_histogram", "answer length", TOKENS)
        self._queue = self._histogram("queue_time_seconds", "in the waiting queue", SECONDS, ranked=True)
        self._stage = self._histogram("per_stage_req_latency_seconds", "in one stage", SECONDS, True, ("stage",))
        self._move_ms = self._histogram("kv_transfer_latency_ms", "moving a room's KV cache", MILLISECONDS, ranked=True)
        self._move_mb = self._histogram("kv_transfer_total_mb", "size of a room's KV cache", MEGABYTES, ranked=True)
        self._move_gb_s = self._histogram(
            "kv_transfer_speed_gb_s", "speed of a room's KV cache", GB_PER_SECOND, ranked=True
        )
        self._bootstrap = self._histogram("kv_transfer_bootstrap_ms", "handshake of a room", MILLISECONDS, ranked=True)
        self._alloc = self._histogram("kv_transfer_alloc_ms", "waiting for memory after it", MILLISECONDS, ranked=True)
        self._bootstrap_failed = self._counter(
            "num_bootstrap_failed_reqs_total", "rooms whose handshake failed", ranked=True
        )
        self._transfer_failed = self._counter(
            "num_transfer_failed_reqs_total", "rooms whose transfer failed", ranked=True
        )
        self._retries = self._counter("num_prefill_retries_total", "optimistic prefills begun again", ranked=True)
        self._held = self._histogram(
            "decode_deferred_kv_release_seconds", "decode: pages of a failed room kept back", SECONDS, ranked=True
        )
        self._released = Counter(
            "sglang:decode_deferred_kv_release_total", "decode: failed rooms whose pages were kept back",
            [*self._ranked, "outcome"], registry=self.registry,
        )  # fmt: skip
        self._cpu = Gauge("sglang:process_cpu_seconds", "CPU time", ["component"], registry=self.registry)
        self._gauges: dict[str, Gauge] = {}
        ranks = [*self._ranked, "dp_rank"] if self._per_dp else [*self._ranked]
        self._computed = Counter(
            "sglang:realtime_tokens_total", "tokens that forward passes computed or took from the cache",
            [*ranks, "mode"], registry=self.registry,
        )  # fmt: skip
        self._computed_before: dict[tuple[int, str], float] = {}  # by dp rank and mode: what was counted at last

    def _counter(self, name: str, text: str, ranked: bool = False) -> Counter:
        labels = self._ranked if ranked else self._names
        return Counter(f"sglang:{name}", text, list(labels), registry=self.registry).labels(**labels)

    def _histogram(
        self, name: str, text: str, buckets: Sequence[float], ranked: bool = False, more: tuple[str, ...] = ()
    ) -> Histogram:
        labels = self._ranked if ranked else self._names
        family = Histogram(f"sglang:{name}", text, [*labels, *more], registry=self.registry, buckets=buckets)
        return family if more else family.labels(**labels)

    def _set(self, name: str, text: str, value: float, dp_rank: int | None = None) -> None:
        labels = self._labels(dp_rank)
        gauge = self._gauges.get(name)
        if gauge is None:
            gauge = self._gauges[name] = Gauge(f"sglang:{name}", text, list(labels), registry=self.registry)
        gauge.labels(**labels).set(value)

    def _labels(self, dp_rank: int | None) -> dict[str, str]:
        return {**self._ranked, "dp_rank": str(dp_rank)} if self._per_dp and dp_rank is not None else self._ranked

    def _count(self, report: SchedulerReport) -> None:
        """Count what the rank computed since its last report."""
        for mode, key in COMPUTED_TOKENS.items():
            total = report.load.get(key, 0.0)
            grown = total - self._computed_before.get((report.dp_rank, mode), 0.0)
            self._computed.labels(**self._labels(report.dp_rank), mode=mode).inc(max(0.0, grown))
            self._computed_before[report.dp_rank, mode] = total

    def token(self, pending: Pending, count: int, gap: float) -> None:
        """`gap` is the time since the previous token in seconds, 0 for the first."""
        if gap:
            self._gap.observe(gap / count)
        else:
            self._first.observe(pending.clock.first_token - pending.clock.received)

    def finished(self, pending: Pending) -> None:
        """Count a request and its tokens at its end, as sglang does: tokens per request are then a mean."""
        self._requests.inc()
        self._prompt.inc(pending.prompt_tokens)
        self._generated.inc(len(pending.ids))
        self._prompts.observe(pending.prompt_tokens)
        self._whole.observe(pending.clock.finished - pending.clock.received)
        self._answers.observe(len(pending.ids))
        finish, meta = pending.finish, pending.meta
        if finish is not None and finish.type == "abort":
            self._aborted.inc()
            if BOOTSTRAP_FAILED.search(finish.message):
                self._bootstrap_failed.inc()
            elif TRANSFER_FAILED.search(finish.message):
                self._transfer_failed.inc()
        if meta is None:
            return
        self._cached.inc(meta.cached_tokens)
        self._retracted.inc(meta.retractions)
        self._retracted_input.inc(meta.retractions * meta.prompt_tokens)
        self._retracted_output.inc(meta.retracted_output_tokens)
        self._retries.inc(meta.prefill_retries)
        self._queue.observe(meta.queue_time)
        if meta.transfer_bytes:
            self._moved(meta)

    def _moved(self, meta: Meta) -> None:
        handshake, transfer = STAGES[self.mode == "decode"]
        self._stage.labels(**self._ranked, stage=handshake).observe(meta.bootstrap_time)
        self._stage.labels(**self._ranked, stage=transfer).observe(meta.transfer_time)
        self._bootstrap.observe((meta.bootstrap_time - meta.alloc_time) * 1e3)
        self._alloc.observe(meta.alloc_time * 1e3)
        self._move_ms.observe(meta.transfer_time * 1e3)
        self._move_mb.observe(meta.transfer_bytes / 2**20)
        if meta.transfer_gb_s:
            self._move_gb_s.observe(meta.transfer_gb_s)

    def drained(self, drained: Drained) -> None:
        self._held.observe(drained.seconds)
        self._released.labels(**self._ranked, outcome=drained.outcome).inc()

    def started(self, facts: Mapping[str, float], phases: Mapping[str, float]) -> None:
        """Set the instance's constants, and the seconds that each start-up phase took."""
        for name, value in facts.items():
            self._set(name, name.replace("_", " "), value)
        family = Gauge(
            "sglang:startup_time_seconds", "start-up phases", [*self._names, "phase"], registry=self.registry
        )
        for phase, seconds in phases.items():
            family.labels(**self._names, phase=phase).set(seconds)

    def text(self, reports: Sequence[SchedulerReport]) -> bytes:
        """Return the exposition, with the ranks' gauges from their latest `reports`."""
        for report in reports:
            for name, (key, text) in LOAD_GAUGES.items():
                self._set(name, text, report.load.get(key, 0.0), report.dp_rank)
            self._count(report)
        self._cpu.labels(component="tokenizer").set(time.process_time())
        return generate_latest(self.registry)


PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"  # sglang 0.5.23 reads it too; grpc unless set
EXTRA = "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http opentelemetry-exporter-otlp-proto-grpc"


class StageOf(NamedTuple):
    """A span from one step of a request to another; names are sglang's request stages."""

    name: str
    begins: str
    ends: str


SPANS: dict[str, tuple[StageOf, ...]] = {
    "prefill": (
        StageOf("prefill_bootstrap", "received", "bootstrapped"),
        StageOf("prefill_waiting", "bootstrapped", "forward"),
        StageOf("prefill_forward", "forward", "sent"),
        StageOf("prefill_transfer_kv_cache", "sent", "transferred"),
    ),
    "decode": (
        StageOf("decode_bootstrap", "received", "bootstrapped"),
        StageOf("decode_transferred", "bootstrapped", "transferred"),
        StageOf("decode_forward", "transferred", "finished"),
    ),
    "unified": (
        StageOf("prefill_waiting", "received", "forward"),
        StageOf("prefill_forward", "forward", "first_token"),
        StageOf("decode_forward", "first_token", "finished"),
    ),
}


class RequestSpans:
    """Creates the spans of requests that have ended and hands them to a background exporter."""

    def __init__(self, args: ServerArgs, exporter: SpanExporter | None = None) -> None:
        """Raise MissingExtraError without OpenTelemetry, PdctlError if the protocol is not supported."""
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise MissingExtraError(f"--enable-trace needs OpenTelemetry ({error})", EXTRA) from None
        self.role = args.role
        name = os.environ.get("OTEL_SERVICE_NAME", "pdctl")
        self._provider = TracerProvider(
            resource=Resource.create(
                {"service.name": name, "service.instance.id": f"{args.role}@{args.host}:{args.port}"}
            )
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter or _exporter(args.otlp_traces_endpoint)))
        self._tracer: Tracer = self._provider.get_tracer("pdctl.engine")

    def finished(self, pending: Pending) -> None:
        """Create the request's span and one for each stage it passed, with the times that the rank recorded."""
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        message, clock = pending.job.message, pending.clock
        steps = {"received": clock.received, "first_token": clock.first_token, "finished": clock.finished}
        steps.update(pending.meta.steps if pending.meta else {})
        labels = {"rid": message.rid, "module": "pdctl::request"}
        if message.bootstrap_room:
            labels["bootstrap_room"] = hex(message.bootstrap_room)  # as SGLang writes it
        role = "" if self.role == "unified" else f"{self.role} "
        root = self._tracer.start_span(
            f"{role}Req {message.rid[:8]}",
            context=_parent(pending.group.traceparent),
            kind=SpanKind.SERVER,
            attributes={**labels, "prompt_tokens": pending.prompt_tokens, "completion_tokens": len(pending.ids)},
            start_time=_nanoseconds(clock.received),
        )
        below = set_span_in_context(root)
        for stage in SPANS[self.role]:
            begun, ended = steps.get(stage.begins, 0.0), steps.get(stage.ends, 0.0)
            if begun and ended >= begun:
                span = self._tracer.start_span(
                    stage.name, context=below, attributes=labels, start_time=_nanoseconds(begun)
                )
                span.end(_nanoseconds(ended))
        finish = pending.finish
        if finish is not None and finish.type == "abort":
            root.set_status(StatusCode.ERROR, finish.message)
        root.end(_nanoseconds(clock.finished))

    def close(self) -> None:
        """Send what is left; wait for the collector up to the exporter's own timeout."""
        self._provider.shutdown()


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _parent(traceparent: str) -> Context | None:
    """Return the caller's span as a context. Without a valid header the request gets a trace of its own."""
    if not traceparent:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": traceparent})


def _exporter(endpoint: str) -> SpanExporter:
    protocol = os.environ.get(PROTOCOL, "grpc")
    try:
        if protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

            grpc: SpanExporter = Grpc(endpoint=endpoint, insecure=True)
            return grpc
        if protocol == "http/protobuf":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

            http: SpanExporter = Http(endpoint=endpoint)
            return http
    except ImportError as error:
        raise MissingExtraError(f"--enable-trace with {PROTOCOL}={protocol}: {error}", EXTRA) from None
    raise PdctlError(f"{PROTOCOL}={protocol} is not supported", "set it to grpc or http/protobuf")
