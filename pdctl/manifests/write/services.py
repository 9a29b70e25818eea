"""Services: a name for the leader of each instance, and one for the router."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.manifests.write.objects import Object, labels, metadata

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdctl.layout.instance_plan import RouterPlan
    from pdctl.manifests.write.flavours import Flavour
    from pdctl.manifests.write.groups import Group
    from pdctl.manifests.write.settings import Settings


def leaders(groups: Sequence[Group], settings: Settings, flavour: Flavour) -> Iterator[Object]:
    """One to each instance, under the name the plan calls its address: a name that several share is no address for
    rooms, which only the one that prefilled them knows."""
    for group in groups:
        for one in group.instances:
            ports = [("http", group.ports.http), ("bootstrap", group.ports.bootstrap)]
            yield {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": metadata(one.address, settings.namespace, settings.name, group.role),
                "spec": {
                    "clusterIP": "None",
                    # A prefill that is too busy to be ready must still be found by decodes that wait for its KV.
                    "publishNotReadyAddresses": True,
                    "selector": {**labels(settings.name, group.role), **flavour.instance(one.number)},
                    "ports": [_port(name, number) for name, number in ports if number is not None],
                },
            }


def front(router: RouterPlan, settings: Settings) -> Object:
    """Where clients come in."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(router.address, settings.namespace, settings.name, "router"),
        "spec": {
            "type": "ClusterIP",
            "selector": labels(settings.name, "router"),
            "ports": [_port(purpose, port) for port, purpose in router.ports],
        },
    }


def _port(name: str, number: int) -> Object:
    return {"name": name, "port": number, "targetPort": name, "protocol": "TCP"}
