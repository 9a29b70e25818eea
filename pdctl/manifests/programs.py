"""Which command lines start an engine or a router, and where their flags begin."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.manifests.manifest import Word


class Program(NamedTuple):
    """`kind` is an engine (sglang, dynamo, embedded) or a router (sglang-router, smg, mini-lb, pdctl).

    `head` is what stands before the words that name it: an interpreter, `numactl …`, `docker run …`.
    """

    role: str  # engine | router
    kind: str
    flags: tuple[Word, ...]
    head: tuple[Word, ...] = ()


# Words that stand next to each other in the command line: sglang 0.5.3 to 0.5.23, sglang_router 0.3.2, smg 1.13.0.
LINES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("engine", "sglang", ("-m", "sglang.launch_server")),
    ("engine", "sglang", ("sglang", "serve")),
    ("engine", "dynamo", ("-m", "dynamo.sglang")),
    ("engine", "embedded", ("-m", "pdctl.engine")),
    ("router", "sglang-router", ("-m", "sglang_router.launch_router")),
    ("router", "sglang-router", ("sglang-router", "launch")),
    ("router", "smg", ("smg", "launch")),
    ("router", "mini-lb", ("-m", "sglang.srt.disaggregation.mini_lb")),  # a stub that points to the wheel since 0.5.3
    ("router", "pdctl", ("-m", "pdctl.router")),
)


def program(argv: Sequence[Word]) -> Program | None:
    """None for any other command."""
    texts = [word.text.rpartition("/")[2] if at == 0 else word.text for at, word in enumerate(argv)]
    for role, kind, words in LINES:
        for at in range(len(texts) - 1):
            if tuple(texts[at : at + len(words)]) == words:
                flags = tuple(argv[at + len(words) :])
                small = kind == "sglang-router" and any(word.text == "--mini-lb" for word in flags)
                return Program(role, "mini-lb" if small else kind, flags, tuple(argv[:at]))
    return None
