"""Real PD incidents on request: the options of `--rehearse`, and what the engine then does as SGLang would.

Every rehearsal copies something SGLang does (0.5.3 to 0.5.23) that this engine refuses to do, or an accident. All are
off unless asked for, and a process that has one reports it at its start and in /server_info.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from pdctl.engine.drill import modelled_link
from pdctl.engine.drill.modelled_link import ModelledLink
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

MARK = "REHEARSAL"


class Option(NamedTuple):
    """`value` names what may follow `=` ("[=PORT]": may be left out); `roles` are those that accept the option."""

    name: str
    value: str
    roles: tuple[str, ...]
    doc: str


OPTIONS = (
    Option(
        "null-port-fallback",
        "[=PORT]",
        ("prefill", "decode"),
        "take requests whose bootstrap_port is null; decode then asks its own --disaggregation-bootstrap-port "
        "(or PORT, as if that was it), as SGLang does",
    ),
    Option(
        "keep-unclaimed-rooms",
        "",
        ("prefill",),
        "keep page lists that nobody asked for and tell their decode nothing, as SGLang does",
    ),
    Option(
        "crash-on-page-size-mismatch",
        "",
        ("decode",),
        "end the scheduler on the first request whose prefill has another page size, as SGLang does",
    ),
    Option("slow-transfer", "=RATE", ("prefill",), "send KV cache at most that fast, such as 64KiB (per second)"),
    Option(
        "link",
        "=LINK",
        ("prefill",),
        "send KV cache as if over that network, such as 400Gbps,op=50us,latency=5us,loss=0.01%,stall=200ms/5s",
    ),
    Option(
        "die-after",
        "=N",
        ("prefill", "decode"),
        "serve N requests, then end by SIGKILL while the KV cache of the next one moves",
    ),
    Option("die-in", "=transfer", ("prefill", "decode"), "the same on the first request"),
)
HELP = "real incidents on request, off by default, each marked in the log and in /server_info:\n" + "\n".join(
    f"  {option.name}{option.value} ({', '.join(option.roles)}): {option.doc}" for option in OPTIONS
)


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """`link` None: no modelled link. `die_after` None: never. `words` are the options as given."""

    words: tuple[str, ...] = ()
    null_port_fallback: bool = False
    fallback_port: int = 0  # 0: the server's own
    keep_unclaimed_rooms: bool = False
    crash_on_page_size_mismatch: bool = False
    link: ModelledLink | None = None
    die_after: int | None = None

    @property
    def dies(self) -> bool:
        return self.die_after is not None

    def fault(self, role: str) -> str:
        """Return `die_after` in the syntax of PDCTL_FAULTS (pdctl.engine.drill.fault_points); empty if it is None."""
        step = "prefill.write" if role == "prefill" else "decode.transfer"
        return f"end:{step}@after={self.die_after}" if self.dies else ""

    @property
    def lines(self) -> tuple[str, ...]:
        """The log lines for the start, one per option."""
        docs = {option.name: option.doc for option in OPTIONS}
        return tuple(f"{MARK}: {word}: {docs[word.partition('=')[0]]}" for word in self.words)


@lru_cache
def read(words: tuple[str, ...]) -> Rehearsal:
    """Return the rehearsal that `--rehearse words` asks for. Raise ValueError with the wrong word and what is valid."""
    given: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        option = next((option for option in OPTIONS if option.name == name), None)
        if option is None:
            raise ValueError(f"{word}: no such rehearsal; there are {', '.join(option.name for option in OPTIONS)}")
        if bool(equals) is not bool(option.value) and not option.value.startswith("["):
            raise ValueError(f"{word}: write {option.name}{option.value}")
        if name in given:
            raise ValueError(f"{word}: {name} is given twice")
        given[name] = value
    if given.get("die-in", "transfer") != "transfer":
        raise ValueError(f"die-in={given['die-in']}: only `transfer` is known")
    return Rehearsal(
        words=words,
        null_port_fallback="null-port-fallback" in given,
        fallback_port=_port(given.get("null-port-fallback", "")),
        keep_unclaimed_rooms="keep-unclaimed-rooms" in given,
        crash_on_page_size_mismatch="crash-on-page-size-mismatch" in given,
        link=_link(given),
        die_after=_count(given.get("die-after", "0")) if {"die-after", "die-in"} & given.keys() else None,
    )


def misused(words: Sequence[str], role: str) -> str:
    """Return why a server of `role` cannot rehearse this; empty if it can."""
    try:
        rehearsal = read(tuple(words))
    except ValueError as error:
        return f"--rehearse {error}"
    for word in rehearsal.words:
        option = next(option for option in OPTIONS if option.name == word.partition("=")[0])
        if role not in option.roles:
            return f"--rehearse {word}: it belongs to --disaggregation-mode {' or '.join(option.roles)}, this is {role}"
    if rehearsal.fallback_port and role != "decode":
        return "--rehearse null-port-fallback=PORT: a prefill contacts nobody; leave PORT out"
    return ""


def _port(text: str) -> int:
    if text and not (text.isdecimal() and 0 < int(text) < 65536):
        raise ValueError(f"null-port-fallback={text}: a port is 1 to 65535")
    return int(text or 0)


def _link(given: dict[str, str]) -> ModelledLink | None:
    """Return the link asked for. `slow-transfer=RATE` is a link with a rate and nothing else."""
    slow, shape = given.get("slow-transfer"), given.get("link")
    if slow is not None and shape is not None:
        raise ValueError(f"slow-transfer={slow}: link={shape} says how fast the link is; give one of them")
    if slow is not None:
        try:
            return ModelledLink(rate=modelled_link.rate(slow))
        except ValueError:
            raise ValueError(f"slow-transfer={slow}: write a size per second, such as 64KiB or 1.5MB") from None
    if shape is None:
        return None
    try:
        return ModelledLink.parse(shape)
    except ValueError as error:
        raise ValueError(f"link={shape}: {error}") from None


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"die-after={text}: a whole number of requests is expected")
    return int(text)
