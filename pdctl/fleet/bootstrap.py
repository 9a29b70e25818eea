"""What a prefill's bootstrap server says about its ranks (sglang 0.5.3 to 0.5.23, common/conn.py)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines import numerals
from pdctl.engines.sglang import bootstrap as rows
from pdctl.fleet import address, document, http

if TYPE_CHECKING:
    from pdctl.fleet.document import Object


class Style(NamedTuple):
    """One of the two ways of GET /route: the words of the question, and the sizes in the answer when all ranks are -1.

    `sizes` in the order of AXES; empty where the releases that speak it have no such axis.
    """

    name: str
    words: tuple[str, ...]
    sizes: tuple[str, ...]

    def query(self, dp: int = -1, cp: int = -1, tp: int = -1, pp: int = -1) -> str:
        """With no rank given: the parallel layout of the whole prefill."""
        ranks = {"dp": dp, "cp": cp, "tp": tp, "pp": pp}
        return "/route?" + "&".join(f"{word}={ranks[AXIS_OF[word]]}" for word in self.words)

    def layout(self, body: Object) -> tuple[int, int, int, int] | None:
        """dp, cp, tp, pp; None when a size is missing or no size (0.5.3, 0.5.8: before the first rank registers)."""
        found = [document.integer(body.get(name)) if name else 1 for name in self.sizes]
        dp, cp, tp, pp = (size if size is not None and 0 < size < MAX_SIZE else 0 for size in found)
        return (dp, cp, tp, pp) if dp and cp and tp and pp else None


def _style(name: str) -> Style:
    row = next(row for row in rows.QUERIES if row.style == name)
    keys = {key.meaning: key.name for key in rows.SHAPE_KEYS if key.span.holds(row.span.since)}
    return Style(name, row.names, tuple(keys.get(meaning, "") for meaning in AXES.values()))


# Axis → what the dialect calls its size; and the axis that each word of a question selects a rank on.
AXES = {"dp": "dp_size", "cp": "attn_cp_size", "tp": "attn_tp_size", "pp": "pp_size"}
AXIS_OF = {
    "prefill_dp_rank": "dp",
    "prefill_cp_rank": "cp",
    "target_tp_rank": "tp",
    "target_pp_rank": "pp",
    "engine_rank": "tp",
    "target_dp_group": "dp",
}
MAX_RANKS = 1024  # of one prefill that are asked for; a layout that claims more is not believed
MAX_SIZE = 1 << 20  # ranks along one axis: more is nonsense
NEW, OLD = _style("new"), _style("old")
QUERY, OLD_QUERY = NEW.query(), OLD.query()
COUNT = re.compile(rows.NOT_COMPLETE)


@dataclass(frozen=True, slots=True)
class Registration:
    """`registered` is None where the server does not count (it is unreachable, or older than 0.5.13)."""

    reached: bool
    complete: bool
    registered: int | None = None
    reason: str = ""


def registration(host: str, port: int, ranks: int, timeout: float = 2.0) -> Registration:
    """Whether all `ranks` of the prefill whose bootstrap server is at host:port have registered."""
    base = address.join(host, port)
    answer = http.get(base + QUERY, timeout)
    if answer.status == 400:
        return _old(base, http.get(base + OLD_QUERY, timeout), ranks, timeout)
    if not answer.reached:
        return Registration(False, False, reason=answer.reason)
    if answer.ok:
        return Registration(True, True, ranks)
    return Registration(True, False, counted(answer.text), document.excerpt(answer.text))


def counted(text: str) -> int | None:
    """How many ranks an answer says have registered."""
    found = COUNT.search(text)
    return numerals.whole(found["registered"]) if found else None


def ranks_of(layout: tuple[int, int, int, int]) -> int:
    return math.prod(layout)


def _old(base: str, answer: http.Answer, ranks: int, timeout: float) -> Registration:
    """Before 0.5.13 the sizes are told from the first rank on, so the ranks are asked for one by one."""
    layout = OLD.layout(document.mapping(answer.json())) if answer.ok else None
    if layout is None or ranks_of(layout) > MAX_RANKS:
        return Registration(answer.reached, False, 0 if answer.ok else None, answer.reason)
    named = sum(http.get(base + OLD.query(*rank), timeout).ok for rank in product(*map(range, layout)))
    return Registration(True, named >= ranks, named)
