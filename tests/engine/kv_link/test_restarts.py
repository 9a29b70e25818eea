"""Instances and bootstrap servers that come back: with other ports, another shape, or without any memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pdctl.engine.decode.receiver import Receiver
from pdctl.engine.kv_link.bootstrap_client import BootstrapClient
from pdctl.engine.kv_link.room_state import FailureCode, KVPoll
from pdctl.engine.prefill.registration import rank_row
from pdctl.engine.prefill.sender import Sender
from pdctl.layout.kv_links import KvModel
from tests.engine.kv_link.instances import Grid, Instance, assert_moved, cache, instance, pair
from tests.engine.kv_link.instances import run_room as run_shaped_room
from tests.engine.kv_link.rig import HOST, Bootstrap, Side, bootstrap, decode_side, pages, prefill_side
from tests.engine.kv_link.rooms import failed, finish
from tests.ports import free_port

GQA = KvModel(4, 4)


@contextmanager
def reused_port() -> Iterator[tuple[Bootstrap, Side, Side]]:
    """A server whose row for its prefill names the port of a stranger, registered elsewhere."""
    with (
        bootstrap() as server,
        bootstrap() as elsewhere,
        prefill_side(server.port) as prefill,
        prefill_side(elsewhere.port) as stranger,
    ):
        register_as(server, prefill, stranger, "the life before")
        yield server, prefill, stranger


def register_as(server: Bootstrap, rank: Side, listener: Side, instance_id: str) -> None:
    """Put a row for `rank` that names the port of `listener`."""
    row = rank_row(rank.manager.config, int(listener.manager.endpoint.rsplit(":", 1)[1]), instance_id)
    asyncio.run(BootstrapClient().register_rank(f"{HOST}:{server.port}", row))


def send_through(prefill: Side, decode: Side, sender: Sender, receiver: Receiver) -> None:
    receiver.send_metadata(pages(2, 3))
    sender.send(pages(5, 6), last=True, metadata=b"m")
    finish(prefill, decode, sender, receiver, b"m")


def test_a_bootstrap_server_without_memory_is_told_again_and_the_decode_waits_for_it() -> None:
    port = free_port()
    server = Bootstrap(port)
    quick = {"heartbeat_interval": 0.1}
    with prefill_side(port, **quick) as prefill, decode_side() as decode:
        server.close()
        with bootstrap(port) as successor:
            sender = prefill.manager.sender(1, "r")
            receiver = decode.manager.receiver(1, "r", HOST, port)
            decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
            assert successor.server.registered == (1, 1)
            send_through(prefill, decode, sender, receiver)


def test_rooms_under_way_do_not_notice_that_the_bootstrap_server_restarts() -> None:
    port = free_port()
    server = Bootstrap(port)
    quick = {"heartbeat_interval": 0.1}
    with prefill_side(port, **quick) as prefill, decode_side(heartbeat_max_failure=100, **quick) as decode:
        sender, receiver = prefill.manager.sender(1, "r"), decode.manager.receiver(1, "r", HOST, port)
        decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        server.close()
        with bootstrap(port) as successor:
            send_through(prefill, decode, sender, receiver)
            prefill.woken.wait("the row", lambda: successor.server.registered == (1, 1))


def test_a_row_that_names_another_living_rank_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    """A dead rank's port was given to a rank of another prefill, which must not take its rooms."""
    with reused_port() as (server, prefill, stranger), decode_side() as decode:
        receiver = decode.manager.receiver(1, "r", HOST, server.port)
        decode.woken.wait("refusal", lambda: "not the life before that the bootstrap server named" in caplog.text)
        assert receiver.poll() == KVPoll.BOOTSTRAPPING
        register_as(server, prefill, prefill, prefill.manager.instance)
        sender = prefill.manager.sender(1, "r")
        decode.until(receiver, KVPoll.WAITING_FOR_INPUT)
        send_through(prefill, decode, sender, receiver)
        assert stranger.manager.stats().peers == 0


def test_a_row_that_stays_wrong_fails_the_room_with_both_names() -> None:
    with reused_port() as (server, _, stranger), decode_side(topology_timeout=0.0) as decode:
        receiver = decode.manager.receiver(1, "r", HOST, server.port)
        failed(
            decode, receiver, FailureCode.STALE_ENDPOINT,
            stranger.manager.endpoint, stranger.manager.instance, "not the life before",
        )  # fmt: skip
        assert receiver.drained


@pytest.mark.parametrize(("first", "second"), [(Grid(1), Grid(2)), (Grid(2), Grid(1)), (Grid(1, 2), Grid(2))])
def test_an_instance_that_comes_back_in_another_shape_is_found(first: Grid, second: Grid) -> None:
    port = free_port()
    with instance("decode", GQA, Grid(2)) as decode:
        for room, grid in ((1, first), (2, second)):
            whole = cache(GQA, seed=room)
            with bootstrap(port), instance("prefill", GQA, grid, port) as prefill:
                prefill.fill(whole)
                before = [rank.pool.copy() for rank in decode.ranks]
                run_shaped_room(prefill, decode, room, port)
                assert_moved(decode, whole, before)


def test_another_shape_behind_the_same_address_retires_what_was_known_of_the_old_one() -> None:
    """The old ranks still hold their sockets: nothing but the bootstrap server's answer tells that they are history."""
    port = free_port()
    server = Bootstrap(port)
    quick = {"heartbeat_interval": 0.05, "heartbeat_max_failure": 1}
    with (
        instance("decode", GQA, Grid(1), **quick) as decode,
        instance("prefill", GQA, Grid(1), port) as old,
    ):
        run_shaped_room(old, decode, 1, port)
        server.close()
        manager = decode.ranks[0].side.manager
        decode.ranks[0].side.woken.wait("lost instance", lambda: manager.stats().peers == 0)
        whole = cache(GQA)
        with bootstrap(port), instance("prefill", GQA, Grid(2), port) as new:
            new.fill(whole)
            before = [rank.pool.copy() for rank in decode.ranks]
            run_shaped_room(new, decode, 2, port)
            assert_moved(decode, whole, before)
            assert manager.stats().peers == 2


def killed_in_turn(group: Instance, victim: int) -> None:
    group.ranks[victim].side.manager.close()


@pytest.mark.parametrize("victim", [0, 1])
def test_one_rank_of_a_prefill_that_ends_fails_the_room_of_a_decode_that_needs_both(victim: int) -> None:
    long = 300.0  # seconds between two heartbeats: none has told by the end of this
    with pair(GQA, Grid(2), Grid(1), heartbeat_interval=long) as both:
        prefill, decode, _ = both
        senders, receivers = both.announced()
        began = time.monotonic()
        killed_in_turn(prefill, victim)
        decode.until(receivers, KVPoll.FAILED)
        other = 1 - victim
        prefill.ranks[other].side.until(senders[other], KVPoll.FAILED)
        decode.ranks[0].side.until_drained(receivers[0])
        assert time.monotonic() - began < long / 2


@pytest.mark.parametrize("victim", [0, 1])
def test_one_rank_of_a_decode_that_ends_fails_the_prefill_rank_that_serves_both(victim: int) -> None:
    with pair(GQA, Grid(1), Grid(2)) as both:
        prefill, decode, _ = both
        senders, receivers = both.announced()
        killed_in_turn(decode, victim)
        prefill.until(senders, KVPoll.FAILED)
        other = 1 - victim
        decode.ranks[other].side.until(receivers[other], KVPoll.FAILED)
        decode.ranks[other].side.until_drained(receivers[other])
        before = prefill.ranks[0].side.manager.stats()
        assert before.rooms == 0
