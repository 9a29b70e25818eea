"""Environment variables of a PD deployment as typed settings, and a linter for them.

Sources: srt/environ.py and the os.environ calls of every sglang release that was read, which date each name
(engines/releases/sglang/environment.tsv); the names that Mooncake 0.3.13 reads; the documentation of NCCL and UCX for
the ones that recipes set. Every name of the `CLOSED` families is known; in the others, an unknown name counts as a
mistake if it is close to a known one.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from pdctl.engines import numerals, versions
from pdctl.engines.versions import V0_5_3, V0_5_5_POST1, Span, Version, spell
from pdctl.quick_definitions import NamedTuple
from pdctl.suggestions import similar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BOOL, INT, FLOAT, TEXT, JSON = "bool", "int", "float", "text", "json"
TRUE, FALSE = ("true", "1", "yes", "y"), ("false", "0", "no", "n")  # of sglang's EnvBool; anything else is the default


class Variable(NamedTuple):
    """`low` and `high` bound a number, `choices` a text. `default`: as in the code that reads it, "" for none."""

    name: str
    kind: str
    default: str
    says: str
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[str, ...] = ()
    dated: Span | None = None  # for a row that shares its name with another

    @property
    def span(self) -> Span:
        """The SGLang releases whose code reads it; variables of libraries are not tied to a release of SGLang."""
        own = versions.spans("environment", self.name) if self.name.startswith("SGLANG_") else ()
        return self.dated or (own[-1] if own else Span())


READ = "variables that the engine reads"


class Remark(NamedTuple):
    """What is wrong with one variable, what is expected, and the fix. `name` "": several contradict each other."""

    name: str
    message: str
    expected: str
    fix: str
    names: tuple[str, ...] = ()


DISAGG = "SGLANG_DISAGGREGATION_"
BOOTSTRAP_TIMEOUT, WAITING_TIMEOUT = f"{DISAGG}BOOTSTRAP_TIMEOUT", f"{DISAGG}WAITING_TIMEOUT"
INTERVAL, FAILURES = f"{DISAGG}HEARTBEAT_INTERVAL", f"{DISAGG}HEARTBEAT_MAX_FAILURE"
RELEASE, RELEASE_TIMEOUT = f"{DISAGG}DEFERRED_DECODE_KV_RELEASE", f"{DISAGG}DEFERRED_DECODE_KV_RELEASE_TIMEOUT"

SGLANG: tuple[Variable, ...] = (
    Variable(BOOTSTRAP_TIMEOUT, INT, "300", "seconds a prefill waits for the decode's page list", 1),
    Variable(WAITING_TIMEOUT, INT, "300", "seconds a decode waits for the KV cache", 1),
    Variable(INTERVAL, FLOAT, "5.0", "seconds between a decode's looks at a bootstrap server", 2),
    Variable(FAILURES, INT, "2", "missed looks after which a prefill counts as dead", 1),
    Variable(f"{DISAGG}QUEUE_SIZE", INT, "4", "transfer queues of a prefill rank", 1),
    Variable(f"{DISAGG}THREAD_POOL_SIZE", INT, "", "threads of all transfer queues together", 1),
    Variable(f"{DISAGG}NIXL_BACKEND", TEXT, "UCX", "NIXL's plugin"),
    Variable(f"{DISAGG}NIXL_BACKEND_PARAMS", JSON, "{}", "its parameters, as a JSON object"),
    Variable(f"{DISAGG}ALL_CP_RANKS_TRANSFER", BOOL, "false", "every CP rank sends, on both sides"),
    Variable(
        f"{DISAGG}FORCE_QUERY_PREFILL_DP_RANK", BOOL, "false", "ask which DP rank took a room, on both sides",
    ),
    Variable(
        f"{DISAGG}BOOTSTRAP_ENTRY_CLEANUP_INTERVAL", INT, "120", "seconds a bootstrap server keeps a DP rank", 1,
    ),
    Variable(
        f"{DISAGG}NUM_PRE_ALLOCATE_REQS", INT, "0", "requests a decode sets pages aside for", 0,
    ),
    Variable(
        f"{DISAGG}SAMPLING_MASK_MAX_TOKENS", INT, "", "tokens of a sampling mask that travels along", 0
    ),
    Variable(f"{DISAGG}ZMQ_SEND_TIMEOUT", INT, "1", "seconds a send to a peer may block", 0),
    Variable(f"{DISAGG}ZMQ_MAX_SOCKETS", INT, "16384", "sockets of one process", 1),
    Variable(RELEASE, BOOL, "true", "keep a failed room's pages until no write can reach them"),
    Variable(RELEASE_TIMEOUT, FLOAT, "30.0", "seconds they are kept at most", 0),
    Variable(f"{DISAGG}ENGINE_INIT_TIMEOUT", INT, "60", "seconds its transfer engine may take", 1),
    Variable("SGLANG_DISAGG_STAGING_BUFFER", BOOL, "false", "gather heads before they are sent"),
    Variable("SGLANG_DISAGG_STAGING_POOL_SIZE_MB", INT, "4096", "MiB of a decode's staging pool", 1),
    Variable(
        "SGLANG_DISAGG_STAGING_BUFFER_SIZE_MB", INT, "64", "MiB of a prefill's staging buffer", 1,
    ),
    Variable(
        "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX", BOOL, "true", "send cached pages before the pass",
    ),
    Variable(
        "SGLANG_ENABLE_DISAGG_SAMPLING_MASK", BOOL, "false", "hand sampling masks over, on both sides"
    ),
    Variable(
        "SGLANG_ENABLE_DISAGG_PREFILL_CONTINUOUS_INPUT_POLLING", BOOL, "false", "take requests during a pass",
    ),
    Variable(
        "SGLANG_MOONCAKE_CUSTOM_MEM_POOL", BOOL, "false", "KV in Mooncake's memory",
        dated=Span(V0_5_3, V0_5_5_POST1),
    ),
    Variable(
        "SGLANG_MOONCAKE_CUSTOM_MEM_POOL", TEXT, "", "KV in Mooncake's memory of that kind", dated=Span(V0_5_5_POST1),
        choices=(*TRUE, *FALSE, "NVLINK", "BAREX", "INTRA_NODE_NVLINK"),
    ),
    Variable("SGLANG_MOONCAKE_SEND_AUX_TCP", BOOL, "false", "metadata over TCP instead of RDMA"),
    Variable("SGLANG_MOONCAKE_MAX_TRANSFER_BATCH_INDICES", INT, "0", "pages of one batch; 0: all", 0),
    Variable("SGLANG_MORI_TRANSFER_TIMEOUT_MS", INT, "0", "milliseconds of one transfer; 0: none", 0),
    Variable("SGLANG_RUST_SERVER", BOOL, "false", "the HTTP server in Rust: bootstrap on the API port"),
    Variable("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", BOOL, "true", "/health makes a token"),
    Variable("SGLANG_HEALTH_CHECK_TIMEOUT", INT, "20", "seconds /health_generate waits", 1),
    Variable("SGLANG_WAIT_WEIGHTS_READY_TIMEOUT", INT, "120", "seconds a start waits for weights", 1),
    Variable("SGLANG_WAIT_PORT_TIMEOUT", INT, "", "seconds a start waits for a port", 1),
    Variable("SGLANG_WARMUP_TIMEOUT", FLOAT, "-1", "seconds of the warm-up request; -1: the default", -1),
    Variable("SGLANG_REQ_WAITING_TIMEOUT", FLOAT, "-1", "seconds a request may queue; -1: any", -1),
    Variable("SGLANG_REQ_RUNNING_TIMEOUT", FLOAT, "-1", "seconds a request may run; -1: any", -1),
    Variable("SGLANG_QUEUED_TIMEOUT_MS", INT, "-1", "", -1),
    Variable("SGLANG_REQUEST_STATE_WAIT_TIMEOUT", INT, "4", "seconds between looks at the client", 1),
    Variable("SGLANG_TIMEOUT_KEEP_ALIVE", INT, "5", "seconds an idle HTTP connection is kept", 1),
    Variable("SGLANG_LOG_MS", BOOL, "false", "milliseconds in log lines"),
    Variable("SGLANG_LOG_FORWARD_ITERS", BOOL, "false", "a line per pass"),
    Variable("SGLANG_FORCE_SHUTDOWN", BOOL, "false", "leave without waiting for requests"),
    Variable("SGLANG_GRPC_PORT", INT, "", "port of the gRPC server", 1, 65535),
    Variable("SGLANG_HOST_IP", TEXT, "", "the address ranks register with"),
    Variable("SGLANG_LOCAL_IP_NIC", TEXT, "", "the interface that address is taken from"),
    Variable("SGLANG_TEST_DISAGG_FAILURE_PROB", FLOAT, "0.0", "share of rooms made to fail", 0, 1),
    Variable("SGLANG_TEST_DISAGG_KV_CHECKSUM_MISMATCH_PROB", FLOAT, "0.0", "", 0, 1),
)  # fmt: skip

NUMBERED = {  # Mooncake's, with the bounds from its own messages: name → (default, says, low, high)
    "MC_GID_INDEX": ("", "GID of a RoCE device", 0, 255),
    "MC_IB_PORT": ("1", "port of a device", 0, 255),
    "MC_IB_TC": ("-1", "traffic class", -1, 255),
    "MC_IB_SL": ("-1", "service level", -1, 15),
    "MC_PKEY_INDEX": ("0", "partition key", 0, 65535),
    "MC_RETRY_CNT": ("", "retries of a transfer", 0, 127),
    "MC_NUM_CQ_PER_CTX": ("1", "completion queues of a device", 1, 255),
    "MC_NUM_COMP_CHANNELS_PER_CTX": ("1", "completion channels of a device", 1, 255),
    "MC_NUM_QP_PER_EP": ("2", "queue pairs of a connection", 1, 255),
    "MC_MAX_CQE_PER_CTX": ("4096", "entries of a completion queue", 1, 65535),
    "MC_MAX_EP_PER_CTX": ("", "connections of a device", 1, 65536),
    "MC_MAX_SGE": ("4", "pieces of a request", 1, 65535),
    "MC_MAX_WR": ("256", "requests of a queue pair", 1, 65535),
    "MC_MAX_INLINE": ("64", "bytes sent inline", 0, 65535),
    "MC_WORKERS_PER_CTX": ("2", "threads of a device", 1, 8),
    "MC_SLICE_SIZE": ("65536", "bytes of a slice", 1, math.inf),
    "MC_SLICE_TIMEOUT": ("", "seconds of a slice", -1, 65535),
    "MC_TRANSFER_TIMEOUT": ("30", "seconds of a batch", 5, math.inf),
    "MC_HANDSHAKE_PORT": ("12001", "port of the handshake", 1, 65535),
    "MC_HANDSHAKE_LISTEN_BACKLOG": ("128", "connections that wait for it", 1, math.inf),
    "MC_HANDSHAKE_CONNECT_TIMEOUT": ("", "seconds to reach a peer", 0, math.inf),
    "MC_MIN_PRC_PORT": ("15000", "first port of the RPC server", 1, 65535),
    "MC_MAX_PRC_PORT": ("17000", "last port of the RPC server", 1, 65535),
    "MC_MIN_RPC_PORT": ("15000", "first port of the RPC server", 1, 65535),
    "MC_MAX_RPC_PORT": ("17000", "last port of the RPC server", 1, 65535),
    "MC_TE_METRIC_INTERVAL_SECONDS": ("5", "seconds between lines of metrics", 1, math.inf),
    "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": ("1024", "copies that wait for one peer", 1, math.inf),
}
CHOSEN = {
    "MC_MTU": ("4096", "bytes of a packet", ("512", "1024", "2048", "4096")),
    "MC_IB_PCI_RELAXED_ORDERING": ("0", "relaxed ordering on PCI", ("0", "1", "2")),
    "MC_ENDPOINT_STORE_TYPE": ("SIEVE", "which connections are dropped first", ("FIFO", "SIEVE")),
    "MC_RPC_PROTOCOL": ("tcp", "protocol of the store's RPC", ("tcp", "rdma")),
}
# Names Mooncake 0.3.13 reads without naming invalid values; MC_INTRANODE_NVLINK is MC_INTRA_NVLINK of an older build.
_FREE = """
MC_AUTO_GID_MAX_RETRIES MC_CONN_PAUSE_TTL_MS MC_CUSTOM_TOPO_JSON MC_DISABLE_METACACHE MC_EFA_CQ_THREADS
MC_EFA_NIC_SELECTION MC_ENABLE_DEST_DEVICE_AFFINITY MC_ENABLE_HCA_PEER_AFFINITY MC_ENABLE_PARALLEL_REG_MR MC_FORCE_HCA
MC_FORCE_MNNVL MC_FORCE_TCP MC_FRAGMENT_RATIO MC_HANDSHAKE_MAX_LENGTH MC_INTRA_NVLINK MC_INTRANODE_NVLINK
MC_LEGACY_RPC_PORT_BINDING MC_LOG_DIR MC_LOG_LEVEL MC_LOG_RDMA_SLICE_AFFINITY MC_MAX_CONCURRENT_REG_MR MC_MAX_MR_SIZE
MC_METADATA_CLUSTER_ID MC_MIN_REG_SIZE MC_MLX5_QP_LAG_PORT_BALANCE MC_MLX5_QP_UDP_SPORTS MC_NIC_PEER_AFFINITY
MC_PATH_ROUNDROBIN MC_RDMA_BIND_ADDRESS MC_RDMA_NOTIFY_BUFFER_SIZE MC_RDMA_NOTIFY_CONNECT_TIMEOUT_MS
MC_RDMA_NOTIFY_ENABLED MC_RDMA_NOTIFY_MAX_PENDING_SENDS MC_RDMA_NOTIFY_OOB_FALLBACK MC_RDMA_NOTIFY_RECV_COUNT
MC_RDMA_RAIL_PAUSE_SECONDS MC_REDIS_DB_INDEX MC_REDIS_PASSWORD MC_RPC_CLIENT_IO_THREADS MC_STORE_RPC_CLIENT_IO_THREADS
MC_TCP_ADMISSION_TIMEOUT_MS MC_TCP_BIND_ADDRESS MC_TCP_ENABLE_CONNECTION_POOL MC_TCP_LANES_PER_PEER
MC_TCP_MAX_CONNECTIONS_PER_PEER MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER MC_TCP_PROGRESS_TIMEOUT_SEC MC_TCP_PROTO
MC_TCP_SLICE_SIZE MC_TCP_STATUS_TIMEOUT_SEC MC_TE_FILTERS MC_TE_METADATA_REFRESH_INTERVAL_SECONDS MC_TE_METRIC
MC_TE_RPC_CLIENT_IO_THREADS MC_TRACK_RDMA_POSTED_SLICES MC_USE_IPV6 MC_USE_RDMA_TWOSIDED MC_USE_TENT MC_USE_TEV1
MC_YLT_LOG_LEVEL
"""
NCCL: tuple[Variable, ...] = (
    Variable("NCCL_DEBUG", TEXT, "", "how much it logs", choices=("VERSION", "WARN", "INFO", "ABORT", "TRACE")),
    Variable("NCCL_DEBUG_SUBSYS", TEXT, "INIT,BOOTSTRAP,ENV", "of what"),
    Variable("NCCL_DEBUG_FILE", TEXT, "", "where to"),
    Variable("NCCL_SOCKET_IFNAME", TEXT, "", "interfaces of its own handshake"),
    Variable("NCCL_SOCKET_FAMILY", TEXT, "", "IPv4 or IPv6", choices=("AF_INET", "AF_INET6")),
    Variable("NCCL_IB_HCA", TEXT, "", "RDMA devices"),
    Variable("NCCL_IB_DISABLE", INT, "0", "no RDMA", 0, 1),
    Variable("NCCL_IB_GID_INDEX", INT, "-1", "GID of a RoCE device", -1, 255),
    Variable("NCCL_IB_TC", INT, "0", "traffic class", 0, 255),
    Variable("NCCL_IB_SL", INT, "0", "service level", 0, 15),
    Variable("NCCL_IB_TIMEOUT", INT, "20", "timeout exponent of RDMA", 1, 22),
    Variable("NCCL_IB_RETRY_CNT", INT, "7", "retries of RDMA", 0, 7),
    Variable("NCCL_IB_QPS_PER_CONNECTION", INT, "1", "queue pairs of a connection", 1, 128),
    Variable("NCCL_IB_SPLIT_DATA_ON_QPS", INT, "0", "split messages over them", 0, 1),
    Variable("NCCL_IB_PCI_RELAXED_ORDERING", INT, "2", "relaxed ordering on PCI", 0, 2),
    Variable("NCCL_NET_GDR_LEVEL", TEXT, "", "how far from a NIC a GPU may be for GPUDirect"),
    Variable("NCCL_NET_PLUGIN", TEXT, "", "network plugin"),
    Variable("NCCL_P2P_DISABLE", INT, "0", "no direct copies between GPUs", 0, 1),
    Variable("NCCL_P2P_LEVEL", TEXT, "", "how far apart GPUs may be for direct copies"),
    Variable("NCCL_SHM_DISABLE", INT, "0", "no shared memory", 0, 1),
    Variable("NCCL_NVLS_ENABLE", INT, "2", "NVLink SHARP", 0, 2),
    Variable("NCCL_CUMEM_ENABLE", INT, "-2", "cuMem allocation", -2, 1),
    Variable("NCCL_MNNVL_ENABLE", INT, "2", "NVLink between nodes", 0, 2),
    Variable("NCCL_MIN_NCHANNELS", INT, "", "channels at least", 1),
    Variable("NCCL_MAX_NCHANNELS", INT, "", "channels at most", 1),
    Variable("NCCL_BUFFSIZE", INT, "4194304", "bytes of a buffer", 1),
    Variable("NCCL_ALGO", TEXT, "", "algorithms"),
    Variable("NCCL_PROTO", TEXT, "", "protocols"),
    Variable("NCCL_TOPO_FILE", TEXT, "", "topology file"),
    Variable("NCCL_CROSS_NIC", INT, "2", "rings over different NICs", 0, 2),
    Variable("NCCL_GRAPH_MIXING_SUPPORT", INT, "1", "calls inside and outside of CUDA graphs", 0, 1),
)
UCX: tuple[Variable, ...] = (
    Variable("UCX_TLS", TEXT, "all", "transports"),
    Variable("UCX_NET_DEVICES", TEXT, "all", "network devices"),
    Variable("UCX_MODULES", TEXT, "", "modules that are loaded"),
    Variable("UCX_LOG_LEVEL", TEXT, "warn", "how much it logs", choices=(
        "fatal", "error", "warn", "diag", "info", "debug", "trace", "req", "data", "async", "func", "poll",
    )),
    Variable("UCX_LOG_FILE", TEXT, "", "where to"),
    Variable("UCX_PROTO_INFO", TEXT, "n", "tell which path a transfer takes", choices=("y", "n", "used")),
    Variable("UCX_PROTO_ENABLE", TEXT, "y", "the newer protocol selection", choices=("y", "n")),
    Variable("UCX_IB_GID_INDEX", TEXT, "auto", "GID of a RoCE device"),
    Variable("UCX_IB_TRAFFIC_CLASS", TEXT, "auto", "traffic class"),
    Variable("UCX_IB_SL", TEXT, "auto", "service level"),
    Variable("UCX_IB_NUM_PATHS", TEXT, "auto", "paths of a device"),
    Variable("UCX_IB_PCI_RELAXED_ORDERING", TEXT, "auto", "relaxed ordering on PCI"),
    Variable("UCX_RC_TIMEOUT", TEXT, "1000ms", "timeout of RC"),
    Variable("UCX_RC_RETRY_COUNT", INT, "7", "retries of RC", 0, 7),
    Variable("UCX_RNDV_SCHEME", TEXT, "auto", "how large messages go"),
    Variable("UCX_RNDV_THRESH", TEXT, "auto", "from which size"),
    Variable("UCX_MAX_RNDV_RAILS", INT, "2", "NICs of one large message", 1),
    Variable("UCX_MEMTYPE_CACHE", TEXT, "try", "remember what memory is of a GPU", choices=("y", "n", "try")),
    Variable("UCX_CUDA_IPC_CACHE", TEXT, "try", "remember mapped GPU memory"),
    Variable("UCX_KEEPALIVE_INTERVAL", TEXT, "20000ms", "time between looks at a peer"),
    Variable("UCX_SOCKADDR_TLS_PRIORITY", TEXT, "", "transports of a connection's first step"),
    Variable("UCX_ERROR_SIGNALS", TEXT, "", "signals it catches"),
    Variable("UCX_HANDLE_ERRORS", TEXT, "", "what it does about them"),
    Variable("UCX_WARN_UNUSED_ENV_VARS", TEXT, "y", "say which variables nobody read", choices=("y", "n")),
)  # fmt: skip
GLOO = (Variable("GLOO_SOCKET_IFNAME", TEXT, "", "interface of gloo's groups"),)
MOONCAKE: tuple[Variable, ...] = (
    *(Variable(name, INT, default, says, low, high) for name, (default, says, low, high) in NUMBERED.items()),
    *(Variable(name, TEXT, default, says, choices=chosen) for name, (default, says, chosen) in CHOSEN.items()),
    *(Variable(name, TEXT, "", "") for name in _FREE.split()),
)
VARIABLES: tuple[Variable, ...] = (*SGLANG, *MOONCAKE, *NCCL, *UCX, *GLOO)
CLOSED = ("SGLANG_DISAGG", "SGLANG_MOONCAKE_", "MC_")
FAMILIES = (*CLOSED, "SGLANG_", "NCCL_", "UCX_", "GLOO_")


def lint(env: Mapping[str, str], version: Version) -> Iterator[Remark]:
    """Everything that is wrong with these variables for a server of this release, one remark each."""
    sound = dict(env)
    for name, value in env.items():
        for remark in _variable(name, value, version):
            sound.pop(name, None)
            yield remark
    yield from _contradictions(sound, version)


def row_of_release(name: str, version: Version) -> Variable | None:
    """The row of this variable in this release, or None."""
    return next((row for row in VARIABLES if row.name == name and row.span.holds(version)), None)


def _variable(name: str, value: str, version: Version) -> Iterator[Remark]:
    row = row_of_release(name, version)
    if row is not None:
        yield from _value(row, value)
        return
    held = versions.spans("environment", name) if name.startswith("SGLANG_") else ()
    if any(span.holds(version) for span in held):
        return  # a setting of SGLang without a row here: its values are not checked
    if held:
        later = next((span for span in held if version < span.since), None)
        when = f"since {spell(later.since)}" if later else f"only until {spell(held[-1].until or version)}"
        fix = f"update SGLang to {spell(later.since)}, or remove {name}" if later else f"remove {name}"
        yield Remark(name, f"sglang {spell(version)} does not read {name} ({when})", READ, fix)
    elif name.startswith(FAMILIES):
        near = _similar_name(name, version)
        if near or name.startswith(CLOSED):
            fix = f"rename {name} to {near}" if near else f"remove {name}"
            yield Remark(name, f"nothing reads {name}", near or READ, fix)


def _similar_name(name: str, version: Version) -> str:
    """The known name of the same family that the user most likely meant, "" for none."""
    family = name.partition("_")[0] + "_"
    names = [row.name for row in VARIABLES if row.name.startswith(family) and row.span.holds(version)]
    if family == "SGLANG_":
        names += versions.names("environment", version)
    return next(iter(similar(name, names, cutoff=0.86)), "")


def _value(row: Variable, value: str) -> Iterator[Remark]:
    wrong = ""
    if row.kind == BOOL and value.strip().lower() not in (*TRUE, *FALSE):
        wrong = "is neither true nor false"
    elif row.kind in (INT, FLOAT):
        number = numerals.real(value.strip())
        if number is None or (row.kind == INT and not number.is_integer()):
            wrong = f"is not a {'whole ' if row.kind == INT else ''}number"
        elif not row.low <= number <= row.high:
            wrong = f"is not {_bounds(row)}"
    elif row.kind == JSON and not _is_object(value):
        wrong = "is not a JSON object"
    elif row.choices and value.lower() not in {choice.lower() for choice in row.choices}:
        wrong = f"is none of {', '.join(row.choices)}"
    if wrong:
        says = f" ({row.says})" if row.says else ""
        default = f", such as its default {row.default}" if row.default else ""
        expected = _expected(row)
        yield Remark(row.name, f"{row.name}={value} {wrong}", expected, f"set {row.name} to {expected}{default}{says}")


def _expected(row: Variable) -> str:
    if row.choices:
        return f"one of {', '.join(row.choices)}"
    bounded = row.low > -math.inf or row.high < math.inf
    bounds = f" {'of ' if row.high == math.inf else ''}{_bounds(row)}" if bounded else ""
    return {BOOL: "true or false", INT: "a whole number", FLOAT: "a number", JSON: "a JSON object"}[row.kind] + bounds


def _bounds(row: Variable) -> str:
    if row.high == math.inf:
        return f"at least {row.low:g}"
    return f"from {row.low:g} to {row.high:g}"


def _is_object(value: str) -> bool:
    try:
        return isinstance(json.loads(value), dict)
    except ValueError:
        return False


def _contradictions(env: Mapping[str, str], version: Version) -> Iterator[Remark]:
    """Settings that cancel each other out. SGLang uses at least 2 s between heartbeats, and at least one failure."""
    numbers = {name: _number(env, name, version) for name in (WAITING_TIMEOUT, INTERVAL, FAILURES, RELEASE_TIMEOUT)}
    waiting, interval, failures = (numbers[name] for name in (WAITING_TIMEOUT, INTERVAL, FAILURES))
    if waiting is not None and interval is not None and failures is not None:
        silence = max(interval, 2.0) * max(failures, 1.0)
        names = tuple(name for name in (INTERVAL, FAILURES, WAITING_TIMEOUT) if name in env)
        if silence > waiting and names:
            message = f"a dead prefill is noticed after {silence:g} s, when its rooms are given up after {waiting:g} s"
            fix = f"lower {INTERVAL} or {FAILURES}, or raise {WAITING_TIMEOUT}"
            yield Remark("", message, "the death is noticed before the rooms are given up", fix, names)
    release = env.get(RELEASE, "").lower()
    if release in FALSE and RELEASE_TIMEOUT in env:
        message = f"{RELEASE_TIMEOUT} has no effect while {RELEASE}={env[RELEASE]}"
        yield Remark("", message, "one of the two", f"remove {RELEASE_TIMEOUT}", (RELEASE, RELEASE_TIMEOUT))
    for low, high in (("MC_MIN_PRC_PORT", "MC_MAX_PRC_PORT"), ("MC_MIN_RPC_PORT", "MC_MAX_RPC_PORT")):
        first, last = _number(env, low, version), _number(env, high, version)
        if first is not None and last is not None and first > last and (low in env or high in env):
            message, expected = f"{low} {first:g} is above {high} {last:g}", f"{high} of {first:g} or more"
            yield Remark("", message, expected, f"set {high} to {first:g} or more", (low, high))


def _number(env: Mapping[str, str], name: str, version: Version) -> float | None:
    """The value, else the default; None if this release has no such variable, or the value is not a number."""
    row = row_of_release(name, version)
    return numerals.real(env.get(name, row.default).strip()) if row is not None else None
