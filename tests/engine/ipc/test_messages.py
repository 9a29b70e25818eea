"""Frames: what a text may hold."""

from __future__ import annotations

from pdctl.engine.cluster.node_links import Refused, codec


def test_half_a_surrogate_pair_is_spelt_out() -> None:
    """A peer's JSON can hold it as an escape, and what is said about such JSON goes out in a frame."""
    assert codec.decode(codec.encode(Refused("--dtype is \ud800, not auto"))) == Refused("--dtype is \\ud800, not auto")
    assert codec.decode(codec.encode(Refused("für 3 Knoten"))) == Refused("für 3 Knoten")
