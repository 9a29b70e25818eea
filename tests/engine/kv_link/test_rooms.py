"""Rooms that go well: bytes, metadata and states, over both real transports and every pair of layouts."""

from __future__ import annotations

import numpy as np
import pytest

from pdctl.engine.config.instance_args import FAKE_BOOTSTRAP_HOST
from pdctl.engine.kv_link.room_state import KVPoll
from pdctl.engine.kvcache.pool_geometry import Layout
from pdctl.engine.transfer.select import ADAPTIVE, NET_DEVICES, TRANSPORTS
from tests.cases import for_each
from tests.engine.kv_link.rig import HOST, Bootstrap, bootstrap, decode_side, geometry, pages, prefill_side
from tests.engine.kv_link.rooms import assert_moved, finish, open_room, routed_ip, run_room
from tests.engine.transfer.backends import BACKENDS, has_nixl

LAYER, PAGE = Layout.LAYER_MAJOR, Layout.PAGE_MAJOR


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_room_from_handshake_to_first_token(backend: str) -> None:
    with (
        bootstrap() as server,
        prefill_side(server.port, geometry(LAYER, 32), backend=backend) as prefill,
        decode_side(geometry(PAGE, 40), backend=backend) as decode,
    ):
        sender, receiver = open_room(prefill, decode, 2**53 - 1, server.port)
        assert sender.poll() == KVPoll.BOOTSTRAPPING
        decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        src, dst = pages(3, 4, 5, 9, 30), pages(7, 8, 39, 1, 2)
        receiver.send_metadata(dst)
        prefill.until(sender, KVPoll.WAITING_FOR_INPUT)
        sender.send(src[:2], last=False)
        prefill.woken.wait("first chunk", lambda: sender.poll() == KVPoll.TRANSFERRING)
        sender.send(src[2:], last=True, metadata=b"the first token")
        finish(prefill, decode, sender, receiver, b"the first token")
        assert_moved(prefill, decode, src, dst)
        nbytes = 5 * prefill.shape.page_bytes
        assert (sender.stats.pages, sender.stats.nbytes, sender.stats.chunks) == (5, nbytes, 2)
        assert (receiver.stats.pages, receiver.stats.nbytes) == (5, nbytes)
        assert receiver.stats.transfer > 0
        assert receiver.stats.handshake > 0


@for_each("backend", BACKENDS)
@for_each(("near", "far"), [(LAYER, LAYER), (PAGE, PAGE), (PAGE, LAYER)])
def test_many_rooms_at_once_with_random_chunks(backend: str, near: Layout, far: Layout) -> None:
    rng = np.random.default_rng(3)
    with (
        bootstrap() as server,
        prefill_side(server.port, geometry(near, 200), backend=backend) as prefill,
        decode_side(geometry(far, 220), backend=backend) as decode,
    ):
        sources = np.array_split(rng.permutation(np.arange(1, 200)).astype(np.int32), 25)
        targets = np.array_split(rng.permutation(np.arange(1, 200)).astype(np.int32), 25)
        rooms = [open_room(prefill, decode, 1000 + index, server.port) for index in range(25)]
        for (_, receiver), dst in zip(rooms, targets, strict=True):
            decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
            receiver.send_metadata(dst)
        for (sender, _), src in zip(rooms, sources, strict=True):
            cut = int(rng.integers(0, len(src) + 1))
            sender.send(src[:cut], last=False)
            sender.send(src[cut:], last=True, metadata=f"token of {sender.room}".encode())
        for (sender, receiver), src, dst in zip(rooms, sources, targets, strict=True):
            finish(prefill, decode, sender, receiver, f"token of {sender.room}".encode())
            assert_moved(prefill, decode, src, dst)
        for side in (prefill, decode):
            stats = side.manager.stats()
            assert (stats.rooms, stats.succeeded, stats.failed, stats.peers) == (0, 25, 0, 1)
            assert stats.nbytes == 199 * prefill.shape.page_bytes


def test_either_side_may_come_first() -> None:
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        receiver = decode.manager.receiver(5, "decode-first", HOST, server.port)
        decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        receiver.send_metadata(pages(4, 5))
        early = decode.manager.receiver(6, "barrier", HOST, server.port)
        decode.until(early, KVPoll.WAITING_FOR_INPUT)  # the same connection: room 5's page list is there by now
        sender = prefill.manager.sender(5, "decode-first")
        prefill.until(sender, KVPoll.WAITING_FOR_INPUT)
        sender.send(pages(1, 2), last=True, metadata=b"a")
        finish(prefill, decode, sender, receiver, b"a")

        sender = prefill.manager.sender(7, "sent-before-the-page-list")
        sender.send(pages(8, 9), last=False)
        sender.send(pages(), last=True, metadata=b"b")
        receiver = decode.manager.receiver(7, "sent-before-the-page-list", HOST, server.port)
        decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        receiver.send_metadata(pages(8, 10))
        finish(prefill, decode, sender, receiver, b"b")
        assert_moved(prefill, decode, pages(8, 9), pages(8, 10))


def test_the_callers_page_arrays_may_be_reused_at_once() -> None:
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        sender, receiver = open_room(prefill, decode, 5, server.port)
        decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        src, dst = pages(1, 2), pages(3, 4)
        sender.send(src, last=True)
        receiver.send_metadata(dst)
        src[:], dst[:] = 0, 0
        finish(prefill, decode, sender, receiver, b"")
        assert_moved(prefill, decode, pages(1, 2), pages(3, 4))


def test_the_handshake_is_cached_so_the_second_room_needs_no_bootstrap_server() -> None:
    server = Bootstrap()
    with prefill_side(server.port) as prefill, decode_side(heartbeat_interval=60.0) as decode:
        run_room(prefill, decode, 1, server.port)
        server.close()
        run_room(prefill, decode, 2, server.port)


def test_data_parallel_prefills_are_found_by_the_room_number() -> None:
    with (
        bootstrap() as server,
        prefill_side(server.port, dp_rank=0, dp_size=2) as even,
        prefill_side(server.port, dp_rank=1, dp_size=2) as odd,
        decode_side() as decode,
    ):
        for room in (10, 11):
            run_room((even, odd)[room % 2], decode, room, server.port)
        assert even.manager.stats().succeeded == odd.manager.stats().succeeded == 1
        sender = odd.manager.sender(12, "rank named by the request", dp_rank=1)
        receiver = decode.manager.receiver(12, "rank named by the request", HOST, server.port, dp_rank=1)
        decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        receiver.send_metadata(pages(1))
        sender.send(pages(1), last=True)
        finish(odd, decode, sender, receiver, b"")


def test_a_dp_rank_that_does_not_follow_the_room_is_announced_and_asked_for() -> None:
    method = {"load_balance_method": "round_robin", "dp_size": 2}
    with (
        bootstrap() as server,
        prefill_side(server.port, dp_rank=0, **method) as first,
        prefill_side(server.port, dp_rank=1, **method),
        decode_side() as decode,
    ):
        receiver = decode.manager.receiver(13, "asked before it is announced", HOST, server.port)
        sender = first.manager.sender(13, "asked before it is announced")
        decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        receiver.send_metadata(pages(1))
        sender.send(pages(1), last=True)
        finish(first, decode, sender, receiver, b"")


def test_two_prefills_and_two_decodes_all_pairs() -> None:
    with (
        bootstrap() as one,
        bootstrap() as two,
        prefill_side(one.port) as first,
        prefill_side(two.port) as second,
        decode_side() as left,
        decode_side(geometry(PAGE)) as right,
    ):
        room = 0
        for prefill, server in ((first, one), (second, two)):
            for decode in (left, right):
                room += 1
                run_room(prefill, decode, room, server.port)
        assert first.manager.stats().peers == second.manager.stats().peers == 2
        assert left.manager.stats().peers == right.manager.stats().peers == 2


def test_the_fake_host_succeeds_at_once_without_any_socket() -> None:
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        sender = prefill.manager.sender(1, "health", FAKE_BOOTSTRAP_HOST)
        receiver = decode.manager.receiver(1, "health", FAKE_BOOTSTRAP_HOST, 8998)
        assert sender.poll() == receiver.poll() == KVPoll.WAITING_FOR_INPUT
        receiver.send_metadata(pages(1, 2))
        sender.send(pages(1), last=False)
        assert sender.poll() == KVPoll.WAITING_FOR_INPUT
        sender.send(pages(2), last=True, metadata=b"x")
        assert sender.poll() == receiver.poll() == KVPoll.SUCCESS
        assert receiver.metadata == b""
        assert receiver.drained
        assert decode.manager.stats().peers == 0


def test_a_room_number_can_be_used_again_after_it_has_ended() -> None:
    with bootstrap() as server, prefill_side(server.port) as prefill, decode_side() as decode:
        for _ in range(3):
            run_room(prefill, decode, 1, server.port)


@pytest.mark.skipif(not has_nixl(), reason="no NIXL wheel for this platform")
@pytest.mark.skipif(routed_ip() == HOST, reason="this machine has no address but the loopback")
def test_peers_that_may_be_on_other_hosts_help_each_other_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """UCX's peer-failure mode: the first write ends only when the decode lends its thread."""
    for name in (TRANSPORTS, NET_DEVICES, ADAPTIVE):  # which a rank on the loopback has set for its process
        monkeypatch.delenv(name, raising=False)
    with (
        bootstrap() as server,
        prefill_side(server.port, backend="nixl", rank_ip=routed_ip()) as prefill,
        decode_side(backend="nixl", rank_ip=routed_ip()) as decode,
    ):
        assert routed_ip() in prefill.manager.endpoint
        assert not prefill.manager.transport.caps.same_host
        for room in (1, 2, 3):
            run_room(prefill, decode, room, server.port)
