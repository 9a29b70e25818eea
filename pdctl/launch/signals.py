"""Signals become messages for as long as the supervisor works; then the previous handlers are back."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from pdctl.launch.mailbox import Interrupt, Mailbox

if TYPE_CHECKING:
    from types import FrameType, TracebackType

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Signals:
        for number in CAUGHT:
            # `nohup` ignores SIGHUP on purpose; that stays so. A shell without job control ignores SIGINT for all that
            # it starts with `&`: a `kill -INT` of ours is meant all the same.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._caught)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _caught(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._mailbox.put(Interrupt(number))
