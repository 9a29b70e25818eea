"""One reason for a room that failed: the ranks of a replica agree that it did, but only some of them know why."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from pdctl.engine.kv_link.room_failure import Failure, FailureCode

if TYPE_CHECKING:
    from pdctl.engine.model.parallel import Group

NUMBERS = 192
PACKED = struct.Struct(f"<{NUMBERS}q")


def shared_failure(group: Group, own: Failure | None) -> Failure | None:
    """The failure of the lowest rank that has one, a cause before an echo. Every rank of `group` calls this."""
    if group.size == 1:
        return own
    found = [unpack(numbers) for numbers in group.gather_ints(pack(own))]
    told = [failure for failure in found if failure is not None]
    causes = [failure for failure in told if failure.code != FailureCode.ABORTED.value]
    return next(iter(causes or told), None)


def pack(failure: Failure | None) -> tuple[int, ...]:
    """As many numbers whatever it is; a long message loses its end."""
    text = f"{failure.code}\n{failure.message}" if failure else ""
    return PACKED.unpack(text.encode()[: PACKED.size].ljust(PACKED.size, b"\0"))


def unpack(numbers: tuple[int, ...]) -> Failure | None:
    text = PACKED.pack(*numbers).rstrip(b"\0").decode(errors="ignore")
    code, _, message = text.partition("\n")
    return Failure(code, message) if code else None
