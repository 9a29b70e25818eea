"""What must be switched on before an incident."""

from __future__ import annotations

from pdctl.catalogue.entry import Entry, Needs, Severity, cited

ENTRIES: tuple[Entry, ...] = (
    Entry(
        "PD801",
        "trace-blind",
        Severity.WARNING,
        "{instance|an engine} logs no line for a request that succeeds: trace-room will see only failures",
        "At INFO a room that works leaves no line in an SGLang log, on either side. With "
        "--enable-request-time-stats-logging each finished request prints its room, rid and the time of every "
        "phase, on prefill and on decode; --log-requests prints the request with its room when it arrives. Neither "
        "can be added after the incident. Next: the two flags on every engine.",
        "start every engine with --enable-request-time-stats-logging --log-requests --log-requests-level 0",
        (Needs.TOPOLOGY, Needs.ENDPOINT, Needs.LOG),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source",
    ),
    Entry(
        "PD802",
        "metrics-off",
        Severity.WARNING,
        "{instance|an engine} has no metrics: queues and transfers cannot be watched",
        "Without --enable-metrics the engine answers /metrics with 404. Only the gauges of the prealloc, transfer and "
        "bootstrap queues tell a full decode from a broken network, and num_transfer_failed_reqs_total is the only "
        "counter of failed rooms. Next: the flag on every engine.",
        "start every engine with --enable-metrics",
        (Needs.TOPOLOGY, Needs.ENDPOINT),
        "every SGLang",
        "sglang 0.5.3 to 0.5.23 source",
        reports=cited("sglang#7944 sglang#7317 sglang#8627 sglang#19009 sglang#21167"),
    ),
    Entry(
        "PD803",
        "clock-skew",
        Severity.WARNING,
        "the clock of {instance|a host} is off by {observed|seconds}",
        "Log prefixes are in local time with one-second resolution. With clocks seconds apart the same room seems to "
        "succeed before it began, and timelines of several hosts cannot be put in order. pdctl estimates the offset "
        "and says so; alerts and people do not. Next: chrony or ntpd on that host.",
        "run chronyc makestep on the host of {instance}",
        (Needs.ENDPOINT, Needs.HOST, Needs.LOG),
        "every engine",
        "observed",
    ),
    Entry(
        "PD804",
        "fd-limit",
        Severity.WARNING,
        "{instance|a process} may open {observed|1024} files, but {expected|65536} or more are needed",
        "Each room and each peer costs sockets: router connections, ZMQ sockets between every pair of ranks, the "
        "transfer library's own. At the limit new connections fail in ways that look like a network fault (\"Too "
        'many open files" in one thread, timeouts in the others). Next: `Max open files` in '
        "/proc/PID/limits of the engine, and `ulimit -n` in the shell that starts it.",
        "run ulimit -n 65536 in the shell that starts {instance|it}, and start it again",
        (Needs.HOST,),
        "every engine",
        "Linux",
    ),
    Entry(
        "PD805",
        "logs-not-collected",
        Severity.WARNING,
        "no log of {instance|an instance} was found: a failed room cannot be explained from its side",
        "A room's story is told by the logs of one prefill, one decode and the router. If one of the three is "
        "missing, the cause of a hang is usually missing too, because each side only reports that it waited. Next: "
        "where that instance's output goes.",
        "give pdctl the log of {instance} as well",
        (Needs.LOG,),
        "every engine",
        "observed",
    ),
    Entry(
        "PD806",
        "descriptors-run-out",
        Severity.WARNING,
        "{instance|a process} is about to run out of file descriptors: {observed|980 of 1024 files open}",
        "A process at its limit of open files takes no new connection: clients and peers see refusals and timeouts, "
        "and the process itself may fail wherever it opens a file. Sockets in CLOSE_WAIT are connections that the "
        "other end has closed and the process has not: where their number grows, descriptors are being leaked, and a "
        "higher limit only puts off the end. Next: /proc/PID/fd of that process, twice, a minute apart.",
        "{fix|restart the process from a shell with ulimit -n 65536}",
        (Needs.HOST,),
        "every engine and router",
        "Linux; observed",
    ),
    Entry(
        "PD807",
        "disk-full",
        Severity.ERROR,
        "the disk under {folder|the run's folder} is full, or nearly so: {observed|0 bytes left}",
        "The processes of a run write their logs there, and its supervisor the state of the run. Without space they "
        "go on serving, but what they log is lost: a room that fails from now on cannot be explained, and `pdctl "
        "status` may show an old state. Next: what fills that filesystem.",
        "make space on the filesystem of {folder|that folder}, or launch with PDCTL_HOME=DIR on another one",
        (Needs.HOST,),
        "every engine",
        "observed",
    ),
)
