"""Reachability from another host: the command to paste there, its output, and what a failed dial means."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.doctor.bootstrap_ports import address
from pdctl.doctor.check import Checked, CheckStatus, finding
from pdctl.doctor.selection import EVERYTHING, weigh
from pdctl.errors import NotProbedError, UsageError
from pdctl.fleet import peer_json
from pdctl.fleet.observations import Elsewhere, Reach
from pdctl.loopback import is_loopback
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pdctl.doctor.check import Facts, Finding, Report
    from pdctl.doctor.selection import Selection


SCHEMA = "pdctl.reach/1"
WAIT = 3.0  # seconds for one connection
MAX_ARGUMENT = 100_000  # bytes; Linux allows 128 KiB per argument
# Python 3.6 and later; no single quote and no backslash, so that neither a shell nor exec() changes it.
SCRIPT = """\
import json, socket, sys, time
from concurrent.futures import ThreadPoolExecutor
targets, wait = json.loads(sys.argv[1]), float(sys.argv[2])
todo = [(host, port) for host in targets for port in targets[host]]
def say(**told):
    sys.stdout.write(json.dumps(dict(told, pdctl="SCHEMA")) + chr(10))
    sys.stdout.flush()
def dial(target):
    began, reason = time.time(), ""
    try:
        socket.create_connection(target, wait).close()
    except socket.timeout:
        reason = "no connection within %g s" % wait
    except Exception as error:
        reason = str(getattr(error, "strerror", "") or error or type(error).__name__).lower()
    say(host=target[0], port=target[1], reason=reason, seconds=round(time.time() - began, 4))
say(source=socket.gethostname(), targets=len(todo))
with ThreadPoolExecutor(64) as pool:
    list(pool.map(dial, todo))
""".replace("SCHEMA", SCHEMA)


def shell_line(targets: Iterable[tuple[str, int]], wait: float = WAIT) -> str:
    """One shell line that dials every (host, port) once, 64 at a time."""
    ports: dict[str, list[int]] = {}
    for host, port in dict.fromkeys(targets):
        ports.setdefault(host, []).append(port)
    argument = json.dumps(ports, separators=(",", ":"))
    if len(argument) > MAX_ARGUMENT:
        raise UsageError(f"{len(argument)} bytes of targets do not fit on one command line", "name fewer instances")
    program = 'exec("""' + SCRIPT.replace("\n", "\\n") + '""")'
    return shlex.join(["python3", "-c", program, argument, f"{wait:g}"])


def read(output: str) -> Elsewhere:
    """Parse what `shell_line` printed on the other host. Raise UsageError if there is none of it."""
    told = [found for line in output.splitlines() if SCHEMA in line and (found := _object(line))]
    heads = [one for one in told if "source" in one]
    if not heads:
        raise UsageError(f"no line of it holds {SCHEMA!r} and a source", "paste the whole output of the command")
    reaches = tuple(reach for one in told if (reach := _reach(one)) is not None)
    expected = peer_json.integer(heads[-1].get("targets")) or 0
    host = peer_json.excerpt(peer_json.text(heads[-1].get("source")))
    return Elsewhere(host, reaches, max(0, expected - len(reaches)))


def _object(line: str) -> peer_json.Object:
    """The JSON object in a line, even after a prompt or a pod's name."""
    start, end = line.find("{"), line.rfind("}")
    found = peer_json.mapping(peer_json.parse(line[start : end + 1].encode("utf-8", "replace"))) if start >= 0 else {}
    return found if found.get("pdctl") == SCHEMA else peer_json.NOTHING


def _reach(one: peer_json.Object) -> Reach | None:
    host, port = peer_json.text(one.get("host")), peer_json.integer(one.get("port"))
    if not host or port is None:
        return None
    seconds = peer_json.number(one.get("seconds")) or 0.0
    return Reach(host, port, peer_json.excerpt(peer_json.text(one.get("reason"))), seconds)


class Stake(NamedTuple):
    """What listens at one host:port, and the code for not reaching it."""

    code: str
    instance: str
    what: str


FEW = 3  # addresses named in one reason


def command(facts: Facts) -> str:
    """A command line that dials every address from another host. Raise NotProbedError if no address is known."""
    return shell_line(_targets(facts))


def _targets(facts: Facts) -> Mapping[tuple[str, int], Stake]:
    found = stakes(facts)
    if not found:
        hint = "name a topology, or --prefill URL,PORT"
        raise NotProbedError("no address is known that another host could dial", hint)
    return found


def stakes(facts: Facts) -> Mapping[tuple[str, int], Stake]:
    """Every address a decode or a router dials: bootstrap servers, the ranks they name, the engines' HTTP ports."""
    return dict(reversed([each for each in _stakes(facts) if all(each[0])]))


def _stakes(facts: Facts) -> Iterator[tuple[tuple[str, int], Stake]]:
    """Each address to dial, with what listens there; of several for one address the first counts."""
    for server in facts.bootstraps:
        if "decode-default" not in server.claimed_by or server.style:
            yield (server.host, server.port), Stake("PD205", server.prefill, "bootstrap server")
        for rank in server.ranks:
            name = f"KV port of dp{rank.dp} tp{rank.tp} pp{rank.pp}"
            yield (rank.ip, rank.port), Stake("PD210", server.prefill, name)
    for engine in facts.engines:
        host, port = address(engine.endpoint.url)
        yield (host, port), Stake("PD901", engine.endpoint.name, "HTTP port")


def judged(report: Report, facts: Facts, seen: Elsewhere, selection: Selection = EVERYTHING) -> Report:
    """`report` plus findings for what the other host could not reach, as far as `selection` wants them.

    Raise NotProbedError if no address is known.
    """
    known = _targets(facts)
    here = facts.host.name if facts.host is not None else ""
    failed = {(reach.host, reach.port): reach for reach in seen.reaches if not reach.reached}
    found = tuple(
        weigh(_finding(stake, failed[place], seen.host, here), selection)
        for place, stake in sorted(known.items(), key=lambda item: (item[1], item[0]))
        if place in failed and selection.wants(stake.code)
    )
    codes = {one.code for one in found}
    silent = _undialled(known, seen)
    checks = tuple(
        Checked(each.code, CheckStatus.FINDING) if each.code in codes else _doubted(each, silent, seen.host)
        for each in report.checks
    )
    return replace(report, findings=(*found, *report.findings), checks=checks)


def _undialled(known: Mapping[tuple[str, int], Stake], seen: Elsewhere) -> Mapping[str, list[str]]:
    """By code, the addresses missing from the output: it was cut, or ranks have changed their ports since."""
    dialled = {(reach.host, reach.port) for reach in seen.reaches}
    found: dict[str, list[str]] = {}
    for (host, port), stake in known.items():
        if (host, port) not in dialled:
            found.setdefault(stake.code, []).append(f"{host}:{port}")
    return found


def _doubted(checked: Checked, silent: Mapping[str, list[str]], host: str) -> Checked:
    """`checked`, or UNKNOWN if it is OK but some of its addresses were not dialled from the other host."""
    missing = silent.get(checked.code)
    if not missing or checked.status is not CheckStatus.OK:
        return checked
    more = f" and {len(missing) - FEW} more" if len(missing) > FEW else ""
    reason = f"the output from {host} says nothing about {', '.join(missing[:FEW])}{more}; run the command again"
    return Checked(checked.code, CheckStatus.UNKNOWN, reason)


def _finding(stake: Stake, reach: Reach, host: str, here: str) -> Finding:
    where = f"{reach.host}:{reach.port}"
    found = finding(
        stake.code,
        stake.instance,
        observed=f"{where}: {reach.reason}",
        expected=f"{host} connects to {where}",
        evidence=(f"dialled on {host}: {where}: {reach.reason} after {reach.seconds:.1f} s",),
    )
    # The catalogue's wording is for a probe from this host.
    headline = f"{host} does not reach the {stake.what} of {stake.instance}: {reach.reason}"
    return replace(found, headline=headline, fix=_fix(stake, reach, host, here))


def _fix(stake: Stake, reach: Reach, host: str, here: str) -> str:
    """How to provide what is missing: an address valid on every host, a listener, or a route to it."""
    if is_loopback(reach.host) and host != here:
        return f"give {stake.instance} by an address that {host} can reach"
    if "refused" in reach.reason:
        return f"run this on {reach.host}: ss -ltn 'sport = :{reach.port}'"
    return f"open {reach.host}:{reach.port} to {host}"
