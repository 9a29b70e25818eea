"""Processes that die, stop or come back: only their rooms fail, at once and with the reason; all others go on."""

from __future__ import annotations

import signal
import time

import numpy as np
import pytest

from pdctl.engine.kv_link.room_state import FailureCode, KVPoll
from pdctl.engine.kvcache.pool_geometry import Layout
from tests.engine.kv_link.far_rank import FarRank, far_rank
from tests.engine.kv_link.rig import HOST, Bootstrap, Side, bootstrap, decode_side, geometry, pages, prefill_side
from tests.engine.kv_link.rooms import failed, routed_ip, run_room
from tests.engine.transfer.backends import BACKENDS, has_nixl
from tests.ports import free_port

needs_route = pytest.mark.skipif(
    routed_ip() == HOST or not has_nixl(), reason="needs NIXL and an address that is not the loopback"
)
BIG = geometry(num_pages=2048, layers=8)  # 32 MiB


def receive_from(prefill: FarRank, decode: Side, room: int, port: int) -> None:
    """One whole room with a prefill in another process, checked byte for byte."""
    prefill.ask("open", room)
    receiver = decode.manager.receiver(room, f"far-{room}", HOST, port)
    decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
    receiver.send_metadata(pages(2, 9))
    prefill.ask("send", room, (5, 6))
    decode.until(receiver, KVPoll.SUCCESS)
    assert receiver.metadata == b"far"
    for slab in (0, decode.shape.num_slabs - 1):
        assert prefill.ask("item", slab, 6) == decode.item(slab, 9).tobytes()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_killed_prefill_fails_its_rooms_at_once_and_its_successor_is_found(backend: str) -> None:
    """Same bootstrap address, new rank ports, another layout: nothing about the dead one may be remembered."""
    port = free_port()
    with decode_side(backend=backend, heartbeat_interval=300.0) as decode:
        with far_rank("prefill", port, geometry(), backend=backend) as prefill:
            receive_from(prefill, decode, 1, port)
            prefill.ask("open", 2)
            waiting = decode.manager.receiver(2, "r", HOST, port)
            decode.until(waiting, KVPoll.WAITING_FOR_INPUT)
            waiting.send_metadata(pages(3))
            idle = decode.manager.receiver(3, "r", HOST, port)
            decode.until(idle, KVPoll.WAITING_FOR_INPUT)
            began = time.monotonic()
            prefill.kill()
            text = f"Lost connection with prefill instance (bootstrap_addr: {HOST}:{port}): rank {prefill.endpoint}"
            for room in (waiting, idle):
                failed(decode, room, FailureCode.PREFILL_LOST, text)
                decode.until_drained(room)
            assert time.monotonic() - began < 60, "long before any heartbeat"
        with far_rank("prefill", port, geometry(Layout.PAGE_MAJOR, 50), backend=backend) as successor:
            receive_from(successor, decode, 4, port)
        assert decode.manager.stats().rooms == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_prefill_killed_while_it_writes_settles(backend: str) -> None:
    port = free_port()
    everything = tuple(range(1, BIG.num_pages))
    with decode_side(BIG, backend=backend) as decode, far_rank("prefill", port, BIG, backend=backend) as prefill:
        receivers = []
        for room in range(1, 9):
            prefill.ask("open", room)
            if room < 8:  # the last one waits, however fast the machine is
                prefill.ask("send", room, everything)
            receiver = decode.manager.receiver(room, "r", HOST, port)
            receivers.append(receiver)
            decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        for receiver in receivers:
            receiver.send_metadata(np.array(everything))
        decode.until(receivers[0], KVPoll.SUCCESS)
        prefill.kill()
        for receiver in receivers:
            decode.woken.wait("end of the room", lambda r=receiver: r.poll().final)  # type: ignore[misc]
            decode.until_drained(receiver, seconds=2)
        assert receivers[-1].poll() == KVPoll.FAILED
        stopped = decode.pool.copy()
        time.sleep(0.05)  # not a wait for anything: nothing may happen
        assert np.array_equal(stopped, decode.pool)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_killed_decode_fails_only_its_own_rooms(backend: str) -> None:
    with (
        bootstrap() as server,
        prefill_side(server.port, backend=backend) as prefill,
        decode_side(backend=backend) as survivor,
        far_rank("decode", 0, geometry(), backend=backend) as victim,
    ):
        doomed = prefill.manager.sender(1, "doomed")
        victim.ask("open", 1, server.port, (1, 2))
        prefill.until(doomed, KVPoll.WAITING_FOR_INPUT)
        spared = prefill.manager.sender(2, "spared")
        receiver = survivor.manager.receiver(2, "spared", HOST, server.port)
        survivor.until(receiver, KVPoll.WAITING_FOR_INPUT)
        receiver.send_metadata(pages(1, 2))
        prefill.until(spared, KVPoll.WAITING_FOR_INPUT)
        victim.kill()
        doomed.send(pages(1, 2), last=True)
        failed(
            prefill, doomed, FailureCode.DECODE_LOST, "Decode instance could be dead, remote session", victim.endpoint
        )
        spared.send(pages(1, 2), last=True)
        survivor.until(receiver, KVPoll.SUCCESS)
        prefill.woken.wait("end of the dead session", lambda: prefill.manager.stats().peers == 1)
        with far_rank("decode", 0, geometry(Layout.PAGE_MAJOR), backend=backend) as successor:
            sender = prefill.manager.sender(3, "successor")
            sender.send(pages(1, 2), last=True)
            successor.ask("open", 3, server.port, (4, 5))
            prefill.until(sender, KVPoll.SUCCESS)


def test_a_rank_that_comes_back_behind_a_living_bootstrap_server_is_found() -> None:
    """The address stays healthy all the time: only the broken connection tells that the endpoint is stale."""
    with bootstrap() as server, decode_side() as decode:
        for room in (1, 2):
            with far_rank("prefill", server.port, geometry(), own_server=False) as prefill:
                receive_from(prefill, decode, room, server.port)
                prefill.kill()
            decode.woken.wait("notice of the death", lambda: decode.manager.stats().peers == 0)


def test_heartbeats_notice_an_instance_whose_ranks_still_hold_their_sockets() -> None:
    server = Bootstrap()
    with (
        prefill_side(server.port) as prefill,
        decode_side(heartbeat_interval=0.1, heartbeat_max_failure=2) as decode,
    ):
        run_room(prefill, decode, 1, server.port)
        receiver = decode.manager.receiver(2, "r", HOST, server.port)
        sender = prefill.manager.sender(2, "r")
        decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        receiver.send_metadata(pages(1))
        prefill.until(sender, KVPoll.WAITING_FOR_INPUT)
        server.close()
        failed(
            decode, receiver, FailureCode.PREFILL_LOST,
            f"Lost connection with prefill instance (bootstrap_addr: {HOST}:{server.port}): 2 heartbeats failed",
        )  # fmt: skip
        failed(prefill, sender, FailureCode.ABORTED, "Aborted by decode-side abort notification.")
        decode.until_drained(receiver)
        with bootstrap(server.port), prefill_side(server.port) as successor:
            run_room(successor, decode, 3, server.port)


def test_a_prefill_that_hangs_keeps_the_pages_in_quarantine_until_the_grace_is_over() -> None:
    port = free_port()
    grace = 3.0
    with (
        decode_side(waiting_timeout=0.2, drain_grace=grace) as decode,
        far_rank("prefill", port, geometry()) as prefill,
    ):
        prefill.ask("open", 1)
        receiver = decode.manager.receiver(1, "r", HOST, port)
        decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        prefill.signal(signal.SIGSTOP)
        receiver.send_metadata(pages(3))
        began = time.monotonic()
        failed(decode, receiver, FailureCode.WAITING_TIMEOUT, "(limit 0.2s)", prefill.endpoint)
        assert not receiver.drained, "a stopped process may still be about to write"
        assert decode.manager.stats().draining == 1
        decode.until_drained(receiver)
        assert time.monotonic() - began >= grace, "the pages came back before the grace was over"
        prefill.signal(signal.SIGCONT)
        decode.woken.wait("page list taken back", lambda: prefill.ask("open", 2)[0] == KVPoll.BOOTSTRAPPING)


def test_a_prefill_that_forgot_us_is_told_again_without_failing_the_room() -> None:
    """A connection that broke on the prefill's side only: the room registers once more and goes on."""
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        run_room(prefill, decode, 1, server.port)
        manager = prefill.manager
        manager.loop.call(lambda: [manager.lost(session, "cut by the test") for session in manager._sessions.all()])
        prefill.woken.wait("lost session", lambda: manager.stats().peers == 0)
        sender = manager.sender(2, "r")
        receiver = decode.manager.receiver(2, "r", HOST, server.port)
        decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        receiver.send_metadata(pages(7))
        sender.send(pages(9), last=True, metadata=b"m")
        decode.until(receiver, KVPoll.SUCCESS)
        assert receiver.metadata == b"m"
        assert np.array_equal(decode.item(1, 7), prefill.item(1, 9))


@needs_route
def test_a_write_that_never_ends_keeps_the_pages_until_it_is_cut_off() -> None:
    """UCX's peer-failure mode needs the target's help for the first write, and this target is stopped."""
    settings = {"backend": "nixl", "rank_ip": routed_ip()}
    with (
        bootstrap() as server,
        prefill_side(server.port, drain_grace=0.6, **settings) as prefill,
        far_rank("decode", 0, geometry(), **settings) as decode,
    ):
        sender = prefill.manager.sender(1, "stuck")
        decode.ask("open", 1, server.port, (1, 2))
        prefill.until(sender, KVPoll.WAITING_FOR_INPUT)
        decode.signal(signal.SIGSTOP)
        sender.send(pages(1, 2), last=True)
        prefill.woken.wait("write under way", lambda: sender.stats.chunks == 1)
        sender.abort("Aborted by AbortReq.")
        prefill.woken.wait("failing room", lambda: prefill.manager.stats().draining == 1)
        assert sender.poll() == KVPoll.TRANSFERRING
        assert not sender.drained, "the pages are still being read"
        failed(prefill, sender, FailureCode.ABORTED, "Aborted by AbortReq.")
        assert sender.drained
        assert prefill.manager.stats().peers == 0, "whoever holds up a write is cut off"
        with decode_side(**settings) as other:
            run_room(prefill, other, 2, server.port)
