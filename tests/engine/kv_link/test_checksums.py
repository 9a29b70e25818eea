"""Rooms whose pages are checked before they are used: what was spoilt on the way never reaches a request."""

from __future__ import annotations

import numpy as np
import pytest

from pdctl.engine.kv_link.room_state import FailureCode, KVPoll
from pdctl.engine.kvcache.pool_geometry import Layout
from pdctl.engine.transfer.checksum import ChecksumTransport
from pdctl.engine.transfer.transport import Op, TransferPlan, Transport, TransportWrapper
from tests.cases import for_each
from tests.engine.kv_link.rig import bootstrap, decode_side, geometry, pages, prefill_side
from tests.engine.kv_link.rooms import failed, open_room, run_room
from tests.engine.transfer.backends import BACKENDS

SRC, DST = pages(1, 2, 5, 7), pages(4, 9, 8, 3)


class Spoilt(TransportWrapper):
    """Behind every write comes one of a wrong page over `victim`."""

    def __init__(self, inner: Transport, victim: int) -> None:
        super().__init__(inner)
        self._victim = victim

    def post(self, plan: TransferPlan, src_pages: np.ndarray, dst_pages: np.ndarray) -> Op:
        op = super().post(plan, src_pages, dst_pages)
        if self._victim in dst_pages.tolist():
            super().post(plan, pages(30), pages(self._victim))
        return op


@for_each("backend", BACKENDS)
@for_each("layout", list(Layout))
def test_pages_that_arrived_as_they_were_sent_are_used(backend: str, layout: Layout) -> None:
    with (
        bootstrap() as server,
        prefill_side(server.port, geometry(layout), wrap=ChecksumTransport, backend=backend) as prefill,
        decode_side(geometry(), wrap=ChecksumTransport, backend=backend) as decode,
    ):
        run_room(prefill, decode, 5, server.port)
        run_room(prefill, decode, 6, server.port)


def test_a_spoilt_page_fails_the_room_and_is_named_on_both_sides() -> None:
    with (
        bootstrap() as server,
        prefill_side(server.port, wrap=lambda inner: ChecksumTransport(Spoilt(inner, 8))) as prefill,
        decode_side(wrap=ChecksumTransport, drain_grace=0.2) as decode,
    ):
        sender, receiver = open_room(prefill, decode, 5, server.port)
        decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        receiver.send_metadata(DST)
        sender.send(SRC[:1], last=False)
        sender.send(SRC[1:], last=True, metadata=b"token")
        failed(
            decode, receiver, FailureCode.CHECKSUM,
            "KV checksum mismatch on page 3 of 4: prefill page 5 was sent with 0x", ", decode page 8 holds 0x",
            prefill.manager.endpoint,
        )  # fmt: skip
        assert not receiver.drained, "whoever wrote there may do so again"
        decode.until_drained(receiver)
        prefill.until(sender, KVPoll.SUCCESS)
        run_room(prefill, decode, 6, server.port)


@pytest.mark.parametrize("fault", ["corrupt:page", "drop:post"])
def test_a_rehearsed_fault_of_the_transport_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDCTL_FAULTS", fault)
    with (
        bootstrap() as server,
        prefill_side(server.port, wrap=ChecksumTransport) as prefill,
        decode_side(wrap=ChecksumTransport, drain_grace=0.1) as decode,
    ):
        sender, receiver = open_room(prefill, decode, 5, server.port)
        decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        receiver.send_metadata(DST)
        sender.send(SRC, last=True, metadata=b"token")
        failed(decode, receiver, FailureCode.CHECKSUM, "KV checksum")
        decode.until_drained(receiver)


def test_a_decode_that_checks_takes_what_a_prefill_that_does_not_sends_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        bootstrap() as server,
        prefill_side(server.port) as prefill,
        decode_side(wrap=ChecksumTransport) as decode,
    ):
        run_room(prefill, decode, 5, server.port)
        run_room(prefill, decode, 6, server.port)
        assert caplog.text.count("KV checksum skipped: prefill ") == 1


def test_a_decode_that_does_not_check_is_served_by_a_prefill_that_would() -> None:
    with (
        bootstrap() as server,
        prefill_side(server.port, wrap=lambda inner: ChecksumTransport(Spoilt(inner, 31))) as prefill,
        decode_side() as decode,
    ):
        run_room(prefill, decode, 5, server.port)
