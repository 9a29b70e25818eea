"""The metadata row survives the wire, and another room's row is never believed."""

import math

import pytest

from pdctl.engine.kv_link.kv_frames import ContextCorruptionError, MetadataRow, believed_row
from pdctl.engine.scheduler.resources import MetadataLeakError, MetadataSlots
from tests.cases import for_each

ROW = MetadataRow(
    room=2**53 - 1, output_id=31999, cached_tokens=48, logprob=-0.5, top_logprobs=((31999, -0.5), (7, -2.25))
)


def test_row_survives_the_wire() -> None:
    assert MetadataRow.decode(ROW.encode()) == ROW
    bare = MetadataRow.decode(MetadataRow(room=2**64 - 1, output_id=0).encode())
    assert (bare.room, bare.output_id, bare.top_logprobs) == (2**64 - 1, 0, ())
    assert math.isnan(bare.logprob)


@for_each("cut", range(len(ROW.encode())))
def test_a_cut_row_is_corruption(cut: int) -> None:
    with pytest.raises(ContextCorruptionError, match="bytes"):
        MetadataRow.decode(ROW.encode()[:cut])


def test_another_version_names_both() -> None:
    with pytest.raises(ContextCorruptionError, match="version 9, this engine reads 1") as caught:
        MetadataRow.decode(b"\x09" + ROW.encode()[1:])
    assert "same pdctl version" in caught.value.fix


def test_decode_side_reads_what_the_prefill_side_sent() -> None:
    assert believed_row(ROW.encode(), ROW.room) == ROW


def test_another_rooms_row_is_context_corruption() -> None:
    with pytest.raises(ContextCorruptionError, match=f"carries room {ROW.room}, expected room 5"):
        believed_row(ROW.encode(), 5)


def test_nothing_that_arrived_is_context_corruption() -> None:
    with pytest.raises(ContextCorruptionError, match="no metadata of room 5 arrived"):
        believed_row(None, 5)


def test_slots_run_out_and_leaks_are_counted() -> None:
    buffers = MetadataSlots(2)
    slots = [buffers.alloc(), buffers.alloc()]
    assert buffers.alloc() is None
    with pytest.raises(MetadataLeakError, match="2 slots out, 0 expected"):
        buffers.check(expected_out=0)
    buffers.free(slots)
    buffers.check(expected_out=0)
    assert buffers.free_slots == 2
    with pytest.raises(MetadataLeakError, match="is not out"):
        buffers.free(slots[0])


def test_too_many_top_logprobs_are_refused() -> None:
    with pytest.raises(ValueError, match="limit is 128"):
        MetadataRow(1, 1, top_logprobs=((0, 0.0),) * 129).encode()


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (MetadataRow(1, 512), "token 512; the vocabulary has 0 to 511"),
        (MetadataRow(1, -1), "token -1"),
        (MetadataRow(1, 2**31 - 1), "token 2147483647"),
        (MetadataRow(1, 7, 0, -0.5, ((7, -0.5), (512, -1.0))), "token 512"),
        (MetadataRow(1, 7, 33), "33 of 32 prompt tokens"),
        (MetadataRow(1, 7, -1), "-1 of 32 prompt tokens"),
    ],
)
def test_tokens_that_cannot_be_are_corruption(row: MetadataRow, why: str) -> None:
    with pytest.raises(ContextCorruptionError, match=why):
        believed_row(row.encode(), 1, 32, 512)
    assert believed_row(MetadataRow(1, 511, 32).encode(), 1, 32, 512).output_id == 511
