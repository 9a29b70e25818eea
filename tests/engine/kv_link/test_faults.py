"""Every kind of fault between real managers: it fires at its step, and both sides end as they must."""

from __future__ import annotations

import asyncio
import logging

import numpy as np
import pytest

from pdctl.engine.decode.receiver import Receiver
from pdctl.engine.drill.fault_points import ENV
from pdctl.engine.kv_link.bootstrap_client import BootstrapClient, BootstrapError
from pdctl.engine.kv_link.room_state import FailureCode, KVPoll
from pdctl.engine.prefill.sender import Sender
from tests.engine.kv_link.far_rank import far_rank
from tests.engine.kv_link.rig import HOST, Side, bootstrap, decode_side, geometry, pages, prefill_side
from tests.engine.kv_link.rooms import failed
from tests.ports import free_port


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.MonkeyPatch:
    caplog.set_level(logging.INFO, "pdctl.engine")
    return monkeypatch


def room(prefill: Side, decode: Side, number: int, port: int) -> tuple[Sender, Receiver]:
    """Both ends of a room whose pages have been announced and sent."""
    sender = prefill.manager.sender(number, f"p{number}")  # type: ignore[union-attr]
    receiver = decode.manager.receiver(number, f"d{number}", HOST, port)  # type: ignore[union-attr]
    decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
    receiver.send_metadata(pages(2, 9))
    sender.send(pages(5, 6), last=True, metadata=b"first")
    return sender, receiver


def arrived(prefill: Side, decode: Side) -> bool:
    same = (np.array_equal(prefill.item(0, near), decode.item(0, far)) for near, far in ((5, 2), (6, 9)))
    return all(same)


def test_a_page_list_that_is_lost_ends_both_sides(faults: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    faults.setenv(ENV, "drop:transfer_info@room%2==1")
    with (
        bootstrap() as server,
        prefill_side(server.port) as prefill,
        decode_side(waiting_timeout=0.5) as decode,
    ):
        sender, receiver = room(prefill, decode, 7, server.port)
        failed(decode, receiver, FailureCode.WAITING_TIMEOUT, "KVPoll.WaitingForInput")
        failed(prefill, sender, FailureCode.ABORTED, "decode-side abort notification")
        decode.until_drained(receiver)
        assert "REHEARSAL: fault drop:transfer_info@room%2==1 fires at transfer_info room=7" in caplog.text
        with decode_side() as patient:  # this room must not end by a deadline
            sender, receiver = room(prefill, patient, 8, server.port)
            patient.until(receiver, KVPoll.SUCCESS)
            assert arrived(prefill, patient)


@pytest.mark.parametrize("word", ["duplicate:transfer_info", "duplicate:status", "duplicate:in.transfer_info"])
def test_a_frame_that_comes_twice_changes_nothing(word: str, faults: pytest.MonkeyPatch) -> None:
    faults.setenv(ENV, word)
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        for number in (1, 2):
            sender, receiver = room(prefill, decode, number, server.port)
            decode.until(receiver, KVPoll.SUCCESS)
            prefill.until(sender, KVPoll.SUCCESS)
            decode.until_drained(receiver)
        assert decode.manager.stats().rooms == prefill.manager.stats().rooms == 0


@pytest.mark.parametrize(
    "word", ["delay:status=200ms", "stall:in.status=100ms", "stall:post=100ms", "delay:bootstrap=50ms"]
)
def test_what_is_late_still_arrives(word: str, faults: pytest.MonkeyPatch) -> None:
    faults.setenv(ENV, word)
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        _, receiver = room(prefill, decode, 1, server.port)
        decode.until(receiver, KVPoll.SUCCESS)
        assert arrived(prefill, decode)


def test_a_damaged_frame_is_rejected_and_the_room_ends_at_its_deadline(
    faults: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faults.setenv(ENV, "corrupt:status")
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side(waiting_timeout=0.5) as decode:
        _, receiver = room(prefill, decode, 1, server.port)
        failed(decode, receiver, FailureCode.WAITING_TIMEOUT, "no transfer-done signal from")
        decode.until_drained(receiver)
        assert "Rejected a frame of" in caplog.text


def test_a_write_that_fails_is_told_to_both_sides(faults: pytest.MonkeyPatch) -> None:
    faults.setenv(ENV, "fail:post@first=1")
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        sender, receiver = room(prefill, decode, 1, server.port)
        prefill.woken.wait("end of the sender", lambda: sender.poll() == KVPoll.FAILED)
        decode.woken.wait("end of the receiver", lambda: receiver.poll() == KVPoll.FAILED)
        assert sender.failure is not None
        assert "fault fail:post@first=1" in sender.failure.message


@pytest.mark.parametrize("word", ["corrupt:page", "drop:post"])
def test_wrong_bytes_arrive_as_if_they_were_right(word: str, faults: pytest.MonkeyPatch) -> None:
    """What a checksum is for."""
    faults.setenv(ENV, word)
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        _, receiver = room(prefill, decode, 1, server.port)
        decode.until(receiver, KVPoll.SUCCESS)
        assert not arrived(prefill, decode)


@pytest.mark.parametrize("word", ["drop:bootstrap", "corrupt:bootstrap"])
def test_a_bootstrap_server_that_does_not_answer(word: str, faults: pytest.MonkeyPatch) -> None:
    with bootstrap() as plain:
        asyncio.run(BootstrapClient().health(f"{HOST}:{plain.port}"))
    faults.setenv(ENV, word)
    with bootstrap() as server, decode_side(topology_timeout=0.1) as decode:
        if word.startswith("drop"):
            with pytest.raises(BootstrapError):
                asyncio.run(BootstrapClient().health(f"{HOST}:{server.port}"))
        receiver = decode.manager.receiver(1, "r", HOST, server.port)  # type: ignore[union-attr]
        failed(decode, receiver, FailureCode.BOOTSTRAP_UNREACHABLE, f"{HOST}:{server.port}")


def test_a_prefill_that_kills_itself_while_it_writes(faults: pytest.MonkeyPatch) -> None:
    port = free_port()
    faults.setenv(ENV, "kill:post=2")
    with far_rank("prefill", port, geometry()) as prefill:
        faults.delenv(ENV)
        with decode_side() as decode:
            for number in (1, 2):
                prefill.ask("open", number)
                receiver = decode.manager.receiver(number, "r", HOST, port)  # type: ignore[union-attr]
                decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
                receiver.send_metadata(pages(2, 9))
                prefill.tell("send", number, (5, 6))
                if number == 1:
                    decode.until(receiver, KVPoll.SUCCESS)
                    prefill._receive()
            failed(decode, receiver, FailureCode.PREFILL_LOST, "Lost connection with prefill instance")
            decode.until_drained(receiver)
