"""The collisions of ports an operator runs into."""

from __future__ import annotations

from pdctl.engines.versions import SGLANG, V0_5_3, V0_5_8, V0_5_13, V0_5_23, Version, spell
from pdctl.layout.handover import PortClaim, collisions
from pdctl.layout.ports import Numbers, occupied
from pdctl.layout.shape import Shape
from tests.cases import for_each

DP8 = Shape(tp=8, dp=8)


@for_each("version", SGLANG, ids=spell)
def test_two_roles_next_to_each_other_collide(version: Version) -> None:
    """HTTP ports that differ by one: the second's rendezvous port is the first's tokenizer channel."""
    claims = [
        PortClaim("h", port.port, name, port.purpose)
        for name, numbers in (("prefill-0", Numbers(30000, 8998)), ("prefill-1", Numbers(30001, 8998)))
        for port in occupied(DP8, numbers, version)
    ]
    found = {problem.message for problem in collisions(claims)}
    assert "prefill-1's bootstrap port 8998 on h is also prefill-0's bootstrap port" in found
    assert "prefill-1's dist-init port 30234 on h is also prefill-0's tokenizer port" in found


@for_each(("version", "apart"), [(V0_5_3, 6 + 8), (V0_5_8, 14), (V0_5_13, 14), (V0_5_23, 14)])
def test_far_enough_apart_they_do_not(version: Version, apart: int) -> None:
    def clash(distance: int) -> bool:
        claims = [
            PortClaim("h", port.port, name, port.purpose)
            for name, http in (("one", 30000), ("other", 30000 + distance))
            for port in occupied(DP8, Numbers(http), version)
        ]
        return bool(collisions(claims))

    assert not clash(apart)
    assert clash(1)


def test_equal_ports_on_two_hosts_are_fine_and_numbers_have_an_end() -> None:
    assert collisions([PortClaim("a", 80, "one", "http"), PortClaim("b", 80, "other", "http")]) == ()
    (problem,) = collisions([PortClaim("a", 65536, "one", "http")])
    assert problem.code == "port-range"
    assert "one's http port 65536 on a is outside 1 to 65535" in problem.message
