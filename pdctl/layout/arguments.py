"""Whether a release of SGLang takes the flags and values a role is given, before anything is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.routers import arguments as routers
from pdctl.engines.sglang.arguments import argument, choices, gap
from pdctl.engines.sglang.rules import rule
from pdctl.engines.versions import spell
from pdctl.layout.feasibility import explain
from pdctl.layout.instance import Caution
from pdctl.layout.shape import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdctl.engines.versions import Release, Version
    from pdctl.topology.model import FlagValue

TAKES = {"": "no value", "=": "one value", "=*": "a value", "=?": "at most one value"}
WRITTEN = {"": "true", "=": "VALUE", "=*": "[VALUE, …]", "=?": "VALUE"}
BACKEND = "disaggregation-transfer-backend"


def check(args: Mapping[str, FlagValue], where: str, release: Release) -> Iterator[Problem | Caution]:
    """argparse's refusals. Where only a neighbour of the release is known, what it lacks is a warning."""
    for name, value in args.items():
        if value is False:
            continue  # no flag is written then
        missing = gap(name, release)
        if missing is not None:
            message = f"{where}.{name}: sglang {release.asked} has no --{name} ({missing.why})"
            message += f"; {missing.instead}" if missing.instead else ""
            yield Problem("flag-not-in-release", message) if missing.sure else Caution("flag-in-doubt", message)
        else:
            yield from _value(name, value, where, release.known)


def served_name(name: str, release: Release) -> Iterator[Problem]:
    """SGLang keeps the colon for `model:adapter`."""
    row = rule("served-name", release.known)
    if row is not None and ":" in name:
        way = f"--set model.served-name={name.replace(':', '-')}"
        yield Problem("served-name", explain("served-name", f"model.served-name {name}", release.known), (way,))


def backend(name: str | None, release: Release) -> Iterator[Problem | Caution]:
    """A transfer backend some releases do not have; None: the release's own."""
    allowed = choices(BACKEND, release.known)
    if name is not None and name not in allowed:
        message = f"transfer.backend: sglang {release.asked} has no backend {name}, but {', '.join(allowed)}"
        yield Caution("flag-in-doubt", message) if release.note else Problem("backend-not-in-release", message)


def router(args: Mapping[str, FlagValue], kind: str) -> Iterator[Problem | Caution]:
    """Of pdctl's own router what it refuses; of another, whose release nobody gave, what the one pdctl knows would."""
    known = routers.arguments(kind)
    for name, value in args.items():
        if value is False:
            continue
        takes = known.get(name)
        if takes is None:
            near, last = routers.near(name, kind), routers.last_release_with(name, kind)
            message = f"router.args.{name}: {routers.release(kind)} has no --{name}"
            message += f" (the last release with it was {last})" if last else ""
            message += f"; did you mean --{near}?" if near else ""
        elif not _fits(takes, value):
            message = f"router.args.{name}: --{name} takes {TAKES[takes]} ({routers.release(kind)})"
        elif allowed := _not_among(value, routers.choices(name, kind)):
            message = f"router.args.{name}: {value} is none of {', '.join(allowed)} ({routers.release(kind)})"
        else:
            continue
        yield Problem("router-flag", message) if kind == "pdctl" else Caution("router-flag", message)


def _value(name: str, value: FlagValue, where: str, version: Version) -> Iterator[Problem]:
    row = argument(name, version)
    if row is None:
        return
    if not _fits(row.takes, value):
        message = f"{where}.{name}: --{name} takes {TAKES[row.takes]} (sglang {spell(version)})"
        yield Problem("flag-value", message, (f"--set {where}.{name}={WRITTEN[row.takes]}",))
        return
    allowed = choices(name, version)
    if allowed and str(value) not in allowed:
        message = f"{where}.{name}: {value} is none of {', '.join(allowed)} (sglang {spell(version)})"
        yield Problem("flag-value", message, (f"--set {where}.{name}={allowed[0]}",))


def _not_among(value: FlagValue, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """The values that are allowed, where this is none of them."""
    return allowed if allowed and str(value) not in allowed else ()


def _fits(takes: str, value: FlagValue) -> bool:
    several = isinstance(value, tuple)
    return {"": value is True, "=": value is not True and not several, "=*": value is not True}.get(takes, not several)
