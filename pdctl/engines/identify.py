"""Who wrote a log: speaker, role, releases, backend, level, ports and arguments, from its lines alone.

Role detection: most engine rows are written by one role only (row.role), so one such line is enough. Version
detection: every row, and a few details of some lines (Adapter.hints), holds for a span of the releases that were
read; the answer is the intersection of these spans.
Nothing is assumed: what no line shows is None.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING

from pdctl.engines import numerals, versions
from pdctl.engines.base import Level, Sign, Speaker
from pdctl.engines.row_matching import adapter, adapters, hints
from pdctl.engines.versions import V0_5_3, Span, Version, spell
from pdctl.quick_definitions import NamedTuple, compile_late

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pdctl.engines.row_matching import Said, Speech
    from pdctl.engines.versions import Span


DEBUG_FLAG = "--log-level debug"
_LEVELS = tuple(Level)


class ListedPrefill(NamedTuple):
    """A prefill in a router's arguments. `port` None: the router will send null."""

    url: str
    port: int | None


class Identity(NamedTuple):
    """`since` (inclusive) and `until` (exclusive) bound the releases it can be; both None if nothing does.

    role: prefill, decode, router, unified, or "" if no line shows it. level: the lowest level seen.
    port: of its HTTP server. bootstrap_port: of the bootstrap server it runs; a decode's own flag, which is the port it
    uses if a request brings none, is facts["disaggregation_bootstrap_port"].
    timeouts: "bootstrap", "waiting" → seconds, as named in time-outs.
    facts: arguments by field name; for a router, "prefill" and "decode" as in its start line; "utc_offset".
    """

    speaker: Speaker | None = None
    role: str = ""
    since: Version | None = None
    until: Version | None = None
    backend: str = ""
    level: Level | None = None
    port: int | None = None
    bootstrap_port: int | None = None
    log_requests: bool | None = None
    time_stats: bool | None = None
    timeouts: Mapping[str, float] = MappingProxyType({})
    facts: Mapping[str, str] = MappingProxyType({})
    reasons: tuple[str, ...] = ()

    @property
    def prefills(self) -> tuple[ListedPrefill, ...]:
        """The prefills of a router's start line; () if it is not in the log.

        Those whose port is not a number are left out, because what the router sends for them is not known.
        """
        pairs = _PAIR.findall(self.facts.get("prefill", ""))
        told = ((url, port, numerals.whole(port)) for url, port in pairs)
        return tuple(ListedPrefill(url, number) for url, port, number in told if port == "None" or number is not None)

    @property
    def decodes(self) -> tuple[str, ...]:
        return tuple(_URL.findall(self.facts.get("decode", "")))


# ("http://…", Some(8998)) in the Rust routers' line, ('http://…', 8998) in that of pdctl's.
_PAIR = compile_late(r"""["'](https?://[^"']+)["'], (?:Some\()?(\d+|None)""")
_URL = compile_late(r"""["'](https?://[^"']+)["']""")


def identify(lines: Iterable[bytes], speech: Speech) -> Identity:
    """The identity these lines show; they may be a whole log, its head and tail, or three lines of an excerpt."""
    notes = _Notes()
    for _, said in speech.read(lines):
        if said is not None:
            notes.take(said)
    return notes.identity()


class _Notes:
    """What has been seen so far; the first line that shows something is given as the reason."""

    def __init__(self) -> None:
        self.speakers: Counter[Speaker] = Counter()
        self.roles: dict[str, str] = {}
        self.levels: set[Level] = set()
        self.debug_shared: set[str] = set()  # rows at DEBUG that another speaker writes at INFO
        self.since: tuple[Version, str] | None = None
        self.until: tuple[Version, str] | None = None
        self.backends: dict[str, str] = {}
        self.facts: dict[str, str] = {}
        self.found: dict[str, str] = {}  # what else was seen → why
        self.ports: dict[str, int] = {}
        self.timeouts: dict[str, float] = {}
        self._told: set[str] = set()  # rows of which another line shows nothing new

    def take(self, said: Said) -> None:
        row, values = said.row, said.values
        if row.speaker is not Speaker.LAUNCHER:  # `pdctl launch` adds its own lines to every log
            self.speakers[row.speaker] += 1
        if row.id in self._told:
            return
        why = f"`{said.prefix.message[:72]}` ({row.id})"
        if row.role:
            self.roles.setdefault(row.role, why)
        if row.backend:
            self.backends.setdefault(row.backend, why)
        self._level(said)
        known = adapter(row.speaker)
        details = hints(row.speaker, row.id) if known is not None and known.dated else ()
        if known is not None and known.dated:
            self._bound(row.span, why)
            for hint in details:
                if re.match(hint.pattern, hint.detail(said)):
                    self._bound(hint.span, why)
        if row.needs in ("--log-requests", "--enable-request-time-stats-logging"):
            self.found.setdefault(row.needs, why)
        readers = [_READERS[sign] for sign in row.proves if sign in _READERS]
        for read in readers:
            read(self, said, why)
        if not details and not readers and "(?P<seconds>" not in row.pattern:
            self._told.add(row.id)
        if "state" in values and "seconds" in values:
            name = "bootstrap" if values["state"] == "Bootstrapping" else "waiting"
            seconds = numerals.real(values["seconds"])
            if seconds is not None:
                self.timeouts[name] = min(seconds, self.timeouts.get(name, seconds))

    def _level(self, said: Said) -> None:
        row = said.row
        level = Level.DEBUG if row.needs == DEBUG_FLAG else row.level
        if level is Level.DEBUG and any(row.id in one.at_info for one in adapters() if one.shares is row.speaker):
            self.debug_shared.add(row.id)
        else:
            self.levels.add(level)

    def _bound(self, span: Span, why: str) -> None:
        if span.since > V0_5_3 and (self.since is None or span.since > self.since[0]):
            self.since = (span.since, why)
        if span.until is not None and (self.until is None or span.until < self.until[0]):
            self.until = (span.until, why)

    # --- what single rows show

    def arguments(self, said: Said, why: str) -> None:
        text = said.values["args"]
        self.facts.update(read_arguments(text))
        for mark in version_marks(text):
            self._bound(mark.span, f"{why}: it has {mark.field}")
        self._mode(why)

    def command(self, said: Said, why: str) -> None:
        self.facts.update(read_command(said.values["args"]))
        self._mode(why)

    def _mode(self, why: str) -> None:
        mode = self.facts.get("disaggregation_mode", "")
        if mode in ("prefill", "decode"):
            self.roles.setdefault(mode, why)
        elif mode == "null":
            self.roles.setdefault("unified", why)
        backend = self.facts.get("disaggregation_transfer_backend")
        if backend and mode in ("prefill", "decode"):
            self.backends.setdefault(backend, why)

    def served(self, said: Said, why: str) -> None:
        self._listens("http", said.values["port"])

    def bootstrapped(self, said: Said, why: str) -> None:
        self._listens("bootstrap", said.values.get("port") or said.values["addr"].rpartition(":")[2])

    def _listens(self, what: str, told: str) -> None:
        port = numerals.port(told)
        if port is not None:
            self.ports[what] = port

    def routed(self, said: Said, why: str) -> None:
        if Sign.WORKERS_REHEARSED in said.row.proves:
            self.found["rehearsal"] = why
        elif "rehearsal" in self.found:
            return  # that line has the ports that are really sent
        self.facts.update({name: said.values[name] for name in ("prefill", "decode", "host") if name in said.values})
        if "port" in said.values:
            self.served(said, why)

    def clock(self, said: Said, why: str) -> None:
        self.facts.setdefault("utc_offset", said.values["clock"].rpartition(" ")[2])

    def named_backend(self, said: Said, why: str) -> None:
        self.backends.setdefault(said.values["backend"], why)

    # --- the answer

    def identity(self) -> Identity:
        speaker, said = self._speaker()
        role, why_role = self._role()
        reasons = [said, why_role]
        since, until, why_version = self._version(speaker)
        reasons.append(why_version)
        backend, why_backend = next(iter(self.backends.items())) if len(self.backends) == 1 else ("", "")
        if backend:
            reasons.append(f"backend {backend}: {why_backend}")
        return Identity(
            speaker, role, since, until, backend, self._lowest(speaker), self._port("port", "http"),
            self._port("disaggregation_bootstrap_port", "bootstrap") if role == "prefill" else None,
            self._switch("log_requests", "--log-requests"),
            self._switch("enable_request_time_stats_logging", "--enable-request-time-stats-logging"),
            MappingProxyType(self.timeouts), MappingProxyType(self.facts), tuple(filter(None, reasons)),
        )  # fmt: skip

    def _speaker(self) -> tuple[Speaker | None, str]:
        seen = dict(self.speakers)
        for one in adapters():
            if one.speaker in seen and one.shares is not None:
                seen[one.speaker] += seen.pop(one.shares, 0)
        if len(seen) == 1:
            speaker, count = next(iter(seen.items()))
            return speaker, f"{speaker.value}: {count} line{'s' * (count != 1)} of its own"
        if not seen:
            return None, "no line is known"
        return None, "several speakers: " + ", ".join(f"{name.value} {count}" for name, count in sorted(seen.items()))

    def _role(self) -> tuple[str, str]:
        if len(self.roles) == 1:
            role, why = next(iter(self.roles.items()))
            return role, f"{role}: {why}"
        if not self.roles:
            return "", ""
        return "", "several roles: " + "; ".join(f"{role}: {why}" for role, why in sorted(self.roles.items()))

    def _version(self, speaker: Speaker | None) -> tuple[Version | None, Version | None, str]:
        known = adapter(speaker)
        if known is None or not known.dated:
            return None, None, ""
        since, until = self.since, self.until
        if since is not None and until is not None and since[0] >= until[0]:
            return None, None, f"lines of several releases: {since[1]} is {spell(since[0])}+, {until[1]} is older"
        parts = [f"since {spell(since[0])}: {since[1]}"] if since else []
        parts += [f"before {spell(until[0])}: {until[1]}"] if until else []
        return since[0] if since else None, until[0] if until else None, "; ".join(parts)

    def _lowest(self, speaker: Speaker | None) -> Level | None:
        levels = set(self.levels)
        if self.debug_shared:
            known = adapter(speaker)
            levels.add(Level.INFO if known is not None and self.debug_shared <= known.at_info else Level.DEBUG)
        return min(levels, key=_LEVELS.index, default=None)

    def _port(self, name: str, seen: str) -> int | None:
        if seen in self.ports:
            return self.ports[seen]
        return numerals.port(self.facts.get(name))

    def _switch(self, name: str, flag: str) -> bool | None:
        if flag in self.found:
            return True
        told = self.facts.get(name)
        return None if told is None else told == "True"


_READERS = {
    Sign.ARGUMENTS: _Notes.arguments,
    Sign.COMMAND: _Notes.command,
    Sign.HTTP_PORT: _Notes.served,
    Sign.BOOTSTRAP_LISTENS: _Notes.bootstrapped,
    Sign.WORKERS: _Notes.routed,
    Sign.CLOCK: _Notes.clock,
    Sign.BACKEND: _Notes.named_backend,
}


# --- the arguments a process was started with, from the line in which it or its launcher logs them

# The fields worth keeping, in the spelling of every release.
WANTED = frozenset({
    "model_path", "served_model_name", "host", "port", "tp_size", "pp_size", "dp_size", "attn_dp_size", "ep_size",
    "attn_cp_size", "enable_dp_attention", "nnodes", "node_rank", "dist_init_addr", "page_size", "kv_cache_dtype",
    "context_length", "chunked_prefill_size", "max_running_requests", "max_total_tokens", "mem_fraction_static",
    "load_balance_method", "attention_backend", "speculative_algorithm", "speculative_num_draft_tokens",
    "mamba_ssm_dtype",
    "disable_radix_cache", "disable_overlap_schedule", "log_level", "log_requests", "log_requests_level",
    "log_requests_format", "enable_metrics", "enable_request_time_stats_logging", "disaggregation_mode",
    "disaggregation_transfer_backend", "disaggregation_bootstrap_port", "disaggregation_ib_device",
    "disaggregation_decode_tp", "disaggregation_decode_dp", "disaggregation_prefill_pp", "num_reserved_decode_tokens",
    "disaggregation_decode_extra_slots", "disaggregation_decode_allocation_policy",
    "disaggregation_decode_polling_interval",
})  # fmt: skip

# Any name: to compile a choice of the wanted ones takes as long as thirty other patterns.
_CALL = compile_late(r"\b(\w+)=")  # ServerArgs(page_size=16, …)
_DICT = compile_late(r"'(\w+)': ")  # {'page_size': 16, …}
_VALUE = compile_late(r"'(?P<text>[^']*)'|(?P<bare>[^\s,)}\]]+)")


class Mark(NamedTuple):
    """A field that the arguments of only some releases have, so its presence bounds the version."""

    field: str
    span: Span


# Fields of ServerArgs that were added or removed, from the tables read from the wheels.
MARKED = (
    "oltp_traces_endpoint", "otlp_traces_endpoint", "log_requests_format", "nsa_prefill_cp_mode",
    "disaggregation_decode_tp", "disaggregation_decode_enable_fake_auto", "tokenizer_backend", "attn_cp_size",
    "optimistic_prefill_retries", "optimistic_prefill_attempts", "disaggregation_decode_extra_slots",
    "disaggregation_decode_allocation_policy", "attn_dp_size", "disaggregation_enable_kv_checksum",
    "enable_prefill_cp", "dcp_size", "enable_pd_role_switch", "enable_kv_cache_sharding",
)  # fmt: skip


def read_arguments(text: str) -> dict[str, str]:
    """Field → value from either of SGLang's dumps, as written but unquoted (`None` and `True` stay words)."""
    pattern = _DICT if "': " in text[:80] else _CALL
    values: dict[str, str] = {}
    at = 0
    while (found := pattern.search(text, at)) is not None:
        at = found.end()  # an object that is the value of an unwanted field may have wanted ones
        value = _VALUE.match(text, at) if found[1] in WANTED else None
        if value is not None:
            values[found[1]] = value["text"] if value["text"] is not None else value["bare"]
            at = value.end()
    return values


def version_marks(text: str) -> Iterator[Mark]:
    """The fields in a dump of the arguments that only some releases have."""
    for name in MARKED:
        if f"{name}=" in text or f"'{name}':" in text:
            yield Mark(name, versions.span("records", "ServerArgs", name))


def read_command(text: str) -> dict[str, str]:
    """Field → value from a command line: `--tp-size 2`, `--page-size=16`; a flag without a value is "True"."""
    try:
        parts = shlex.split(text)
    except ValueError:  # cut inside a quoted string
        parts = text.split()
    out: dict[str, str] = {}
    for at, part in enumerate(parts):
        if not part.startswith("--"):
            continue
        flag, assigned, value = part[2:].partition("=")
        name = flag.replace("-", "_")
        if name not in WANTED:
            continue
        following = parts[at + 1] if at + 1 < len(parts) else "--"
        out[name] = value if assigned else "True" if following.startswith("--") else following
    return out
