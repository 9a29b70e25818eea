"""A stand-in whose arguments are not those of what it stands for cannot be defined."""

from __future__ import annotations

import pytest

from pdctl.engine.cluster.rank_processes import Ranks
from pdctl.engine.kv_link.kv_loop import KvLoop
from tests.fuzz.stand_ins import instead_of, stands_for


def test_a_function_that_takes_less_is_refused() -> None:
    with pytest.raises(TypeError, match=r"KvLoop\.spawn .*spoilt"):

        @instead_of(KvLoop.spawn)
        def spawn(work: object) -> None:
            """As it was before a question could be spoilt."""


def test_a_method_that_takes_less_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Less\.lose takes \[.*self"):

        @stands_for(Ranks)
        class Less:
            def lose(self) -> None:
                """Without its reason."""


def test_a_method_that_the_real_one_has_not_is_refused() -> None:
    with pytest.raises(TypeError, match="Ranks has no loose"):

        @stands_for(Ranks)
        class Other:
            def loose(self, reason: str) -> None:
                """A name that was changed."""
