"""Which command lines start an engine or a router, and where their flags begin."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.doctor.manifest import Word


class Program(NamedTuple):
    """`kind` is an engine (sglang, dynamo, embedded) or a router (sglang, smg, mini_lb, embedded)."""

    role: str  # engine | router
    kind: str
    flags: tuple[Word, ...]


# Words that stand next to each other in the command line: sglang 0.5.3 to 0.5.23, sglang_router 0.3.2, smg 1.13.0.
LINES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("engine", "sglang", ("-m", "sglang.launch_server")),
    ("engine", "dynamo", ("-m", "dynamo.sglang")),
    ("engine", "embedded", ("-m", "pdctl.engine")),
    ("router", "sglang", ("-m", "sglang_router.launch_router")),
    ("router", "sglang", ("sglang-router", "launch")),
    ("router", "smg", ("smg", "launch")),
    ("router", "embedded", ("-m", "pdctl.router")),
)


def program(argv: Sequence[Word]) -> Program | None:
    """None for any other command."""
    texts = [word.text.rpartition("/")[2] if at == 0 else word.text for at, word in enumerate(argv)]
    for role, kind, words in LINES:
        for at in range(len(texts) - 1):
            if tuple(texts[at : at + len(words)]) == words:
                flags = tuple(argv[at + len(words) :])
                small = kind == "sglang" and role == "router" and any(word.text == "--mini-lb" for word in flags)
                return Program(role, "mini_lb" if small else kind, flags)
    return None
