"""One real request through every prefill and decode pair before a deployment counts as serving.

The requests are doctor's canary (fleet/canary.py): the same body to both legs, with the bootstrap port the plan gave
the prefill, so that what is verified are the engines, whatever the router knows.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pdctl.fleet import canary
from pdctl.fleet.canary import Prompt, Side
from pdctl.launch.mailbox import Paired

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.fleet.facts import Canary
    from pdctl.launch.deployment import Spec

PROMPT = Prompt("Hello", tokens=2)
AT_ONCE = 8


def start(
    prefills: tuple[Spec, ...],
    decodes: tuple[Spec, ...],
    timeout: float,
    whole: float,
    post: Callable[[Paired], None],
    key: str = "",
) -> None:
    """Try all pairs, a few at once, off the caller's thread; one message each. Seconds: for one pair, for all."""

    def told(cell: Canary) -> None:
        post(Paired(cell.prefill, cell.decode, cell.reason, cell.seconds))

    def work() -> None:
        ends = [_side(spec) for spec in prefills], [_side(spec) for spec in decodes]
        canary.matrix(*ends, whole, prompt=PROMPT, patience=timeout, at_once=AT_ONCE, key=key, told=told)

    threading.Thread(target=work, name="verify", daemon=True).start()


def _side(spec: Spec) -> Side:
    return Side(spec.name, spec.url, spec.host, spec.bootstrap_port)
