"""Pods of rendered manifests as processes of this machine, each with a loopback address of its own.

What a kubelet and the operators would do to a container's command is done to it: variables are set and expanded, names
of Services lead to the pods their selectors match, probes are asked.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.kubernetes.api_server import pods_of

Object = dict[str, Any]
EXPANSION = re.compile(r"\$\$|\$\((\w+)\)")
LWS = "leaderworkerset.sigs.k8s.io"
DEADLINE = 60.0


class Started(NamedTuple):
    name: str
    address: str
    container: Object
    labels: dict[str, str]
    process: subprocess.Popen[bytes]
    log: Path


def expanded(words: Sequence[str], env: dict[str, str]) -> list[str]:
    """As Kubernetes does it: $(NAME) where the container knows the variable, $$ a dollar sign."""

    def one(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else env.get(found[1], found[0])

    return [EXPANSION.sub(one, word) for word in words]


@contextmanager
def running(objects: Sequence[Object], folder: Path) -> Iterator[dict[str, Started]]:
    """Every pod of LeaderWorkerSets and Deployments, by name, until left."""
    pods = [pod for each in objects for pod in pods_of(each)]
    addresses = {pod["metadata"]["name"]: f"127.0.77.{number + 2}" for number, pod in enumerate(pods)}
    names = _services(objects, pods, addresses)
    started: dict[str, Started] = {}
    try:
        for pod in pods:
            started[pod["metadata"]["name"]] = _start(pod, addresses, names, folder)
        yield started
    finally:
        for each in started.values():
            each.process.terminate()
        for each in started.values():
            try:
                each.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                each.process.kill()
                each.process.wait()


def _services(objects: Sequence[Object], pods: Sequence[Object], addresses: dict[str, str]) -> dict[str, str]:
    """The address behind each Service's name: of the one pod that its selector matches."""
    found = {}
    for each in objects:
        if each["kind"] == "Service":
            wanted = each["spec"]["selector"].items()
            (chosen,) = [pod for pod in pods if wanted <= pod["metadata"]["labels"].items()]
            found[each["metadata"]["name"]] = addresses[chosen["metadata"]["name"]]
    return found


def _start(pod: Object, addresses: dict[str, str], names: dict[str, str], folder: Path) -> Started:
    name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
    (container,) = pod["spec"]["containers"]
    env = {"POD_IP": addresses[name]} if "POD_IP" in str(container.get("env")) else {}
    if f"{LWS}/worker-index" in labels:
        index = labels[f"{LWS}/worker-index"]
        leader = name if index == "0" else name.rpartition("-")[0]
        env |= {"LWS_WORKER_INDEX": index, "LWS_LEADER_ADDRESS": addresses[leader]}
    for each in container.get("env", ()):
        if "value" in each:
            (env[each["name"]],) = expanded([each["value"]], env)
    words = expanded([*container["command"], *container["args"]], env)
    words = [sys.executable if word == "python" else _resolved(word, names) for word in words]
    words[words.index("--host") + 1] = addresses[name]  # 0.0.0.0 in a pod's network is one address here
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            words, env={**os.environ, **env, "OMP_NUM_THREADS": "1"}, stdout=out, stderr=out, stdin=subprocess.DEVNULL
        )
    return Started(name, addresses[name], container, labels, process, log)


def _resolved(word: str, names: dict[str, str]) -> str:
    """What DNS would do; http://NAME:PORT is how the plan writes addresses."""
    found = re.fullmatch(r"http://([^:/]+):(\d+)", word)
    return f"http://{names[found[1]]}:{found[2]}" if found and found[1] in names else word


def probe(pod: Started, purpose: str) -> bool:
    """Whether a probe of the manifest would succeed now."""
    asked = pod.container[f"{purpose}Probe"]
    ports = {each["name"]: each["containerPort"] for each in pod.container["ports"]}
    if "tcpSocket" in asked:
        with socket.socket() as one:
            one.settimeout(5)
            return one.connect_ex((pod.address, ports[asked["tcpSocket"]["port"]])) == 0
    connection = http.client.HTTPConnection(pod.address, ports[asked["httpGet"]["port"]], timeout=20)
    try:
        connection.request("GET", asked["httpGet"]["path"])
        return 200 <= connection.getresponse().status < 400
    except OSError:
        return False
    finally:
        connection.close()


def await_ready(pods: Sequence[Started]) -> None:
    deadline = time.monotonic() + DEADLINE
    for pod in pods:
        while not probe(pod, "readiness"):
            said = pod.log.read_text(errors="replace")[-2000:]
            assert pod.process.poll() is None, f"{pod.name} ended with {pod.process.returncode}:\n{said}"
            assert time.monotonic() < deadline, f"{pod.name} is not ready after {DEADLINE:g} s:\n{said}"
            time.sleep(0.2)
