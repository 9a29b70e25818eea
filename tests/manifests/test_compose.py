"""A compose file as pods."""

from __future__ import annotations

from textwrap import dedent

import pytest

from pdctl.errors import TopologyError
from pdctl.manifests import read
from pdctl.manifests.command_lines import program
from pdctl.manifests.compose import read_compose
from pdctl.manifests.manifest import COMPOSE, Container, Manifest
from tests.cases import for_each

SERVE = "python3 -m sglang.launch_server"


def container(body: str, known: dict[str, str] | None = None) -> Container:
    found = read_compose(f"services:\n  p:\n{body}", "c.yml", known or {})
    return found.pods[0].containers[0]


def text(body: str) -> Manifest:
    return read.read_text(dedent(body), "compose.yaml")


@for_each(
    ("body", "words"),
    [
        (f"    command: {SERVE} --port 1 --name 'a b'\n", [*SERVE.split(), "--port", "1", "--name", "a b"]),
        (f"    command: >\n      {SERVE}\n      --port $$X\n", [*SERVE.split(), "--port", "$X"]),
        (f"    command: |\n      {SERVE} \\\n        --port 1\n", [*SERVE.split(), "--port", "1"]),
        (
            "    entrypoint: [python3, -m, sglang.launch_server]\n    command: --port 1\n",
            [*SERVE.split(), "--port", "1"],
        ),
        (f"    command: [bash, -c, 'export A=1; {SERVE} --port $$A']\n", [*SERVE.split(), "--port", "1"]),
        (f"    command: {SERVE} --port ${{P:-7}} ${{Q-8}} ${{R}}\n", [*SERVE.split(), "--port", "7", "8", "${R}"]),
    ],
)
def test_commands_in_every_spelling(body: str, words: list[str]) -> None:
    assert [word.text for word in container(body).argv] == words


def test_what_the_surroundings_say_fills_in() -> None:
    body = f"    image: ${{I:-a}}:${{T}}\n    command: {SERVE} --tp $TP\n    environment: [A=$TP, B]\n"
    found = container(body, {"T": "v1", "TP": "2"})
    assert found.image == "a:v1"
    assert found.argv[-1].text == "2"
    assert [(said.name, said.value) for said in found.env] == [("A", "2"), ("B", None)]


def test_services_know_each_other_by_name() -> None:
    found = text(
        f"""
        services:
          prefill: {{command: {SERVE}, scale: 2, network_mode: host, shm_size: 8g}}
          decode:
            command: {SERVE}
            deploy:
              replicas: 3
              resources: {{reservations: {{devices: [{{count: 4, capabilities: [gpu]}}]}}}}
          redis: {{image: redis}}
        """
    )
    assert [(pod.name, pod.kind, pod.replicas, pod.host_network, pod.shm) for pod in found.pods] == [
        ("prefill", COMPOSE, 2, True, "8g"), ("decode", COMPOSE, 3, False, "")
    ]  # fmt: skip
    assert found.pods[1].containers[0].gpus == 4
    assert [service.name for service in found.services if found.pods[0].carries(service.selector)] == ["prefill"]


def test_it_is_told_from_other_files() -> None:
    assert read.kind_of("services:\n  a: {}\n") == COMPOSE
    assert read.kind_of("apiVersion: v1\nservices: {}\n") == read.MANIFEST
    with pytest.raises(TopologyError, match=r"1 problem in c\.yml"):
        read_compose("services:\n  - [", "c.yml", {})


@for_each("body", ["services: 1", "services: {a: 1, b: [x], c: {command: {a: 1}, environment: 3}}", "services:"])
def test_any_shape_does_no_harm(body: str) -> None:
    assert read_compose(body, "c.yml", {}).pods == ()


PAIR = "--pd-disaggregation --prefill http://p:30000 8998 --decode http://d:30001"
ENTRYPOINTS = (
    ("lmsysorg/sgl-model-gateway:v0.3.2", PAIR, "sglang-router"),
    ("registry.corp/mirror/sglang-router@sha256:0a", f"[{', '.join(PAIR.split())}]", "sglang-router"),
    ("ghcr.io/lightseekorg/smg:1.13.0", PAIR, "smg"),
    ("corp/balancer:7", PAIR, "sglang-router"),  # only routers have --pd-disaggregation
    ("corp/balancer:7", f"{PAIR} --least-load-kv-pressure-weight 1", "smg"),  # which only smg has
)


@for_each(("image", "flags", "kind"), ENTRYPOINTS)
def test_flags_alone_follow_the_entrypoint_of_a_router_s_image(image: str, flags: str, kind: str) -> None:
    found = container(f"    image: {image}\n    command: {flags}\n")
    started = program(found.argv)
    assert started is not None
    assert (started.role, started.kind) == ("router", kind)
    assert [word.text for word in started.flags][:2] == ["--pd-disaggregation", "--prefill"]
    assert found.argv[0].line == 3, "the image says it"


def test_flags_alone_behind_an_unknown_entrypoint_are_reported() -> None:
    manifest = text(
        """
        services:
          d: {image: corp/engine:1, command: --model-path m --disaggregation-mode decode}
          g: {image: grafana/grafana, command: --config=/etc/grafana.ini}
          e: {image: lmsysorg/sgl-model-gateway:v0.3.2, entrypoint: sleep, command: --pd-disaggregation}
        """
    )
    assert manifest.pods == ()
    (found,) = manifest.unread
    assert (found.name, found.place, found.image) == ("d", "compose.yaml:3", "corp/engine:1")
