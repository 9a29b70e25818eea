"""Two decodes that use one room number with one prefill: the first gets the KV cache, the second is told at once."""

from __future__ import annotations

from pdctl.engine.kv_link.room_state import FailureCode, KVPoll
from tests.engine.kv_link.rig import HOST, bootstrap, decode_side, pages, prefill_side
from tests.engine.kv_link.rooms import failed


def test_a_claim_after_chunks_have_left_is_refused() -> None:
    with (
        bootstrap() as server,
        prefill_side(server.port) as prefill,
        decode_side() as first,
        decode_side() as second,
    ):
        sender = prefill.manager.sender(5, "p")  # type: ignore[union-attr]
        owner = first.manager.receiver(5, "first", HOST, server.port)  # type: ignore[union-attr]
        first.until(owner, KVPoll.WAITING_FOR_INPUT)
        owner.send_metadata(pages(1, 2))
        sender.send(pages(3), last=False)
        prefill.woken.wait("the first chunk", lambda: sender.stats.pages == 1)
        late = second.manager.receiver(5, "second", HOST, server.port)  # type: ignore[union-attr]
        second.until(late, KVPoll.WAITING_FOR_INPUT)
        late.send_metadata(pages(7, 8))
        failed(second, late, FailureCode.DUPLICATE_ROOM, "rooms must be unique")
        second.until_drained(late)
        sender.send(pages(4), last=True, metadata=b"m")
        first.until(owner, KVPoll.SUCCESS)
        prefill.until(sender, KVPoll.SUCCESS)
