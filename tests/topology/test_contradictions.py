from __future__ import annotations

import pytest

from pdctl.errors import TopologyError
from pdctl.topology.diagnostic import Code, Diagnostic
from pdctl.topology.owned_flags import ENGINE_OWNED, ROUTER_OWNED, owner
from pdctl.topology.resolve import load
from tests.cases import for_each

from .conftest import Write

SGLANG = "engine: {kind: sglang}\nmodel: {path: org/name}\n"


def problems(write: Write, text: str, *sets: str) -> list[Diagnostic]:
    try:
        load([write(text)], sets)
    except TopologyError as error:
        return [found for found in error.diagnostics if isinstance(found, Diagnostic)]
    return []


@for_each("flag", sorted(ENGINE_OWNED))
@for_each("where", ["engine.args", "roles.decode.args"])
def test_every_owned_flag_is_refused_with_its_owner(write: Write, flag: str, where: str) -> None:
    found = problems(write, SGLANG, f"{where}.{flag}=1")
    assert [each.code for each in found] == [Code.OWNED_FLAG]
    decider = owner(flag, where)
    assert decider is not None
    for name in decider.keys or (decider.words,):
        assert name in found[0].message


@pytest.mark.parametrize("flag", sorted(ROUTER_OWNED))
def test_every_owned_router_flag_is_refused(write: Write, flag: str) -> None:
    assert [each.code for each in problems(write, "", f"router.args.{flag}=1")] == [Code.OWNED_FLAG]


def test_owned_flags_name_keys_that_exist(write: Write) -> None:
    """Otherwise the advice would send people to a key the schema does not have."""
    from pdctl.topology.export import fields
    from pdctl.topology.schema import TOPOLOGY

    known = {path for path, _ in fields(TOPOLOGY, "")}
    known |= {path.replace("roles.prefill.", "roles.decode.") for path in known}
    named = {
        key for flag in ENGINE_OWNED for path in ("engine.args",) for key in getattr(owner(flag, path), "keys", ())
    }
    named |= {key for flag in ROUTER_OWNED for key in getattr(owner(flag, "router.args"), "keys", ())}
    assert named <= known


def test_flags_pdctl_does_not_write_pass(write: Write) -> None:
    text = SGLANG.replace("kind: sglang", "kind: sglang, args: {moe-dense-tp-size: 1, enable-metrics: true}")
    assert problems(write, text + "router: {kind: sglang, args: {prometheus-port: 29000}}") == []


@for_each(
    ("text", "count"),
    [
        ("router: {port: 29999}", 0),
        ("router: {port: 30000}", 1),
        ("router: {port: 30001}", 1),
        ("router: {port: 30002}", 0),
        ("router: {port: 8998}", 1),
        ("router: {port: 8999}", 0),
        ("ports: {bootstrap: 30001}", 1),
        ("ports: {bootstrap: 30002}", 0),
        ("ports: {http: 65534}", 0),
        ("ports: {http: 65535}", 1),
        ("ports: {bootstrap: 65535}", 0),
        ("ports: {dist-init: 30000}", 0),
        (SGLANG + "ports: {dist-init: 29936}", 0),
        (SGLANG + "ports: {dist-init: 29937}", 1),
        (SGLANG + "ports: {dist-init: 29937, stride: 16}", 0),
    ],
)
def test_ports_meet_exactly_at_the_edges(write: Write, text: str, count: int) -> None:
    found = problems(write, text)
    assert [each.code in (Code.PORT_COLLISION, Code.PORT_RANGE) for each in found] == [True] * count


def test_over_several_hosts_only_the_first_instance_shares_the_routers_host(write: Write) -> None:
    roles = "roles: {prefill: {instances: 4, tp: 2}, decode: {}}\n"
    assert problems(write, SGLANG + roles, "router.port=30001") == []
    assert len(problems(write, SGLANG + roles, "router.port=30000")) == 1
    assert len(problems(write, SGLANG + roles, "router.port=30001", "roles.prefill.tp=1")) == 1
    pools = SGLANG + "pools: {a: {}, b: {}}\nroles: {prefill: {instances: 2, pool: a}, decode: {pool: b}}"
    assert problems(write, pools, "router.port=30001") == []


def test_on_a_cluster_only_the_first_instance_shares_the_routers_host(write: Write) -> None:
    text = SGLANG + "roles: {prefill: {instances: 4}, decode: {}}\ntargets: {slurm: {}}\n"
    assert problems(write, text, "router.port=30001") == []
    assert [each.code for each in problems(write, text, "router.port=30000")] == [Code.PORT_COLLISION]
    pods = text.replace("slurm", "kubernetes")
    assert problems(write, pods, "router.port=30000") == []
    assert [each.code for each in problems(write, pods, "ports.bootstrap=30000")] == [Code.PORT_COLLISION]


def test_the_advised_port_is_free(write: Write) -> None:
    text = "roles: {prefill: {instances: 3}, decode: {}}\nports: {http: 9000, bootstrap: 9004}\nrouter: {port: 9001}"
    found = problems(write, text)
    assert [each.help for each in found] == ["move one of them, such as router.port: 9007"]
    assert problems(write, text, "router.port=9007") == []


def test_the_instance_that_collides_is_named(write: Write) -> None:
    text = "roles: {prefill: {instances: 2}, decode: {instances: 2}}\nrouter: {port: 30003}"
    found = problems(write, text)
    assert found[0].message == "decode-1 (HTTP) and the router both want port 30003"
    assert [label for _, label in found[0].spans] == [
        "router port 30003",
        "decode-1 takes 30003: ports.http is 30000 by default",
    ]


@pytest.mark.parametrize("engine", [SGLANG, ""], ids=["sglang", "embedded"])
def test_dp_means_attention_groups_and_replicas_have_a_key_of_their_own(write: Write, engine: str) -> None:
    roles = "roles: {prefill: {tp: 4, dp: 3}, decode: {tp: 4}}"
    assert [each.code for each in problems(write, engine + roles)] == [Code.DP_SPLIT]
    assert problems(write, engine + roles.replace("dp:", "replicas:")) == []


def test_every_node_of_an_embedded_instance_takes_a_port(write: Write) -> None:
    """16 ranks on hosts of 8: the second node answers on the port after the first one's."""
    roles = "roles: {prefill: {tp: 16}, decode: {}}\nrouter: {port: %d}"
    assert [each.message for each in problems(write, roles % 30001)] == [
        "prefill-0 (HTTP) and the router both want port 30001"
    ]
    assert problems(write, roles % 30003) == []
    assert [each.code for each in problems(write, roles % 20005)] == [Code.PORT_COLLISION]


def test_a_pool_is_needed_only_where_there_is_a_choice(write: Write) -> None:
    pools = "pools: {one: {}, two: {}}\n"
    found = problems(write, pools)
    assert [each.code for each in found] == [Code.MISSING_KEY, Code.MISSING_KEY]
    assert problems(write, pools.replace("two", "default")) == []
    assert problems(write, "pools: {one: {}}") == []


@pytest.mark.parametrize("kind", ["embedded", "sglang", "smg"])
def test_each_router_has_its_own_policies(write: Write, kind: str) -> None:
    refused = [
        policy
        for policy in ("round_robin", "manual", "least_load")
        if problems(write, f"router: {{kind: {kind}, prefill-policy: {policy}}}")
    ]
    assert refused == {"embedded": ["manual", "least_load"], "sglang": ["least_load"], "smg": []}[kind]
