"""What stands in the line of each stage of a server's start; the embedded engine writes SGLang's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.sglang.logs import life

if TYPE_CHECKING:
    from pdctl.engines.sign import Sign


def words(sign: Sign) -> str:
    """The part that is always the same in the line that proves `sign`."""
    return next(row.literal.decode() for row in life.ROWS if sign in row.proves)
