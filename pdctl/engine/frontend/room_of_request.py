"""Which room, at which prefill, each request of a batch belongs to (sglang 0.5.23 srt/managers/io_struct.py).

SGLang puts its own port where a router sent none, which reaches the wrong prefill as soon as there are two. This engine
never guesses: a request that names a real host without a port is refused, with the fix in the answer (unless it
rehearses `null-port-fallback`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pdctl.engine.config.instance_args import FAKE_BOOTSTRAP_HOST
from pdctl.engine.frontend.refusal import Refusal

if TYPE_CHECKING:
    from pdctl.engine.config.instance_args import ServerArgs
    from pdctl.engine.frontend.request_bodies import RoutedBody

MAX_ROOM = (1 << 63) - 1
MAX_HOST_CHARS = 255  # a DNS name's limit
NOT_IN_HOST = frozenset(" '\"\\<>(){}")  # it stands in log lines
SAMPLE_STRIDE = 0x1E3779B97F4A7C15  # odd: no two samples of a prompt come to the same room


@dataclass(frozen=True, slots=True)
class Pairing:
    """`room` 0 with the fake host is a health check: no KV cache moves."""

    host: str | None = None
    port: int | None = None
    room: int | None = None


UNPAIRED = Pairing()


def pairings(body: RoutedBody, args: ServerArgs, rids: list[str], samples: int = 1) -> list[Pairing]:
    """One for each request: prompt by prompt, `samples` of each. Raises Refusal (400) naming what is wrong and the fix.

    Prefill and decode get the same body, so both come to the same rooms without a word between them.
    """
    if args.disaggregation_mode == "null":
        return [UNPAIRED] * len(rids)
    count = len(rids)
    hosts = _spread("bootstrap_host", body.bootstrap_host, count, samples)
    ports = _spread("bootstrap_port", body.bootstrap_port, count, samples)
    rooms = _rooms(body.bootstrap_room, count, samples)
    pairs = [Pairing(*row) for row in zip(hosts, ports, rooms, strict=True)]
    portless = args.rehearsal.null_port_fallback
    return [_check(_complete(pair, args), rid, portless) for pair, rid in zip(pairs, rids, strict=True)]


def _spread(name: str, value: object, count: int, samples: int) -> list[Any]:
    """A list with one entry for each prompt serves all samples of it."""
    if not isinstance(value, list):
        return [value] * count
    if len(value) * samples == count:
        return [entry for entry in value for _ in range(samples)]
    if len(value) != count:
        raise Refusal(
            400, f"{name} has {len(value)} entries for {count} request(s); give one for each, or a single value."
        )
    return value


def _rooms(value: int | list[int] | None, count: int, samples: int) -> list[int | None]:
    """sglang: a single room on a batch (or with n > 1) means room, room + 1, …; rooms in a list must differ.

    A list with one room for each prompt, where n > 1: SGLang 0.5.23 gives every sample its prompt's room, and all but
    one of them hang. Here the first sample has it, and the rooms of the others follow from it.
    """
    if isinstance(value, int):
        return [value + offset for offset in range(count)]
    rooms: list[int | None]
    if isinstance(value, list) and len(value) != count and len(value) * samples == count:
        rooms = [_sample_room(room, sample) for room in value for sample in range(samples)]
    else:
        rooms = _spread("bootstrap_room", value, count, samples)
    real = [room for room in rooms if room]
    if len(set(real)) != len(real):
        raise Refusal(
            400, "bootstrap_room: two requests of this batch have the same room; a room belongs to one request."
        )
    return rooms


def _sample_room(room: int, sample: int) -> int:
    """Far from its neighbours: a router that counts its rooms up must not meet one of these. Values no room can have
    stay what they are."""
    if not sample or not 0 < room <= MAX_ROOM:
        return room
    return (room + sample * SAMPLE_STRIDE) & MAX_ROOM or 1


def _complete(pairing: Pairing, args: ServerArgs) -> Pairing:
    """With the fake backend a decode serves requests that name no prefill (sglang 0.5.13+)."""
    if args.disaggregation_transfer_backend == "fake" and pairing.host is None:
        return Pairing(FAKE_BOOTSTRAP_HOST, None, pairing.room or 0)
    return pairing


def _check(pairing: Pairing, rid: str, portless: bool) -> Pairing:
    host, port, room = pairing.host, pairing.port, pairing.room
    if room is None:
        raise Refusal(
            400,
            f"Invalid request: Disaggregated request received without bootstrap room id. req.rid={rid!r}",
            "bootstrap_room_missing",
        )
    if not 0 <= room <= MAX_ROOM:
        raise Refusal(400, f"bootstrap_room {room} is out of range: a room is 1 to 2**63 - 1.")
    if not host:
        raise Refusal(
            400,
            f"bootstrap_host is missing for room {room}: a disaggregated request names its prefill's bootstrap server. "
            "Send the request through a PD router, or add bootstrap_host, bootstrap_port and bootstrap_room.",
            "bootstrap_host_missing",
        )
    if host == FAKE_BOOTSTRAP_HOST:
        return pairing
    if len(host) > MAX_HOST_CHARS or not host.isprintable() or not NOT_IN_HOST.isdisjoint(host):
        raise Refusal(400, f"bootstrap_host {host[:64]!r} is not a host name or address.")
    if port is None and not portless:
        raise Refusal(
            400,
            f"bootstrap_port is missing for bootstrap_host {host!r} (room {room}); this engine never guesses a port. "
            "Give the router each prefill's bootstrap port (`--prefill URL PORT`); "
            "its /server_info shows it as disaggregation_bootstrap_port.",
            "bootstrap_port_missing",
        )
    if port is not None and not 0 < port < 65536:
        raise Refusal(400, f"bootstrap_port {port} of bootstrap_host {host!r} (room {room}): a port is 1 to 65535.")
    if room == 0:
        raise Refusal(
            400,
            f"bootstrap_room 0 with bootstrap_host {host!r}: room 0 means 'not written yet' in a metadata buffer, "
            "so its transfer could never complete. Draw rooms from 1 to 2**63 - 1.",
        )
    return pairing
