"""Regular expressions that are compiled when they are first used.

Compiling one takes as long as matching a thousand lines. What a command loads names three hundred of them, and one
question meets a few.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, AnyStr, cast

if TYPE_CHECKING:
    from collections.abc import Callable

_MEMBERS = frozenset(
    {"match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}
    | {"pattern", "flags", "groups", "groupindex"}
)


class _LatePattern:
    def __init__(self, compiled: Callable[[], object]) -> None:
        self._compiled = compiled

    def __getattr__(self, name: str) -> object:
        """Compile, and keep the compiled pattern's own methods, so that later uses cost what its own cost."""
        if name not in _MEMBERS:
            raise AttributeError(f"a pattern has no {name}")
        compiled = self._compiled()
        vars(self).update({each: getattr(compiled, each) for each in _MEMBERS})
        return vars(self)[name]


def compile_late(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """What `re.compile` returns, but for `Match.re`, which is the compiled pattern, and the functions of `re`."""
    return cast("re.Pattern[AnyStr]", _LatePattern(lambda: re.compile(pattern, flags)))
