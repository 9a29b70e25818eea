"""What the files say, independent of their form: engines, routers and their surroundings; and an import's notes."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.manifests.command_lines import Flag, Flags, Listed
    from pdctl.manifests.manifest import ManifestPod, SaidSetting

ROLES = ("prefill", "decode")
TRUTHS = ("", "true", "1")
# Flags of a node, not of an instance: where it listens, and which of its instance's nodes it is.
PLACEMENT = (
    "host", "port", "nnodes", "node-rank", "dist-init-addr", "nccl-port", "base-gpu-id", "gpu-id-step",
    "disaggregation-bootstrap-port",
)  # fmt: skip
# Variables of a node: which of its GPUs it sees, and what it is called.
GPU_LISTS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
OF_NODE = (*GPU_LISTS, "NODE_RANK", "RANK", "HOST_IP")


class FoundEngine(NamedTuple):
    """One command line of an engine; in a manifest it stands for all the pods that it starts.

    `kind`: sglang, dynamo or embedded. `command`: the words that start it, empty for the usual ones. `copies`: number
    of instances, None if unknown. `nodes`: per instance, if the enclosing object says so. `host`: where it runs, if
    the form of the file tells. `part`: leader or worker of a group with two templates, else "".
    """

    role: str
    kind: str
    flags: Flags
    env: Mapping[str, SaidSetting]
    place: str
    group: str
    copies: int | None = None
    nodes: int | None = None
    gpus: int | None = None
    image: str = ""
    host: str = ""
    part: str = ""
    command: tuple[str, ...] = ()
    pod: ManifestPod | None = None

    def number(self, *names: str) -> int | None:
        return self.flags.number(*names)

    def said(self, name: str) -> str:
        """The place of a flag; that of the engine if the flag is not given."""
        flag = self.flags.find(name)
        return flag.place if flag is not None and flag.place else self.place

    @property
    def node(self) -> int | None:
        return self.flags.number("node-rank")


class FoundRouter(NamedTuple):
    """`kind`: sglang-router, smg, mini-lb, pdctl or dynamo. `listed`: its workers by role, in order."""

    kind: str
    flags: Flags
    listed: Mapping[str, tuple[Listed, ...]]
    place: str
    image: str = ""
    command: tuple[str, ...] = ()
    pod: ManifestPod | None = None


class Found(NamedTuple):
    """`sections`: what a recipe says besides roles and router, under the topology's keys."""

    engines: tuple[FoundEngine, ...]
    routers: tuple[FoundRouter, ...]
    sections: Mapping[str, object]
    form: str  # script | compose | recipe | kubernetes


def bare(flag: Flag) -> bool:
    """Whether a flag is given without a value, or with `true` or `1`, which mean the same."""
    return not flag.values or (len(flag.values) == 1 and flag.values[0].lower() in TRUTHS)


class Sort(str, Enum):
    """LEFT_OUT: a topology cannot express it. ASSUMED: the files do not say. CHANGED: pdctl does it differently."""

    SUSPECT = "looks wrong"
    LEFT_OUT = "left out"
    CHANGED = "changed"
    ASSUMED = "assumed"


class Note(NamedTuple):
    """`place`: file:line, or "" if the note is about the whole import."""

    sort: Sort
    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.sort.value}: {self.place}: {self.text}" if self.place else f"{self.sort.value}: {self.text}"


class Notes:
    """Collects the notes of an import, each once."""

    def __init__(self) -> None:
        self._found: dict[Note, None] = {}

    def suspect(self, place: str, text: str) -> None:
        self._found.setdefault(Note(Sort.SUSPECT, place, text))

    def left_out(self, place: str, text: str) -> None:
        self._found.setdefault(Note(Sort.LEFT_OUT, place, text))

    def changed(self, place: str, text: str) -> None:
        self._found.setdefault(Note(Sort.CHANGED, place, text))

    def assumed(self, place: str, text: str) -> None:
        self._found.setdefault(Note(Sort.ASSUMED, place, text))

    def listed(self) -> tuple[Note, ...]:
        """All notes: first what looks wrong; within each sort, notes with a place before those without."""
        order = list(Sort)
        return tuple(sorted(self._found, key=lambda note: (order.index(note.sort), not note.place)))
