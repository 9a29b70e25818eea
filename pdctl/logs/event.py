"""What one line of a log says, as read by a row of the dialect and timed by a clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines import numerals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.engines.base import Row
    from pdctl.engines.sign import Phase, Sign


@dataclass(frozen=True, slots=True)
class Place:
    """line: 1-based; offset: the byte where the line begins in the (decompressed) file, which identifies it.

    origin: for a line from a merged stream, the path of that stream, in which `line` counts; else "".
    """

    file: str
    line: int = field(compare=False)
    offset: int
    origin: str = field(default="", compare=False)

    @property
    def path(self) -> str:
        """The file to open, in which `line` counts."""
        return self.origin or self.file

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


class Event(NamedTuple):
    """instance: the lane, that is, a run's instance name or the file's stem. rank: "" or as logged ("DP1 TP3").

    t: seconds since the epoch on the clock of the host that wrote it, None if the line carries no time;
    uncertainty_s: the line was written in [t, t + uncertainty_s), 1.0 for a prefix of whole seconds.
    values: the row's named groups, as text; room and rid are among them if the line names them.
    """

    instance: str
    role: str
    rank: str
    row: Row
    values: Mapping[str, str]
    t: float | None
    uncertainty_s: float
    place: Place
    text: str

    @property
    def phase(self) -> Phase | None:
        return self.row.phase

    def proves(self, *signs: Sign) -> bool:
        """Whether the line proves any of these signs."""
        proven = self.row.proves
        return bool(proven) and any(sign in proven for sign in signs)

    @property
    def room(self) -> int | None:
        return numerals.whole(self.values.get("room"))

    @property
    def rid(self) -> str | None:
        return self.values.get("rid")
