"""Whether a cluster would take an object: by the schemas of Kubernetes and of the CRDs, and by rules beyond them.

A null counts as a value here, where a cluster takes it for a field left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pdctl.errors import UsageError
from pdctl.manifests.validate import rules
from pdctl.manifests.validate.path import spelt
from pdctl.manifests.validate.schema import VERSIONS, faults

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.manifests.write.objects import Object

__all__ = ["VERSIONS", "Fault", "check", "validate"]


class Fault(NamedTuple):
    """`path` from the object's root, such as `spec.leaderWorkerTemplate.size`. `versions`: () where it holds of all
    that were asked for."""

    where: str
    path: str
    message: str
    versions: tuple[str, ...] = ()

    def __str__(self) -> str:
        only = f" (Kubernetes {_span(self.versions)})" if self.versions else ""
        return f"{self.where}: {self.path}: {self.message}{only}"


def validate(objects: Sequence[Object], versions: Sequence[str] = VERSIONS) -> tuple[Fault, ...]:
    """Everything that is wrong with the objects, for each of the Kubernetes `versions` (`1.30`)."""
    return tuple(fault for each in objects for fault in _faults(each, versions))


def check(objects: Sequence[Object], versions: Sequence[str] = VERSIONS) -> None:
    """Raises UsageError with every fault."""
    found = validate(objects, versions)
    if found:
        raise UsageError("a cluster would refuse this:\n" + "\n".join(f"  {fault}" for fault in found))


def known(version: str) -> str:
    """A version as the schemas have it: `v1.30.4` is 1.30. Raises UsageError for one there is no schema for."""
    short = ".".join(version.removeprefix("v").split(".")[:2])
    if short not in VERSIONS:
        raise UsageError(
            f"no schemas of Kubernetes {version}",
            f"--kubernetes-version {VERSIONS[-1]}: {VERSIONS[0]} to {VERSIONS[-1]}",
        )
    return short


def _faults(value: Object, versions: Sequence[str]) -> list[Fault]:
    """The rules are asked only about objects of the right shape."""
    about = value.get("metadata")
    name = about.get("name", "") if isinstance(about, dict) else ""
    where = f"{value.get('kind', 'an object without a kind')} {name}".strip()
    by_fault: dict[tuple[str, str], list[str]] = {}
    for version in versions:
        for path, message in faults(value, version):
            by_fault.setdefault((spelt(path), message), []).append(version)
    if not by_fault:
        return [Fault(where, spelt(path), message) for path, message in rules.broken(value)]
    every = len(versions)
    return [
        Fault(where, path, message, () if len(found) == every else tuple(found))
        for (path, message), found in by_fault.items()
    ]


def _span(versions: tuple[str, ...]) -> str:
    return versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
