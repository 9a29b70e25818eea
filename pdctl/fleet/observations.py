"""What probes saw: frozen facts about engines, bootstrap servers, the router, this host and canary requests.

Nothing here is a judgement. A fact that could not be had carries the reason; None never means "fine".
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
UNASKED = "not asked"  # begins the reason why there is no answer of somebody whose turn never came
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
    """An engine to look at. `bootstrap_port`: the one the user wrote (flag or topology), None when nobody said.

    ranks: how many bootstrap registrations a prefill owes (dp × cp × tp × pp), None when not known beforehand.
    """

    name: str
    role: str  # prefill | decode | unified
    url: str
    bootstrap_port: int | None = None
    ranks: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP look. status 0: nobody answered, and `reason` says why. seconds: how long it took."""

    path: str
    status: int
    seconds: float
    reason: str = ""
    body: Json = None  # parsed JSON, or text when it is not JSON, cut to 64 KiB

    @property
    def ok(self) -> bool:
        return self.status == 200


@dataclass(frozen=True, slots=True)
class ObservedEngine:
    """info: the merged /server_info (or /get_server_info) document, empty when there was none.

    metrics: Prometheus family → value summed over its series; histograms appear as NAME_sum and NAME_count.
    loads: the entries of /v1/loads, or () where the release has none. replies: every look, in the order it was made.
    clock_offset: the least its clock must be ahead of this host's (seconds, behind: negative), by its Date headers.
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
        """Whether its turn came before the time was over."""
        return self.reached or not self.reason.startswith(UNASKED)

    @property
    def version(self) -> str:
        """The SGLang release whose rules hold: `sglang_compat` of pdctl's own engine, else `version`."""
        return str(self.info.get("sglang_compat") or self.info.get("version") or "")

    @property
    def mode(self) -> str:
        """As it is now, whatever it was started as."""
        return peer_json.role(self.info)

    def number(self, key: str) -> int | None:
        return peer_json.integer(self.info.get(key))

    def text(self, key: str) -> str | None:
        value = self.info.get(key)
        return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class RankAddress:
    """One registered rank and whether its ZMQ port takes a connection from here."""

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
    """What listens where a prefill's bootstrap server should; several per prefill when several ports are claimed.

    claimed_by: which places name this port: "flag", "server_info", "router", "annotation", "decode-default".
    style: "new" (0.5.13+), "old" (0.5.3, 0.5.8) or "" when it is no bootstrap server at all.
    serves: what answered there: "bootstrap", "engine" (an engine's HTTP port), "http" (something else), "" (no HTTP).
    registered / expected: ranks, None when the release does not count. topology: the all -1 answer.
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
        """As of an engine."""
        return self.reached or not self.reason.startswith(UNASKED)


@dataclass(frozen=True, slots=True)
class RouterWorker:
    """bootstrap_port None with `bootstrap_known` False: the key is absent, so the router will send null."""

    url: str
    role: str
    healthy: bool
    bootstrap_port: int | None
    bootstrap_known: bool
    mode: str  # what the worker itself reported (metadata.disaggregation_mode), "" when the router does not keep it
    load: int
    reason: str = ""  # why the router holds it unhealthy, where it says so (pdctl's own does)


@dataclass(frozen=True, slots=True)
class ObservedRouter:
    """kind: sglang-router, smg, pdctl, mini_lb or "" (not recognised). status: of its answer to GET /workers, 0: none.

    mode: the disaggregation_mode of an engine that was given as a router, with its bootstrap port, None: not told.

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
    mode: str = ""
    bootstrap_port: int | None = None


@dataclass(frozen=True, slots=True)
class Reach:
    """Whether host:port took a TCP connection from `Elsewhere.host`; `reason` is empty when it did."""

    host: str
    port: int
    reason: str
    seconds: float

    @property
    def reached(self) -> bool:
        return not self.reason


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What another host reaches. `missing`: how many of the targets the output says nothing about (it was cut)."""

    host: str
    reaches: tuple[Reach, ...]
    missing: int


@dataclass(frozen=True, slots=True)
class Holder:
    """Who listens on a port of this host. pid None: a process this user cannot see.

    instance: the one of the run looked at that it belongs to, "" for anybody else. stopped: it was sent SIGSTOP, or a
    debugger holds it: it listens and answers nothing.
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
    """How a process of the run ended, as its supervisor wrote it down. `ours`: pdctl ended it itself.

    words: "was killed by SIGKILL …". at: seconds since the epoch. lines: those of its log that may tell why. log: that
    file. untold: that no line does, and where to look.
    """

    instance: str
    words: str
    at: float
    ours: bool = False
    log: str = ""
    lines: tuple[str, ...] = ()
    untold: str = ""


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    version: str


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """One /sys/class/infiniband entry, port 1. gids: (index, value, type) of those that are not zero."""

    name: str
    state: str  # "ACTIVE", "DOWN", …
    link_layer: str  # InfiniBand | Ethernet
    rate: str
    gids: tuple[tuple[int, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """A process of the run looked at, by its own /proc/PID. Limits are the soft ones; a `memlock` of None: unlimited.

    files: how many it may have open. open: how many it has, None where this user cannot see them. closing: sockets of
    them in CLOSE_WAIT, whose peers have closed and it has not.
    """

    instance: str
    pid: int
    files: int
    memlock: int | None  # bytes
    open: int | None = None
    closing: int = 0


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The filesystem under a folder of the run. Bytes and files (inodes) that this user may still write.

    total_files: 0 where the filesystem does not count. lost: that the run's logs are being lost, in words.
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

    stopped: processes of the run looked at that were sent SIGSTOP, whether they listen or not. processes: all of them.
    disks: where that run writes.
    peermem: nvidia_peermem is loaded. dma_buf: the NVIDIA driver is the open one, which needs none; None: no driver.
    """

    name: str
    addresses: tuple[str, ...]
    busy: Mapping[int, Holder]
    rdma: tuple[RdmaDevice, ...]
    peermem: bool
    gpus: tuple[str, ...]
    packages: tuple[Package, ...]
    environ: Mapping[str, str]  # only the variables the checks know
    clock_offset: float | None = None  # to the engines' HTTP Date header, seconds, None: not seen
    dma_buf: bool | None = None
    stopped: tuple[Holder, ...] = ()
    processes: tuple[ProcessLimits, ...] = ()
    disks: tuple[DiskSpace, ...] = ()


@dataclass(frozen=True, slots=True)
class Canary:
    """One canary request. kind: pair, over-length, cancel, n2, burst. ok None: not sent.."""

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
    """Requests an engine still holds after the canaries: name → count, only those that are not zero.

    late: the numbers are gauges of /metrics, which an engine writes now and then: they may be half a minute old.
    """

    instance: str
    left: Mapping[str, float]
    read: bool
    late: bool = False


@dataclass(frozen=True, slots=True)
class SignatureLine:
    """A line of a run's log that a catalogue signature recognised, the first of `count` in that log.

    seconds: from the first to the last of them. answered: requests that its instance answered with 200 since it last
    became ready; counted only as far as it matters for the code.
    """

    instance: str
    code: str
    place: str  # file:line
    text: str
    room: int | None
    count: int = 1
    seconds: float = 0.0
    answered: int = 0
