"""Which logs belong to one deployment: those of one directory, of several where a router's list spans them, or of one
period where a directory has the logs of deployments that followed each other at the same addresses."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple
from pdctl.trace.observed_deployment import WILDCARDS, ObservedDeployment, parse_address, same_host

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pdctl.engines.identify import Identity
    from pdctl.logs.library import Library
    from pdctl.logs.source import Log
    from pdctl.trace.observed_deployment import HostPort

BOTH = frozenset({"prefill", "decode"})
ROLES = BOTH | {"router"}


class LogGroup(NamedTuple):
    """The logs of one deployment, as far as can be told. directories: as typed; roles: those that its logs have.

    Of logs that only their times part from others, `directories` are the files.
    """

    directories: tuple[Path, ...]
    logs: tuple[Log, ...]
    roles: frozenset[str]

    @property
    def whole(self) -> bool:
        return self.roles >= BOTH


def group_logs(library: Library) -> tuple[LogGroup, ...]:
    """The deployments whose logs these are, in the order of their directories; one if nothing shows more.

    A directory whose logs are a prefill's and a decode's holds a deployment. What lies below it or beside it, and is
    none by itself, belongs to it if it is the only one there: a directory for each host or role is one deployment.
    """
    found: dict[Path, list[LogGroup]] = {}
    for log in library.logs:
        directory = Path(log.parts[0].path).parent if log.parts else Path()
        alone = LogGroup((directory,), (log,), frozenset({library.identity(log).role}) & ROLES)
        found.setdefault(directory, []).append(alone)
    pending = {directory: [_union((directory,), groups)] for directory, groups in found.items()}
    while pending:
        deepest = max(pending, key=lambda path: (len(path.parts), str(path)))
        groups = _apart(deepest, pending.pop(deepest))
        if not pending:
            found_groups = _with_spanning_lists(groups, library)
            return tuple(part for group in found_groups for part in _periods(group, library.only(group.logs)))
        above = deepest.parent if deepest.parent != deepest else next(iter(pending))
        pending.setdefault(above, []).extend(groups)
    return ()


def _apart(directory: Path, groups: list[LogGroup]) -> list[LogGroup]:
    """The groups found in one directory and below it: one deployment, unless two or more of them are whole."""
    if len(groups) == 1 or sum(group.whole for group in groups) > 1:
        return groups
    return [_union((directory,), groups)]


def _union(directories: tuple[Path, ...], groups: Sequence[LogGroup]) -> LogGroup:
    roles = frozenset(role for group in groups for role in group.roles)
    return LogGroup(directories, tuple(log for group in groups for log in group.logs), roles)


def _with_spanning_lists(groups: list[LogGroup], library: Library) -> tuple[LogGroup, ...]:
    """Join to the group of a router those groups without one whose engines its list names, and nobody else's."""
    order = {log: at for at, log in enumerate(library.logs)}
    known = [group for group in groups if group.roles]  # of several, what else lies about belongs to none
    if len(known) > 1:
        known = _joined(known, library)
    if len(known) < 2:
        logs = tuple(sorted((log for group in groups for log in group.logs), key=order.__getitem__))
        return (_union(groups[0].directories, groups)._replace(logs=logs),)
    renamed = [group._replace(logs=_as_if_alone(sorted(group.logs, key=order.__getitem__))) for group in known]
    return tuple(sorted(renamed, key=lambda group: str(group.directories[0])))


def _joined(groups: Sequence[LogGroup], library: Library) -> list[LogGroup]:
    told = [[library.identity(log) for log in group.logs] for group in groups]
    by_port: dict[int, list[int]] = {}  # the groups without a router that have an engine at the port
    for at, identities in enumerate(told):
        if "router" not in groups[at].roles:
            for port in {one.port for one in identities if one.role in BOTH and one.port is not None}:
                by_port.setdefault(port, []).append(at)
    owner: dict[int, int] = {}
    for at, identities in enumerate(told):
        lacking = list(_lacking(identities))
        reached = {
            other: [one for one in told[other] if one.role in BOTH]
            for address in lacking
            for other in by_port.get(address.port or 0, ())
        }
        listed = [other for other, engines in reached.items() if all(_serves(one, lacking) for one in engines)]
        hosts = [{(one.facts.get("host", ""), one.port) for one in reached[other]} for other in listed]
        if sum(map(len, hosts)) == len(set().union(*hosts)):  # else several could be meant, and nothing tells which
            owner.update({other: -1 if other in owner else at for other in listed})
    return [
        _union(tuple(path for one in members for path in one.directories), members)
        for at, group in enumerate(groups)
        if owner.get(at, -1) < 0
        for members in [[group, *(groups[other] for other, router in owner.items() if router == at)]]
    ]


def _lacking(identities: Sequence[Identity]) -> Iterator[HostPort]:
    """The workers that a router of these logs lists, and that none of these logs can be."""
    engines = [one for one in identities if one.role in BOTH]
    ports = Counter(one.port for one in engines)
    for router in identities:
        urls = (*(one.url for one in router.prefills), *router.decodes) if router.role == "router" else ()
        for address in filter(None, map(parse_address, dict.fromkeys(urls))):
            port = address.port if ports[address.port] else None
            if ports[port]:
                ports[port] -= 1  # of an engine whose port no line tells, any can be it
            else:
                yield address


def _serves(identity: Identity, addresses: Iterable[HostPort]) -> bool:
    host = identity.facts.get("host", "")
    return any(
        identity.port == address.port
        and (same_host(host, address.host) or (host in WILDCARDS and not address.loopback))
        for address in addresses
    )


def _periods(group: LogGroup, library: Library) -> Sequence[LogGroup]:
    """The group, or its parts if it holds the logs of whole deployments that had the same addresses in turn."""
    engines = [(one.facts.get("host"), one.port) for one in map(library.identity, group.logs) if one.role in BOTH]
    if len(engines) == len(set(engines)):  # what follows reads the starts and ends of all logs
        return [group]
    deployment = ObservedDeployment.of(library)
    logs = {log.instance: log for log in group.logs}
    seen = [one for one in deployment.instances.values() if one.role in ROLES]
    files = {logs[one.name].parts[0].path for one in seen if logs[one.name].parts}
    spans = [(one.started[0], one.last, one.name) for one in seen if one.started and one.last is not None]
    if not deployment.succeeded or not len(files) == len(spans) == len(seen) == len(logs):
        return [group]
    parts: list[list[str]] = []
    end = float("-inf")
    for began, last, name in sorted(spans):
        if began > end:
            parts.append([])
        parts[-1].append(name)
        end = max(end, last)
    roles = {one.name: one.role for one in seen}
    if not all({roles[name] for name in part} >= BOTH for part in parts):
        return [group]
    return [
        LogGroup(
            tuple(Path(logs[name].parts[0].path) for name in sorted(part)), tuple(logs[name] for name in sorted(part)),
            frozenset(roles[name] for name in part),
        )
        for part in parts
    ]  # fmt: skip


def _as_if_alone(logs: Sequence[Log]) -> tuple[Log, ...]:
    """The logs by their file's name alone, where that is unique among them: the directory tells the rest."""
    taken = Counter(name.rpartition("/")[2] for name in {log.instance for log in logs})
    return tuple(
        log._replace(instance=short) if taken[short := log.instance.rpartition("/")[2]] == 1 else log for log in logs
    )
