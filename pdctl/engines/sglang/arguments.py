"""Every flag of `python -m sglang.launch_server`, release by release, and how each release spells a plan's decisions.

The flags, their number of values and the values they allow come from the table read from the releases' wheels
(pdctl/engines/releases/sglang/flags.tsv); the replacements of removed flags are written here.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from pdctl.engines import versions
from pdctl.engines.versions import (
    SGLANG,
    V0_5_3,
    V0_5_8,
    V0_5_9,
    V0_5_10,
    V0_5_22,
    Release,
    Span,
    Version,
    span_of,
    spell,
)
from pdctl.quick_definitions import NamedTuple
from pdctl.suggestions import similar

if TYPE_CHECKING:
    from collections.abc import Iterable


class Spelling(NamedTuple):
    """The command-line words for one decision; `{}` stands for its value."""

    meaning: str
    words: tuple[str, ...]
    span: Span = Span()


SPELLINGS: tuple[Spelling, ...] = (
    Spelling("model_path", ("--model-path", "{}")),
    Spelling("served_model_name", ("--served-model-name", "{}")),
    Spelling("host", ("--host", "{}")),
    Spelling("port", ("--port", "{}")),
    Spelling("tp", ("--tp-size", "{}")),
    Spelling("pp", ("--pp-size", "{}")),
    Spelling("ep", ("--ep-size", "{}")),
    # 0.5.22 split the old --dp-size: the attention width got its own flag, and --dp-size counts only replicas.
    Spelling("attn_dp", ("--dp-size", "{}", "--enable-dp-attention"), Span(V0_5_3, V0_5_22)),
    Spelling("attn_dp", ("--attn-dp-size", "{}"), Span(V0_5_22)),
    Spelling("replicas", ("--dp-size", "{}")),
    Spelling("attn_cp", ("--attn-cp-size", "{}"), Span(V0_5_9)),
    Spelling("moe_dp", ("--moe-dp-size", "{}"), Span(V0_5_9)),
    Spelling("deepep", ("--moe-a2a-backend", "deepep")),
    Spelling("nnodes", ("--nnodes", "{}")),
    Spelling("node_rank", ("--node-rank", "{}")),
    Spelling("dist_init_addr", ("--dist-init-addr", "{}")),
    Spelling("nccl_port", ("--nccl-port", "{}")),
    Spelling("base_gpu_id", ("--base-gpu-id", "{}")),
    Spelling("gpu_id_step", ("--gpu-id-step", "{}")),
    Spelling("disaggregation_mode", ("--disaggregation-mode", "{}")),
    Spelling("transfer_backend", ("--disaggregation-transfer-backend", "{}")),
    Spelling("bootstrap_port", ("--disaggregation-bootstrap-port", "{}")),
    Spelling("ib_device", ("--disaggregation-ib-device", "{}")),
    # Before 0.5.10 each side had to be given the other's width; the defaults are the side's own.
    Spelling("decode_tp", ("--disaggregation-decode-tp", "{}"), Span(V0_5_3, V0_5_10)),
    Spelling("decode_dp", ("--disaggregation-decode-dp", "{}"), Span(V0_5_3, V0_5_10)),
    Spelling("prefill_pp", ("--disaggregation-prefill-pp", "{}"), Span(V0_5_3, V0_5_10)),
    # 0.5.3 refuses a decode with dp > 1 without it (outside its CI); later releases ignore it.
    Spelling("decode_follows_room", ("--prefill-round-robin-balance",), Span(V0_5_3, V0_5_8)),
    Spelling("no_overlap", ("--disable-overlap-schedule",)),
    Spelling("page_size", ("--page-size", "{}")),
    Spelling("mem_fraction", ("--mem-fraction-static", "{}")),
    Spelling("dtype", ("--dtype", "{}")),
    Spelling("kv_dtype", ("--kv-cache-dtype", "{}")),
    Spelling("context_length", ("--context-length", "{}")),
    # For tracing: one line per finished request with its room, and one per request without its text.
    Spelling("time_stats", ("--enable-request-time-stats-logging",)),
    Spelling("log_requests", ("--log-requests", "--log-requests-level", "{}")),
    Spelling("metrics", ("--enable-metrics",)),
)


def words(meaning: str, version: Version, value: object = None) -> tuple[str, ...]:
    """The command-line words for one decision; () if this release has no such flag."""
    for row in SPELLINGS:
        if row.meaning == meaning and row.span.holds(version):
            return tuple(str(value) if word == "{}" else word for word in row.words)
    return ()


class Argument(NamedTuple):
    """`takes`: "" no value, "=" one, "=*" one or more, "=?" one or none."""

    name: str
    takes: str
    span: Span


class Gap(NamedTuple):
    """A flag a release does not have.

    instead: what it has instead, in words, or "". sure False: only a neighbouring release was read. write: the flag to
    write in its place (without dashes; with a value as `flag: value`), or "". ever False: no release that was read
    has it.
    """

    why: str
    instead: str
    sure: bool
    write: str = ""
    ever: bool = True


ALWAYS = ("help",)  # argparse's own
MOST_LISTED = 4  # flags with a common prefix named in a message

# A flag's nearest successor, if there is one: the flag, or the words to write instead.
SUCCESSORS: dict[str, str] = {
    "collect-tokens-histogram": "enable-metrics",
    "cuda-graph-bs": "cuda-graph-bs-decode",
    "cuda-graph-max-bs": "cuda-graph-max-bs-decode",
    "dsa-prefill-cp-mode": "cp-strategy",
    "elastic-ep-rejoin": "elastic-ep-join-mode: recover",
    "enable-deepep-moe": "moe-a2a-backend: deepep",
    "enable-dsa-prefill-context-parallel": "enable-prefill-cp",
    "enable-ep-moe": "the key `ep`",
    "enable-expert-distribution-metrics": "expert-balancedness-report-mode",
    "enable-flashinfer-cutedsl-moe": "moe-runner-backend: flashinfer_cutedsl",
    "enable-flashinfer-cutlass-moe": "moe-runner-backend: flashinfer_cutlass",
    "enable-flashinfer-mxfp4-moe": "moe-runner-backend: flashinfer_mxfp4",
    "enable-flashinfer-trtllm-moe": "moe-runner-backend: flashinfer_trtllm",
    "enable-gdn-replayssm-spec": "enable-linear-replayssm-spec",
    "enable-nsa-prefill-context-parallel": "enable-prefill-cp",
    "enable-prefill-context-parallel": "enable-prefill-cp",
    "enable-triton-kernel-moe": "moe-runner-backend: triton_kernel",
    "enforce-piecewise-cuda-graph": "cuda-graph-backend-prefill: tc_piecewise",
    "hybrid-kvcache-ratio": "swa-full-tokens-ratio",
    "keep-mm-feature-on-device": "mm-feature-transport: cuda_ipc",
    "mamba-scheduler-strategy": "mamba-radix-cache-strategy",
    "max-micro-batch-size": "pp-max-micro-batch-size",
    "nsa-decode": "nsa-decode-backend",
    "nsa-decode-backend": "dsa-decode-backend",
    "nsa-prefill": "nsa-prefill-backend",
    "nsa-prefill-backend": "dsa-prefill-backend",
    "nsa-prefill-cp-mode": "cp-strategy",
    "oltp-traces-endpoint": "otlp-traces-endpoint",
    "optimistic-prefill-retries": "optimistic-prefill-attempts",
    "piecewise-cuda-graph-max-tokens": "cuda-graph-max-bs-prefill",
    "piecewise-cuda-graph-tokens": "cuda-graph-bs-prefill",
    "prefill-cp-mode": "cp-strategy",
    "speculative-dflash-draft-window-size": "speculative-draft-window-size",
    "speculative-ngram-max-match-window-size": "speculative-ngram-max-trie-depth",
    "stream-output": "incremental-streaming-output",
}


@cache
def arguments() -> dict[str, tuple[Argument, ...]]:
    """By name without dashes; several if a flag was missing from some releases, or the values it takes changed."""
    spans: dict[str, list[Argument]] = {}
    for item in versions.items("flags"):
        name, takes = item.cells[0], item.cells[1]
        spans.setdefault(name, []).append(Argument(name, takes, span_of(item)))
    return {name: tuple(_joined(sorted(found, key=lambda one: one.span.since))) for name, found in spans.items()}


def _joined(found: list[Argument]) -> list[Argument]:
    """Merge adjacent spans that differ only in choices or default."""
    out: list[Argument] = []
    for one in found:
        last = out[-1] if out else None
        if last is not None and last.takes == one.takes and last.span.until == one.span.since:
            out[-1] = Argument(one.name, one.takes, Span(last.span.since, one.span.until))
        else:
            out.append(one)
    return out


@cache
def _choices() -> dict[str, tuple[tuple[Span, tuple[str, ...]], ...]]:
    found: dict[str, tuple[tuple[Span, tuple[str, ...]], ...]] = {}
    for item in versions.items("flags"):
        name, allowed = item.cells[0], item.cells[3]
        if allowed and allowed != "?":  # "?": the values are collected when the server starts
            found[name] = (*found.get(name, ()), (span_of(item), tuple(allowed.split("|"))))
    return found


def argument(name: str, version: Version) -> Argument | None:
    """The flag as this release has it, or None."""
    return next((one for one in arguments().get(name, ()) if one.span.holds(version)), None)


def choices(name: str, version: Version) -> tuple[str, ...]:
    """The values a flag may have in this release; () if it accepts any, or only the running server knows them."""
    return next((allowed for span, allowed in _choices().get(name, ()) if span.holds(version)), ())


def any_choices(name: str) -> tuple[str, ...]:
    """The values that any release allows; () if one of them accepts any value."""
    found = [choices(name, version) for version in SGLANG if argument(name, version) is not None]
    return tuple(dict.fromkeys(value for allowed in reversed(found) for value in allowed)) if all(found) else ()


def gap(name: str, release: Release | None) -> Gap | None:
    """Why the release lacks a flag; None if it has it. `release` None: None if any release has it."""
    if release is None:
        return None if any(_exists_in(name, version) for version in SGLANG) else _never(name, SGLANG, True)
    version, exact = release.known, not release.note
    if _exists_in(name, version):
        return None
    rows = arguments().get(name)
    if rows is None:
        return _never(name, (version,), exact)
    later = min((row.span.since for row in rows if row.span.since > version), default=None)
    if later is not None:
        before = next((old for old in SUCCESSORS if _leads_to(old, name) and argument(old, version)), "")
        return Gap(f"since {spell(later)}", f"it has --{before}" if before else "", exact, before)
    last = max(row.span.until for row in rows if row.span.until is not None)
    return Gap(f"only until {spell(last)}", *_successor(name, version))


def full_name(name: str, version: Version | None) -> str:
    """The flag that `name` abbreviates, which argparse accepts if only one flag begins so; else `name` itself.

    version None: the release is not known, and the newest that accepts the abbreviation decides.
    """
    if name in arguments():
        return name
    for each in (version,) if version is not None else reversed(SGLANG):
        found = _abbreviated(name, each)
        if len(found) == 1:
            return found[0]
    return name


def _exists_in(name: str, version: Version) -> bool:
    return name in ALWAYS or argument(name, version) is not None or len(_abbreviated(name, version)) == 1


def _abbreviated(name: str, version: Version) -> list[str]:
    """The flags that begin with `name`; argparse accepts the abbreviation if there is only one."""
    names = _sorted_names(version)
    first = bisect_left(names, (name,))
    last = bisect_left(names, (name + "\U0010ffff",))
    return [known for _, known in sorted((at, known) for known, at in names[first:last])]


@cache
def _names(version: Version) -> tuple[str, ...]:
    return tuple(name for name in arguments() if argument(name, version) is not None)


@cache
def _sorted_names(version: Version) -> list[tuple[str, int]]:
    """Each name with its place in the table: a script may have thousands of flags, each asked of every release."""
    return sorted((name, at) for at, name in enumerate(_names(version)))


@lru_cache(maxsize=4096)
def _never(name: str, versions: tuple[Version, ...], exact: bool) -> Gap:
    several = _abbreviated(name, versions[-1])
    if several:
        listed = ", ".join(f"--{each}" for each in several[:MOST_LISTED]) + (", …" if several[MOST_LISTED:] else "")
        return Gap(f"{len(several)} flags begin so: {listed}", "write one of them in full", exact, several[0], False)
    near = nearest_flag(name, _names_of(versions))
    return Gap("no release pdctl knows has it", f"did you mean --{near}?" if near else "", exact, near, False)


@lru_cache(maxsize=64)
def _names_of(versions: tuple[Version, ...]) -> tuple[str, ...]:
    """The names of all of them, the newest release's first."""
    return tuple(dict.fromkeys(known for version in reversed(versions) for known in _names(version)))


def _successor(name: str, version: Version) -> tuple[str, bool, str]:
    """What the release has in its place: in words, whether this is certain, and what to write."""
    while name in SUCCESSORS:
        words = SUCCESSORS[name]
        name = words.partition(":")[0]
        if " " in name:
            return f"it has {words}", True, ""
        if argument(name, version) is not None:
            return (f"it has --{name}" if name == words else f"write `{words}`"), True, words
    return "", True, ""


def _leads_to(old: str, new: str) -> bool:
    while old in SUCCESSORS:
        old = SUCCESSORS[old]
        if old == new:
            return True
    return False


def nearest_flag(name: str, known: Iterable[str]) -> str:
    """The flag that the user most likely meant, "" for none."""
    return next(iter(similar(name, known, cutoff=0.8)), "")
