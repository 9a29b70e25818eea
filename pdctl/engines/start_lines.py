"""What stands in the line of each stage of a server's start; the embedded engine writes SGLang's."""

from __future__ import annotations

from pdctl.engines.sglang.logs import life
from pdctl.engines.sign import Sign

LISTENS, WEIGHTS_LOADED, READY = (
    next(row.literal.decode() for row in life.ROWS if sign in row.proves)
    for sign in (Sign.LISTENS, Sign.WEIGHTS_LOADED, Sign.READY)
)
