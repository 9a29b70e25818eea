from __future__ import annotations

import pytest

from pdctl.layout.feasibility import check, nearest
from pdctl.layout.shape import Shape, flags


def works(shape: Shape) -> bool:
    return not check(shape)


@pytest.mark.parametrize(
    ("shape", "ways"),
    [
        (Shape(tp=16, dp=3), ["--tp 16 --dp 4", "--tp 16 --dp 2", "--tp 24 --dp 3"]),
        (Shape(tp=7, dp=3), ["--tp 6 --dp 3", "--tp 7 --dp 7", "--tp 7"]),
        (Shape(tp=5, dp=2), ["--tp 6 --dp 2", "--tp 4 --dp 2", "--tp 5"]),
        (Shape(tp=16, dp=7), ["--tp 16 --dp 8", "--tp 16 --dp 4", "--tp 16 --dp 2"]),
        (Shape(tp=8, replicas=2), ["--tp 8 --dp 2", "--tp 8", "--tp 4 --replicas 2"]),
        (Shape(tp=8, base_gpu_id=4), ["--tp 4 --base-gpu-id 4", "--tp 2 --base-gpu-id 4", "--tp 1 --base-gpu-id 4"]),
        (Shape(tp=0), ["--tp 1", "--tp 2"]),
    ],
    ids=range(7),
)
def test_closest_first(shape: Shape, ways: list[str]) -> None:
    assert [flags(found) for found in nearest(shape, works)] == ways


def test_two_sizes_change_where_one_is_not_enough() -> None:
    shape = Shape(tp=6, dp=4, ep=4, nnodes=1, gpus_per_host=6)
    found = nearest(shape, works)
    assert found
    for other in found:
        changed = [name for name in Shape._fields if getattr(other, name) != getattr(shape, name)]
        assert len(changed) == 2


def test_whatever_is_offered_works() -> None:
    offered = 0
    for tp in range(1, 34):
        for dp in (1, 2, 3, 5, 8):
            for nnodes in (None, 2, 3):
                shape = Shape(tp=tp, dp=dp, nnodes=nnodes, ep=2)
                if works(shape):
                    continue
                found = nearest(shape, works)
                offered += len(found)
                assert all(works(other) for other in found)
                assert shape not in found
    assert offered > 500


def test_nothing_is_offered_where_nothing_works() -> None:
    assert nearest(Shape(tp=4), lambda shape: False) == ()
