"""The plan's commands of one role as the one command of a pod template."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from pdctl.errors import UsageError
from pdctl.program import portable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pdctl.layout.instance_plan import InstancePlan
    from pdctl.layout.serving import NodeCommand


HOST_IP = "SGLANG_HOST_IP"  # sglang 0.5.3 to 0.5.23, and the embedded engine


class Variables(NamedTuple):
    """What an operator calls the leader's address and the place of a pod in its group."""

    leader: str
    rank: str


def template_words(instances: Sequence[InstancePlan], variables: Variables) -> tuple[str, ...]:
    """The words every pod of the role is started with.

    Raises UsageError where the plan's commands differ in more than the place of a node: one template cannot say that.
    """
    found = {
        tuple(_words(command, one, variables)): f"{one.name} node {command.node}"
        for one in instances
        for command in one.commands
    }
    if len(found) > 1:
        (first, one), (second, other) = list(found.items())[:2]
        differing = sorted(set(first) ^ set(second))
        message = f"{one} and {other} are started differently ({' '.join(differing)}): one pod template cannot say both"
        raise UsageError(message, "leave out what differs from instance to instance")
    return next(iter(found))


def _words(command: NodeCommand, instance: InstancePlan, variables: Variables) -> Iterator[str]:
    """With variables for what differs between the nodes of an instance, and between instances."""
    places = {
        "--node-rank": f"$({variables.rank})",
        "--dist-init-addr": f"$({variables.leader}):{instance.numbers.dist}",
    }
    if instance.serving.kind == "embedded":  # its nodes count ports as if they shared a host
        places["--port"] = str(instance.http_port)
    argv = portable(command.argv)
    yield escaped(argv[0])
    for before, word in pairwise(argv):
        yield places.get(before) or escaped(word)


def escaped(word: str) -> str:
    """Kubernetes expands $(NAME) in commands; $$ is its dollar sign."""
    return word.replace("$(", "$$(")


def environment(env: Mapping[str, str], secrets: Mapping[str, tuple[str, str]]) -> list[dict[str, object]]:
    """The `env` of a container: plain values, then references to Secrets."""
    found: list[dict[str, object]] = [
        {"name": name, "value": escaped(value)} for name, value in sorted(env.items()) if name not in secrets
    ]
    for name, (secret, key) in sorted(secrets.items()):
        found.append({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
    return found


def address() -> list[dict[str, object]]:
    """What a rank tells the others to reach it at: the server listens on every address, and has to choose one."""
    return [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": HOST_IP, "value": "$(POD_IP)"},
    ]
