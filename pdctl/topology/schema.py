"""The topology file as one table: every key with its kind, default and meaning.

Reading, did-you-mean, defaults, `pdctl topology schema` and docs/topology.md all come from this table alone.
"""

from __future__ import annotations

from pdctl.engines.kinds import EMBEDDED, ENGINES, ROUTER_ALIASES, ROUTERS
from pdctl.quick_definitions import NamedTuple
from pdctl.topology.model import VERSION

LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"  # a DNS label: pool and run names become host and pod names
AFTER_A_DEATH = ("keep-serving", "none", "instance", "all")


class ValueKind(NamedTuple):
    """`name` picks the reader (checked_values.py) and the JSON Schema (export.py); `expected` ends "expected …"."""

    name: str
    expected: str
    low: float | None = None
    high: float | None = None
    open_low: bool = False  # `low` itself is not allowed
    choices: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()  # further spellings of choices, read as the choice
    pattern: str = ""  # of a text
    item: ValueKind | None = None  # of a list, or a map's values
    name_kind: ValueKind | None = None  # of a map's keys
    keys: tuple[Key, ...] = ()
    options: tuple[ValueKind, ...] = ()  # of `either`: told apart by shape


class Key(NamedTuple):
    """`default` is written as in the file; `unset` says in words what applies where there is no such value."""

    name: str
    kind: ValueKind
    default: object
    doc: str
    unset: str = "none"


class Required:
    """The key has no default: leaving it out is an error."""


class Absent:
    """A table that is nothing at all when left out, rather than a table of defaults."""


def integer(low: int, high: int | None = None) -> ValueKind:
    bounds = f"from {low} to {high}" if high is not None else f"of at least {low}"
    return ValueKind("integer", f"a whole number {bounds}", low, high)


def number(low: float, high: float | None = None, open_low: bool = False) -> ValueKind:
    bounds = f"above {low:g}" if open_low else f"from {low:g}"
    return ValueKind(
        "number", f"a number {bounds}" + (f" to {high:g}" if high is not None else ""), low, high, open_low
    )


def text(expected: str = "text", pattern: str = "") -> ValueKind:
    return ValueKind("text", expected, pattern=pattern)


def choice(*names: str) -> ValueKind:
    quoted = [f"`{name}`" for name in names]
    return ValueKind(
        "choice", quoted[0] if len(names) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}", choices=names
    )


def each(item: ValueKind, expected: str) -> ValueKind:
    return ValueKind("list", expected, item=item)


def named(item: ValueKind, expected: str, name: ValueKind | None = None) -> ValueKind:
    return ValueKind("map", expected, item=item, name_kind=name)


def table(*keys: Key) -> ValueKind:
    return ValueKind("table", "a map", keys=keys)


def either(*options: ValueKind) -> ValueKind:
    return ValueKind("either", " or ".join(option.expected for option in options), options=options)


VARIABLE = text("a name of letters, digits and _", r"[A-Za-z_][A-Za-z0-9_]*")

BOOLEAN = ValueKind("boolean", "`true` or `false`")
TEXT = text()
SIZE = ValueKind("size", "a size such as `80GiB`")
RATE = ValueKind("rate", "a bandwidth such as `400Gbps`")
DURATION = ValueKind("duration", "a time such as `30s` or `1h30m`")
PORT = integer(1, 65535)
TEXTS = each(TEXT, "a list of text")
FLAGS = named(ValueKind("flag", "a single value or a list of them"), "a map of flags")
ENV = named(ValueKind("variable", "text or a number"), "a map of environment variables", VARIABLE)
LABELS = named(TEXT, "a map of text")
NAME = text("a name of a-z, 0-9 and - (at most 63, no - at either end)", LABEL)

ROUTER_KIND = choice(*ROUTERS)._replace(aliases=ROUTER_ALIASES)
POLICY = choice(*dict.fromkeys(policy for kind in ROUTERS.values() for policy in kind.policies))._replace(
    expected="a routing policy"
)
BACKEND = choice(*dict.fromkeys(backend for kind in ENGINES.values() for backend in kind.backends))
DATE = text("a date such as `2027-01-31`", r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")
RELEASE = text("a version such as `0.5.23`", r"\d+(\.\w+)*")
GPUS = either(choice("auto", "none"), each(integer(0), "a list of GPU numbers"))

POOL = table(
    Key("gpus-per-host", integer(1, 64), 8, "GPUs of one host"),
    Key("gpu", TEXT, None, "name of the GPU, shown in tables"),
    Key("gpu-memory", SIZE, None, "memory of one GPU", "no memory verdict"),
    Key(
        "nic",
        table(
            Key("devices", TEXTS, None, "device names, such as `mlx5_0`"),
            Key("speed", RATE, None, "bandwidth of one NIC", "no transfer bill"),
            Key("count", integer(1, 64), None, "NICs of one host", "the number of devices, or 1"),
        ),
        None,
        "the network that carries KV cache",
    ),
    Key("interface", TEXT, None, "network interface whose address a host is known by", "the target decides"),
    Key("labels", LABELS, None, "labels that select the hosts"),
)
ROLE = table(
    Key("instances", integer(1, 1024), 1, "servers of this role"),
    Key("tp", integer(1, 4096), 1, "tensor parallel size of one instance: all GPUs of a pipeline stage"),
    Key("dp", integer(1, 4096), 1, "attention data parallel size: groups that `tp` is split into"),
    Key("replicas", integer(1, 4096), 1, "plain data parallel size: copies of all ranks behind one address"),
    Key("ep", integer(1, 4096), 1, "expert parallel size"),
    Key("pp", integer(1, 256), 1, "pipeline stages"),
    Key("pool", TEXT, None, "pool it runs on", "the only pool, or `default`"),
    Key("page-size", integer(1, 4096), None, "tokens of one KV page", "the engine decides"),
    Key(
        "mem-fraction",
        number(0, 1, open_low=True),
        None,
        "share of GPU memory for weights and KV",
        "the engine decides",
    ),
    Key("args", FLAGS, None, "engine flags of this role, in kebab-case without dashes"),
    Key("env", ENV, None, "environment of this role"),
    Key("spread", BOOLEAN, False, "put instances on different hosts where there are enough"),
)
ROUTER = table(
    Key("kind", ROUTER_KIND, "pdctl", "which router"),
    Key("command", TEXTS, None, "words that start the router, before its flags", "the router's own"),
    Key("host", TEXT, None, "address it listens on", "127.0.0.1 on this host, 0.0.0.0 on a cluster"),
    Key("port", PORT, 8000, "port clients use"),
    Key("policy", POLICY, "round_robin", "how a request finds its pair (mini-lb: `random`)"),
    Key("prefill-policy", POLICY, None, "policy for prefill alone", "`policy`"),
    Key("decode-policy", POLICY, None, "policy for decode alone", "`policy`"),
    Key("args", FLAGS, None, "router flags, in kebab-case without dashes"),
)
RESTART = table(
    Key("policy", choice(*AFTER_A_DEATH), "keep-serving", "what to restart when a process dies"),
    Key("max", integer(0, 1000), 3, "restarts before giving up"),
    Key("backoff", DURATION, "5s", "pause before the first restart; doubles each time"),
    Key("backoff-max", DURATION, "5m", "longest pause"),
)
READINESS = table(
    Key("timeout", DURATION, "30m", "how long instances may take to become ready"),
    Key("interval", DURATION, "1s", "pause between two probes"),
    Key("path", text("a path such as `/health`", r"/\S*"), "/health", "what is probed"),
    Key("restart", either(choice(*AFTER_A_DEATH), RESTART), None, "the policy alone, or a map"),
    Key("logs", table(Key("dir", TEXT, None, "directory of the logs", "the run's own")), None, "where logs go"),
)
IGNORE = table(
    Key("code", text("a code such as `PD410`, or its slug"), Required, "the finding"),
    Key("where", TEXT, None, "instance it is ignored at, `*` as a wildcard", "everywhere"),
    Key("because", TEXT, Required, "why it is acceptable"),
    Key("until", DATE, None, "last day; after it the finding is back", "for good"),
)
SLURM = table(
    Key("partition", TEXT, None, "partition", "the site's default"),
    Key("account", TEXT, None, "account", "the user's default"),
    Key("time", DURATION, "4h", "time limit of the allocation"),
    Key("exclusive", BOOLEAN, True, "whole hosts"),
    Key("layout", choice("hetjob", "job-per-instance"), "hetjob", "one job for all, or one for each instance"),
    Key("interface", TEXT, None, "network interface whose address a host is known by", "the node's address"),
    Key("shared-dir", TEXT, None, "directory that every host sees", "`pdctl-runs` in the working directory"),
    Key("gres", TEXT, "gpu", "generic resource that counts GPUs"),
    Key(
        "container",
        table(
            Key("image", TEXT, Required, "image every rank runs in"),
            Key("mounts", TEXTS, None, "`host:container` pairs"),
            Key("runtime", choice("pyxis", "none"), "pyxis", "what starts containers"),
        ),
        Absent,
        "run ranks in containers (not yet)",
    ),
    Key("extra-sbatch", TEXTS, None, "further lines for `#SBATCH`"),
    Key(
        "pools",
        named(
            table(
                Key("partition", TEXT, None, "partition of this pool", "`partition`"),
                Key("constraint", TEXT, None, "node features"),
                Key("account", TEXT, None, "account for this pool", "`account`"),
            ),
            "a map of pools",
        ),
        None,
        "what differs by pool",
    ),
)
KUBERNETES = table(
    Key("flavour", choice("disaggregatedset", "rbg", "lws"), "disaggregatedset", "kind of object that is rendered"),
    Key("namespace", NAME, "default", "namespace"),
    Key("image", TEXT, None, "container image", "one must be given to render"),
    Key("context", TEXT, None, "kubeconfig context", "the current one"),
    Key(
        "rdma-resource", named(integer(1), "a map of resources"), None, "RDMA devices of one pod, such as `rdma/ib: 1`"
    ),
    Key("host-network", BOOLEAN, False, "pods share the host's network"),
    Key("shm", SIZE, "16Gi", "size of /dev/shm"),
    Key("node-selector", named(LABELS, "a map of pools"), None, "labels by pool"),
    Key("tolerations", TEXTS, None, "taints of the hosts that pods tolerate, by key"),
    Key("scheduler", TEXT, None, "scheduler name", "the cluster's default"),
    Key("gang", BOOLEAN, True, "with `scheduler`: start all pods or none"),
    Key("probes", BOOLEAN, True, "render start-up, readiness and liveness probes"),
    Key("discovery", choice("urls", "pods"), None, "how the router finds servers", "`pods` if it can look for them"),
    Key("router-image", TEXT, None, "container image of the router", "`image`"),
    Key("pull-secrets", TEXTS, None, "Secrets that images are pulled with"),
    Key(
        "secrets",
        named(
            text("a Secret and its key such as `hf/token`", rf"{LABEL}/[-._a-zA-Z0-9]+"), "a map of Secrets", VARIABLE
        ),
        None,
        "environment of servers and router from Secrets, such as `HF_TOKEN: hf/token`",
    ),
    Key("gpu-resource", TEXT, "nvidia.com/gpu", "resource that counts GPUs"),
    Key(
        "volumes",
        named(
            table(
                Key("mount", text("a path such as `/models`", r"/\S*"), Required, "where pods see it"),
                Key("claim", NAME, None, "PersistentVolumeClaim", "`host-path`"),
                Key("host-path", text("a path such as `/models`", r"/\S*"), None, "directory of the host", "`claim`"),
                Key("read-only", BOOLEAN, True, "mounted read-only"),
            ),
            "a map of volumes",
            NAME,
        ),
        None,
        "storage such as checkpoints, in pods of servers",
    ),
)
TOPOLOGY = table(
    Key("version", choice(VERSION), Required, "the schema of this file"),
    Key("name", NAME, None, "name of the run", "the file's name"),
    Key(
        "model",
        table(
            Key(
                "path",
                TEXT,
                None,
                "Hugging Face id, directory (`./`, `../`: from this file), or with embedded `tiny` or `tiny-moe`",
                "needed by sglang",
            ),
            Key("served-name", TEXT, None, "name clients ask for", "the id, or the directory's name"),
            Key("dtype", TEXT, "auto", "type of the weights"),
            Key("kv-dtype", TEXT, "auto", "type of the KV cache"),
            Key("context-length", integer(1), None, "longest sequence", "the checkpoint's"),
            Key("config", TEXT, None, "a `config.json` for planning, relative to this file", "the checkpoint's"),
        ),
        None,
        "what is served",
    ),
    Key(
        "engine",
        table(
            Key("kind", choice(*ENGINES), EMBEDDED, "which engine"),
            Key("version", RELEASE, None, "release of the engine", "the latest known"),
            Key("command", TEXTS, None, "words that start the engine, before its flags", "the engine's own"),
            Key("host", TEXT, None, "address its instances listen on", "127.0.0.1 on this host, 0.0.0.0 on a cluster"),
            Key(
                "pace",
                TEXT,
                None,
                "with embedded: cost profile whose times passes take, one that ships or a file (from this file)",
                "as fast as the host",
            ),
            Key("args", FLAGS, None, "engine flags of both roles, in kebab-case without dashes"),
            Key("env", ENV, None, "environment of both roles"),
            Key("traceable", BOOLEAN, True, "with sglang: log every request with its room, and publish metrics"),
        ),
        None,
        "what serves it",
    ),
    Key("pools", named(POOL, "a map of pools", NAME), None, "hosts that are alike", "one pool named `default`"),
    Key(
        "roles",
        table(
            Key("prefill", ROLE, Required, "instances that read prompts"),
            Key("decode", ROLE, Required, "instances that write answers"),
        ),
        Required,
        "the instances of each role",
    ),
    Key("router", ROUTER, None, "where requests come in"),
    Key(
        "transfer",
        table(
            Key("backend", BACKEND, "auto", "what moves KV cache"),
            Key("ib-devices", either(choice("auto"), TEXTS), "auto", "RDMA devices"),
            Key("env", ENV, None, "environment of both roles, for the backend"),
        ),
        None,
        "how KV cache moves",
    ),
    Key(
        "ports",
        table(
            Key("http", PORT, 30000, "first HTTP port; prefill instances count up from it, then decode instances"),
            Key("bootstrap", PORT, 8998, "first bootstrap port; prefill instances count up from it"),
            Key("dist-init", PORT, 20000, "first rendezvous port"),
            Key("stride", integer(1, 4096), 32, "rendezvous ports of one instance"),
        ),
        None,
        "first ports of each kind",
    ),
    Key(
        "security",
        table(
            Key(
                "deployment-secret",
                BOOLEAN,
                True,
                "pdctl's engines and router authenticate each other with a secret that `pdctl launch` mints",
            ),
            Key("api-key-file", TEXT, None, "file with the key that pdctl's engines and router ask clients for"),
        ),
        None,
        "who authenticates to whom (docs/security.md)",
    ),
    Key("readiness", READINESS, None, "when instances count as up, and what happens when they die"),
    Key(
        "workload",
        table(
            Key("isl", integer(1), Required, "input tokens of a request"),
            Key("osl", integer(1), Required, "output tokens of a request"),
            Key("rate", number(0, open_low=True), None, "requests per second", "no rates in the plan"),
            Key("hit", number(0, 1), 0.0, "share of the input found in the prefix cache"),
        ),
        Absent,
        "the load that the plan is computed for",
    ),
    Key(
        "slo",
        table(
            Key("ttft", DURATION, None, "time to first token"),
            Key("tpot", DURATION, None, "time per output token"),
        ),
        Absent,
        "what the plan aims at",
    ),
    Key(
        "doctor",
        table(Key("ignore", each(IGNORE, "a list of findings to ignore"), None, "known findings, each with a reason")),
        None,
        "what `pdctl doctor` leaves out",
    ),
    Key(
        "targets",
        table(
            Key(
                "local",
                table(Key("gpus", GPUS, "auto", "GPUs to use")),
                None,
                "this host",
            ),
            Key("slurm", SLURM, Absent, "a Slurm cluster"),
            Key("kubernetes", KUBERNETES, Absent, "a Kubernetes cluster"),
        ),
        None,
        "where it can run",
    ),
)  # fmt: skip
