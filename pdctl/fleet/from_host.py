"""Doctor's reachability checks as one command to paste on another host; needs only python3, not pdctl.

It prints one JSON object per line; `read` accepts them in any order and among other output.
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from pdctl.errors import UsageError
from pdctl.fleet import peer_json
from pdctl.fleet.observations import Elsewhere, Reach

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def command(targets: Iterable[tuple[str, int]], wait: float = WAIT) -> str:
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
    """Parse what `command` printed on the other host. Raise UsageError if there is none of it."""
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
