"""The door to this room: files in, a topology's text and what is to be said about it out."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple

from pdctl.errors import UsageError
from pdctl.imports.document import draft
from pdctl.imports.gather import gather
from pdctl.imports.notes import Note, Notes, Sort
from pdctl.imports.verify import settled
from pdctl.manifests.read import STDIN, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Import(NamedTuple):
    """`text` is a topology that can be checked. summary: what it holds, in one line. feasible: whether it can run."""

    text: str
    notes: tuple[Note, ...]
    summary: str
    feasible: bool

    @property
    def incomplete(self) -> bool:
        return any(note.sort in (Sort.SUSPECT, Sort.LEFT_OUT) for note in self.notes)


def read(files: Sequence[str], known: Mapping[str, str], name: str | None, environ: Mapping[str, str]) -> Import:
    """UsageError for files that cannot be read, or that start no pair of prefill and decode."""
    if files.count(STDIN) > 1:
        raise UsageError("standard input can be read once", "name - once")
    texts = [("<stdin>" if each == STDIN else each, text_of(each)) for each in files]
    return of_texts(texts, known, name or _name(files), environ)


def of_texts(
    texts: Sequence[tuple[str, str]], known: Mapping[str, str], name: str, environ: Mapping[str, str]
) -> Import:
    """As `read`, of (name, text) pairs."""
    notes = Notes()
    found = gather(texts, known, notes)
    if not found.engines and not found.routers:
        names = ", ".join(each for each, _ in texts)
        raise UsageError(
            f"nothing in {names} starts an SGLang engine or a router",
            "name scripts or manifests whose commands contain sglang.launch_server, or a recipe of srt-slurm",
        )
    made = draft(found, name, notes)
    head = [f"Imported by pdctl from {', '.join(PurePath(each).name for each, _ in texts)}."]
    settled_ = settled(made, head, "<imported>", environ, notes)
    roles = [f"{sum(seat.instance.role == role for seat in made.seats)} {role}" for role in ("prefill", "decode")]
    feasible = settled_.plan is not None and settled_.plan.feasible
    return Import(settled_.text, notes.listed(), ", ".join(roles), feasible)


def _name(files: Sequence[str]) -> str:
    """The file's; its directory's where several files are one deployment, and for a compose file, as compose has it."""
    if files[0] == STDIN:
        return "imported"
    first = Path(files[0])
    shared = len(files) > 1 or first.stem in ("compose", "docker-compose")
    return (first.resolve().parent.name if shared else "") or first.stem
