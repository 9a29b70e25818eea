"""OpenTelemetry spans: one for each request, its stages below it, all with the room (sglang 0.5.23 srt/observability).

Off without `--enable-trace`. The HTTP process creates all spans when a request has ended. Ranks only record when each
step was reached, so tracing costs a forward pass nothing. A `traceparent` header makes the spans part of the caller's
trace, which then shows router, prefill and decode together.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from pdctl.errors import MissingExtraError, PdctlError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Tracer

    from pdctl.engine.config.instance_args import ServerArgs
    from pdctl.engine.frontend.request_state import Pending

PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"  # sglang 0.5.23 reads it too; grpc unless set
EXTRA = "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http opentelemetry-exporter-otlp-proto-grpc"


class StageOf(NamedTuple):
    """A span from one step of a request to another; names are sglang's request stages."""

    name: str
    begins: str
    ends: str


STAGES: dict[str, tuple[StageOf, ...]] = {
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
        for stage in STAGES[self.role]:
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
