"""The servers of the probes' tests."""

from __future__ import annotations

from tests.fleet.conftest import peer, serve

__all__ = ["peer", "serve"]
