"""What probes saw: frozen facts about engines, bootstrap servers, the router, this host and canary requests.

Nothing here is a judgement. A fact that could not be obtained carries the reason; None never means "fine".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl.fleet import peer_json

if TYPE_CHECKING:
    from collections.abc import Mapping

Json = object
PAIR, OVER_LENGTH, CANCEL, N2, BURST = "pair", "over-length", "cancel", "n2", "burst"  # kinds of canary requests
UNASKED = "not asked"  # how the reason begins if a server was never asked
SHOWN = 80  # characters of a command line in a sentence
EMPTY: Mapping[str, Json] = MappingProxyType({})
NO_VALUES: Mapping[str, float] = MappingProxyType({})
NO_STATES: Mapping[str, int] = MappingProxyType({})


def _empty() -> Mapping[str, Json]:
    return EMPTY


def _no_values() -> Mapping[str, float]:
    return NO_VALUES


def _no_states() -> Mapping[str, int]:
    return NO_STATES


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An engine to probe. `bootstrap_port`: as the user gave it (flag or topology), None if not given.

    ranks: how many bootstrap registrations a prefill owes (dp × cp × tp × pp), None if not known in advance.
    """

    name: str
    role: str  # prefill | decode | unified
    url: str
    bootstrap_port: int | None = None
    ranks: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to one HTTP request. `status` 0: no answer, see `reason`. `seconds`: how long it took.

    wants_key: it is refused for want of the right API key, as any 401 is.
    """

    path: str
    status: int
    seconds: float
    reason: str = ""
    body: Json = None  # parsed JSON, or else text, cut to 64 KiB
    wants_key: bool = False

    @property
    def ok(self) -> bool:
        return self.status == 200


@dataclass(frozen=True, slots=True)
class ObservedEngine:
    """info: the merged /server_info (or /get_server_info) document, empty if there was none.

    metrics: Prometheus family → value summed over its series; histograms appear as NAME_sum and NAME_count.
    loads: the entries of /v1/loads, () if the release has none. replies: all replies, in the order of the requests.
    clock_offset: the least by which its clock is ahead of this host's (seconds; behind: negative), by its Date headers.
    """

    endpoint: Endpoint
    reached: bool
    reason: str
    info: Mapping[str, Json] = field(default_factory=_empty)
    model: Mapping[str, Json] = field(default_factory=_empty)
    loads: tuple[Mapping[str, Json], ...] = ()
    metrics: Mapping[str, float] = field(default_factory=_no_values)
    health: Reply | None = None
    health_generate: Reply | None = None
    replies: tuple[Reply, ...] = ()
    clock_offset: float | None = None

    @property
    def asked(self) -> bool:
        """Whether it was probed before the time ran out."""
        return self.reached or not self.reason.startswith(UNASKED)

    @property
    def version(self) -> str:
        """The SGLang release whose rules apply: `sglang_compat` of pdctl's own engine, else `version`."""
        return str(self.info.get("sglang_compat") or self.info.get("version") or "")

    @property
    def mode(self) -> str:
        """The role it has now, whatever it was started as."""
        return peer_json.role(self.info)

    def number(self, key: str) -> int | None:
        return peer_json.integer(self.info.get(key))

    def text(self, key: str) -> str | None:
        value = self.info.get(key)
        return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class RankAddress:
    """One registered rank and whether its ZMQ port accepts a connection from here."""

    dp: int
    cp: int
    tp: int
    pp: int
    ip: str
    port: int
    reached: bool | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """What listens where a prefill's bootstrap server should; several per prefill if several ports are claimed.

    claimed_by: which sources name this port: "flag", "server_info", "router", "annotation", "decode-default".
    style: "new" (0.5.13+), "old" (0.5.3, 0.5.8), or "" if it is not a bootstrap server.
    serves: what answered there: "bootstrap", "engine" (an engine's HTTP port), "http" (something else), "" (no HTTP).
    registered / expected: ranks, None if the release does not count. topology: the answer for all ranks -1.
    """

    prefill: str
    host: str
    port: int
    claimed_by: tuple[str, ...]
    reached: bool
    reason: str
    health: Reply | None = None
    route: Reply | None = None
    style: str = ""
    registered: int | None = None
    expected: int | None = None
    serves: str = ""
    topology: Mapping[str, Json] = field(default_factory=_empty)
    ranks: tuple[RankAddress, ...] = ()
    unranked: tuple[str, ...] = ()  # "dp0 cp0 tp1 pp0: 404 …": ranks the server would not name

    @property
    def asked(self) -> bool:
        """Whether it was probed before the time ran out."""
        return self.reached or not self.reason.startswith(UNASKED)


@dataclass(frozen=True, slots=True)
class RouterWorker:
    """bootstrap_port None with `bootstrap_known` False: the key is absent, so the router will send null.

    `healthy` False with `health_known` False: the router does not say whether it is.
    """

    url: str
    role: str
    healthy: bool
    bootstrap_port: int | None
    bootstrap_known: bool
    mode: str  # as the worker itself reported (metadata.disaggregation_mode), "" if the router does not keep it
    load: int
    reason: str = ""  # why the router marks it unhealthy, if it says so (pdctl's own does)
    health_known: bool = True

    @property
    def health(self) -> str:
        """Of one that is not healthy: how the router lists it."""
        return "listed as unhealthy" if self.health_known else "listed without its health (`is_healthy`)"


@dataclass(frozen=True, slots=True)
class ObservedRouter:
    """kind: sglang-router, smg, pdctl, mini_lb or "" (not recognised). status: that of GET /workers, 0: no answer.

    mode: the disaggregation_mode of an engine given as a router, with its bootstrap port, None if not reported.

    breakers: worker url → 0 closed, 1 open, 2 half-open; pdctl's router has one per pair: "PREFILL_URL DECODE_URL".
    """

    url: str
    reached: bool
    reason: str
    kind: str = ""
    ready: bool | None = None
    readiness: Reply | None = None
    workers: tuple[RouterWorker, ...] | None = None  # None: it has no such list
    breakers: Mapping[str, int] = field(default_factory=_no_states)
    breakers_known: bool = False
    metrics: Mapping[str, float] = field(default_factory=_no_values)
    status: int = 0
    wants_key: bool = False  # as of a Reply: that to GET /workers
    mode: str = ""
    bootstrap_port: int | None = None

    @property
    def asked(self) -> bool:
        """Whether it was probed before the time ran out."""
        return self.reached or not self.reason.startswith(UNASKED)


@dataclass(frozen=True, slots=True)
class Reach:
    """Whether host:port accepted a TCP connection from `Elsewhere.host`; `reason` is "" if it did."""

    host: str
    port: int
    reason: str
    seconds: float

    @property
    def reached(self) -> bool:
        return not self.reason


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What another host reaches. `missing`: the number of targets absent from the output (it was cut)."""

    host: str
    reaches: tuple[Reach, ...]
    missing: int


@dataclass(frozen=True, slots=True)
class Holder:
    """Who listens on a port of this host. pid None: a process this user cannot see.

    instance: that of the run under examination to which it belongs, "" for any other. stopped: it was sent SIGSTOP, or
    a debugger holds it, so it listens but does not answer.
    """

    pid: int | None
    command: str = ""
    instance: str = ""
    stopped: bool = False

    def __str__(self) -> str:
        if self.pid is None:
            return "a process that this user cannot see"
        command = self.command if len(self.command) <= SHOWN else f"{self.command[:SHOWN]}…"
        return f"pid {self.pid} ({command})" if command else f"pid {self.pid}"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process of the run ended, as its supervisor recorded it. `ours`: pdctl itself ended it.

    words: "was killed by SIGKILL …". at: seconds since the epoch; its last sign of life unless `exact`. lines: those
    of its log that may explain it. log: that file. untold: a sentence that no line does and where to look, or "". next:
    when it is restarted, as a clause ("; restarts in 1.3 s"), or "". fix: a command, where another one than a look at
    the log helps.
    """

    instance: str
    words: str
    at: float
    ours: bool = False
    log: str = ""
    lines: tuple[str, ...] = ()
    untold: str = ""
    next: str = ""
    fix: str = ""
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    version: str


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """Port 1 of one /sys/class/infiniband entry. `gids`: (index, value, type) of those that are not zero."""

    name: str
    state: str  # "ACTIVE", "DOWN", …
    link_layer: str  # InfiniBand | Ethernet
    rate: str
    gids: tuple[tuple[int, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """A process of the run under examination, from its /proc/PID. Limits are soft limits; `memlock` None: unlimited.

    files: how many it may have open. open: how many it has, None if this user cannot see them. closing: how many of
    those are sockets in CLOSE_WAIT, which their peers have closed and it has not.
    """

    instance: str
    pid: int
    files: int
    memlock: int | None  # bytes
    open: int | None = None
    closing: int = 0


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The filesystem of one of the run's folders: the bytes and files (inodes) that this user may still write.

    total_files: 0 if the filesystem does not count. lost: a message that the run's logs are being lost, or "".
    """

    folder: str
    free: int
    total: int
    free_files: int
    total_files: int
    lost: str = ""


@dataclass(frozen=True, slots=True)
class Host:
    """The host doctor runs on. busy: port → who listens there. Times in seconds.

    stopped: processes of the run under examination that were sent SIGSTOP, whether they listen or not. processes: all
    of that run's. disks: where that run writes.
    peermem: nvidia_peermem is loaded. dma_buf: the NVIDIA driver is the open one, which needs no nvidia_peermem;
    None: no driver.
    """

    name: str
    addresses: tuple[str, ...]
    busy: Mapping[int, Holder]
    rdma: tuple[RdmaDevice, ...]
    peermem: bool
    gpus: tuple[str, ...]
    packages: tuple[Package, ...]
    environ: Mapping[str, str]  # only the variables that checks use
    clock_offset: float | None = None  # from the engines' HTTP Date headers, seconds; None: not seen
    dma_buf: bool | None = None
    stopped: tuple[Holder, ...] = ()
    processes: tuple[ProcessLimits, ...] = ()
    disks: tuple[DiskSpace, ...] = ()


@dataclass(frozen=True, slots=True)
class Canary:
    """One canary request. `kind`: pair, over-length, cancel, n2 or burst. `ok` None: not sent."""

    kind: str
    prefill: str
    decode: str
    room: int
    ok: bool | None
    seconds: float
    text: str = ""
    prefill_status: int = 0
    decode_status: int = 0
    finish_reason: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HeldRequests:
    """Requests an engine still holds after the canaries: name → count, without zeros.

    late: the counts are gauges of /metrics, which an engine updates periodically: they may be half a minute old.
    """

    instance: str
    left: Mapping[str, float]
    read: bool
    late: bool = False


@dataclass(frozen=True, slots=True)
class SignatureLine:
    """A line of a run's log recognised by a signature of the catalogue, the first of `count` in that log.

    about: the URL of the worker that a router's line names, "" if the line is about the instance itself. at: when the
    first was written, in seconds since the epoch; None: it has no time. seconds: from the first to the last of them.
    answered: the number of requests the instance answered with 200 since it last became ready, counted only as far as
    it matters for the code. by_router: a router wrote it; an engine cannot tell a client from the router before it.
    rooms: those its lines name; () if one of them names none, or there are too many to keep.
    """

    instance: str
    code: str
    place: str  # file:line
    text: str
    room: int | None
    count: int = 1
    seconds: float = 0.0
    answered: int = 0
    about: str = ""
    at: float | None = None
    by_router: bool = False
    rooms: frozenset[int] = frozenset()
