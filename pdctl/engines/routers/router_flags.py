"""Every flag of a router: those of the newest sglang-router and smg that were read, and those of pdctl's own."""

from __future__ import annotations

from functools import cache

from pdctl.engines import versions
from pdctl.engines.kinds import ROUTERS
from pdctl.suggestions import similar

_PDCTL = """
admin-api-key-file= admin-api-key= allow-unauthenticated-workers api-key-file= api-key= balance-abs-threshold=
balance-rel-threshold= bootstrap-check= cache-threshold= cb-failure-threshold= cb-timeout-duration-secs= cb-timeout=
connect-timeout= decode-policy= decode=* deployment-secret-file= first-byte-timeout= health-check-endpoint=
health-check-interval-secs= health-check-timeout-secs= health-failure-threshold= health-interval= health-path=
health-success-threshold= health-timeout= host= idle-timeout= ledger-size= liveness-interval= log-level=
max-connections= max-payload-memory= max-payload-size= pd-disaggregation policy= port= prefill-policy=
prefill-timeout= prefill=* probe-interval= probe-timeout= read-timeout= rehearse= request-timeout-secs=
request-timeout= retries= retry-backoff= shutdown-grace-period-secs= shutdown-grace= upstream-idle-timeout=
"""
PACKAGES = {one.name: one.package for one in ROUTERS.values() if one.package}


def release(kind: str) -> str:
    """The release these flags come from, for messages."""
    package = PACKAGES.get(kind)
    return f"{package} {versions.sources(package)[-1].version}" if package else "pdctl's router"


@cache
def arguments(kind: str) -> dict[str, str]:
    """Flag without dashes → its values: "" none, "=" one, "=*" one or more. `kind` as in `router.kind`."""
    if kind in PACKAGES:
        return {item.cells[0]: item.cells[1] for item in _newest(kind)}
    return {name: equals + more for name, equals, more in (word.partition("=") for word in _PDCTL.split())}


def choices(name: str, kind: str) -> tuple[str, ...]:
    """The values a flag may have; () if it accepts any, or only the router itself knows them."""
    if kind not in PACKAGES:
        return ()
    words = next((item.cells[3] for item in _newest(kind) if item.cells[0] == name), "")
    return tuple(words.split("|")) if words not in ("", "?") else ()


def _newest(kind: str) -> list[versions.Item]:
    return [item for item in versions.items("flags", PACKAGES[kind]) if not item.until]


def last_release_with(name: str, kind: str) -> str:
    """The last release that had a flag which the newest lacks, "" if there is none."""
    if kind not in PACKAGES or name in arguments(kind):
        return ""
    package = PACKAGES[kind]
    gone = [item.until for item in versions.items("flags", package) if item.cells[0] == name]
    read = [source.version for source in versions.sources(package)]
    return read[max(map(read.index, gone)) - 1] if gone else ""


@cache
def ever(kind: str) -> frozenset[str]:
    """Every flag that any release of the router had."""
    if kind not in PACKAGES:
        return frozenset(arguments(kind))
    return frozenset(item.cells[0] for item in versions.items("flags", PACKAGES[kind]))


def any_choices(name: str, kind: str) -> tuple[str, ...]:
    """The values that any release allows; () if one of them accepts any value."""
    if kind not in PACKAGES:
        return ()
    found = [item.cells[3] for item in versions.items("flags", PACKAGES[kind]) if item.cells[0] == name]
    return tuple(dict.fromkeys("|".join(found).split("|"))) if found and not {"", "?"} & set(found) else ()


def full_name(name: str, kind: str) -> str:
    """The flag that `name` abbreviates, which argparse accepts if only one flag begins so; else `name` itself."""
    found = beginning_so(name, kind)
    return found[0] if name not in ever(kind) and len(found) == 1 else name


def beginning_so(name: str, kind: str) -> list[str]:
    return [known for known in arguments(kind) if known.startswith(name)]


def similar_flag(name: str, kind: str) -> str:
    """The known flag that the user most likely meant, "" for none."""
    return next(iter(similar(name, arguments(kind), cutoff=0.75)), "")
