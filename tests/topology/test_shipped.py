from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from pdctl.engine.config import engine_flags as engine
from pdctl.launch import deployment_plan
from pdctl.launch.deployment import ServerRole
from pdctl.router import router_args as router
from pdctl.topology.export import to_yaml
from pdctl.topology.resolve import load, resolve

from .conftest import ROOT, Write

LAPTOP = {"1p1d": (1, 1), "2p1d": (2, 1)}


def test_a_shipped_topology_opens_with_what_it_is(shipped: Path) -> None:
    comment = shipped.read_text("utf-8").partition("version:")[0]
    assert comment.startswith("# ")
    assert all(line.startswith("#") for line in comment.splitlines())
    for port in ("8000", "30000", "8998"):
        assert port in comment, "the ports are named"


def test_ports_are_those_that_scripts_rely_on(shipped: Path) -> None:
    topology = load([shipped], environ={})
    assert topology.router.port == 8000
    assert (topology.ports.http, topology.ports.bootstrap) == (30000, 8998)
    assert topology.name == shipped.stem


def test_laptop_topologies_are_embedded() -> None:
    for name, (prefills, decodes) in LAPTOP.items():
        topology = load([ROOT / "topologies" / f"{name}.yaml"], environ={})
        assert topology.engine.kind == "embedded"
        assert (topology.prefill.instances, topology.decode.instances) == (prefills, decodes)


def test_planning_topologies_bring_the_config_of_their_model(shipped: Path) -> None:
    topology = load([shipped], environ={})
    if topology.engine.kind == "embedded":
        assert topology.model.config is None
        return
    config = json.loads(Path(str(topology.model.config)).read_text("utf-8"))
    assert config["architectures"]
    assert config["num_hidden_layers"] in (36, 61, 64)


def test_the_shapes() -> None:
    wide = load([ROOT / "topologies" / "deepseek-v3-wide.yaml"], environ={})
    assert [(role.instances, role.tp, role.dp, role.ep) for role in wide.roles] == [(2, 16, 8, 16), (1, 32, 32, 32)]
    uneven = load([ROOT / "topologies" / "2p1d-decode-tp2.yaml"], environ={})
    assert [(role.instances, role.tp) for role in uneven.roles] == [(2, 1), (1, 2)]
    mixed = load([ROOT / "topologies" / "qwen3-hetero.yaml"], environ={})
    assert [(role.instances, role.tp, role.pool) for role in mixed.roles] == [(4, 2, "cheap"), (2, 4, "big")]


def test_what_show_prints_is_the_same_topology_again(shipped: Path, write: Write) -> None:
    resolved = resolve([shipped], environ={})
    again = resolve([write(to_yaml(resolved.values), bare=True)], environ={})
    assert again.values == resolved.values
    assert again.topology._replace(spans={}, source="") == resolved.topology._replace(spans={}, source="")


def test_a_dollar_survives_being_shown(write: Write) -> None:
    resolved = resolve([write("engine: {env: {PRICE: $$5}}")], environ={})
    assert yaml.safe_load(to_yaml(resolved.values))["engine"]["env"] == {"PRICE": "$$5"}
    assert load([write(to_yaml(resolved.values), bare=True)], environ={}).engine.env == {"PRICE": "$5"}


@pytest.fixture(params=sorted((ROOT / "topologies" / "incidents").glob("*.yaml")), ids=lambda path: path.stem)
def incident(request: pytest.FixtureRequest) -> Path:
    """Each rehearsal that ships with pdctl."""
    path: Path = request.param
    return path


def test_an_incident_opens_with_what_it_is_and_how_it_is_found(incident: Path) -> None:
    comment = incident.read_text("utf-8").partition("version:")[0]
    assert comment.startswith("# REHEARSAL. ")
    assert all(line.startswith("#") for line in comment.splitlines())
    for word in ("8000", "30000", "8998", "You will see", "SGLang"):
        assert word in comment, word
    found = re.findall(r"pdctl (?:doctor|trace-room): +(PD\d{3})", comment)
    assert len(found) == 2
    assert found[0] == found[1]


def test_an_incident_can_be_planned_and_its_processes_understand_what_they_rehearse(incident: Path) -> None:
    topology = load([incident], environ={})
    assert (topology.name, topology.engine.kind, topology.router.port) == (incident.stem, "embedded", 8000)
    assert (topology.ports.http, topology.ports.bootstrap) == (30000, 8998)
    rehearsed = 0
    for spec in deployment_plan.deployment(topology, deployment_plan.plan_here(topology)).specs:
        words = spec.argv[3:]  # python -m pdctl.…
        given = router.parse(words) if spec.role is ServerRole.ROUTER else engine.parse(words, dict(spec.env))
        rehearsed += bool(given.rehearse)
    assert rehearsed


def test_a_dollar_in_a_list_stays_one(write: Write) -> None:
    resolved = resolve([write("engine: {command: [sh, -c, 'echo $$HOME']}")], environ={})
    assert resolved.topology.engine.command == ("sh", "-c", "echo $HOME")
    assert load([write(to_yaml(resolved.values), bare=True)], environ={}).engine.command == ("sh", "-c", "echo $HOME")
