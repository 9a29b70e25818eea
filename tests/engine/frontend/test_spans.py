"""Spans of a request, as a collector receives them over OTLP."""

from __future__ import annotations

import gzip
import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.engine.frontend.conftest import PATIENCE, READY, running

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ROOM = 5234567890123


class Collector:
    def __init__(self) -> None:
        self.spans: queue.Queue[Span] = queue.Queue()
        spans = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in resource.scope_spans:
                        for span in scope.spans:
                            spans.put(span)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()

    def take(self, count: int) -> dict[str, Span]:
        found = [self.spans.get(timeout=PATIENCE) for _ in range(count)]
        return {span.name: span for span in found}


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def attributes(span: Span) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in span.attributes}


def test_spans_carry_the_room_and_join_the_callers_trace(model: Path, collector: Collector) -> None:
    flags = ("--disaggregation-mode", "decode", "--enable-trace", "--otlp-traces-endpoint", collector.url)
    env = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    with running(model, *flags, env=env) as engine:
        engine.wait_for(READY)
        body = {
            "input_ids": [5, 6, 7],
            "sampling_params": {"max_new_tokens": 3},
            "rid": "0123456789",
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": 8998,
            "bootstrap_room": ROOM,
        }
        answer = engine.client.post("/generate", json=body, headers={"traceparent": f"00-{TRACE}-{CALLER}-01"})
        assert answer.status_code == 200
        root = collector.take(1)["decode Req 01234567"]
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, CALLER)
    assert attributes(root)["bootstrap_room"] == hex(ROOM)
    assert attributes(root)["rid"] == "0123456789"
    assert root.end_time_unix_nano > root.start_time_unix_nano


def test_what_is_missing_is_named(model: Path) -> None:
    with running(model, "--enable-trace", env={"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "carrier-pigeon"}) as engine:
        engine.wait_for("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=carrier-pigeon is not supported. set it to grpc or http")
        assert engine.exit_code() == 1
