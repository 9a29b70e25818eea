"""Whether a TCP port takes a connection from here: connected and closed at once, nothing is sent."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from pdctl.fleet.address import Unanswered, places, words

if TYPE_CHECKING:
    from pdctl.fleet.deadline import Deadline


def dial(host: str, port: int, deadline: Deadline) -> str:
    """Empty when it was reached, else why not."""
    try:
        found = places(host, port, deadline)
    except Unanswered as error:
        return str(error)
    reason = "no address"
    for number, place in enumerate(found):
        share = deadline.left / (len(found) - number)
        if not share:
            return f"no connection within {deadline.seconds:.3g} s"
        try:
            with socket.socket(place.family, socket.SOCK_STREAM) as line:
                line.settimeout(share)
                line.connect(place.address)
        except TimeoutError:
            reason = f"no connection within {deadline.seconds:.3g} s"
        except OSError as error:
            reason = words(error)
        else:
            return ""
    return reason
