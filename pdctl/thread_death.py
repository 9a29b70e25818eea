"""When a thread or task that serves everybody ends on an error, the whole process ends and says why.

A process that went on without it would answer /health and serve nobody. So each such death is reported: an engine's to
its server process, a router's to its main task, a supervisor's to its mailbox. The receiver refuses new work and exits
with code 1, on which a restart policy acts. If nobody receives the report, the process ends by itself after `PATIENCE`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    Tell = Callable[[str], object]

log = logging.getLogger("pdctl")

PATIENCE = 3.0  # seconds for the server process to answer its clients before this process ends by itself


class ThreadEndedError(Exception):
    """A thread that others depend on ended on an error; the text names both."""


def in_words(error: BaseException) -> str:
    """`KeyError: 'room'`."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def end_later(reason: str, seconds: float = PATIENCE) -> None:
    """End this process with code 1 after `seconds`, whatever its other threads are doing."""

    def end() -> None:
        time.sleep(seconds)
        log.critical("This process ends: %s", reason)
        os._exit(1)

    try:
        threading.Thread(target=end, name="end", daemon=True).start()
    except RuntimeError:  # no more threads can be started
        os._exit(1)


def guard_threads(tell: Tell) -> None:
    """From now on, an error that ends any thread of this process is reported and ends the process."""

    def ended(args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread is not None else "without a name"
        error = args.exc_value if args.exc_value is not None else args.exc_type()
        reason = f"its thread {name} ended on {in_words(error)}"
        end_later(reason)
        log.critical("Thread %s hit an exception; this process ends", name, exc_info=error)
        tell(reason)

    threading.excepthook = ended


@contextlib.contextmanager
def told_threads(tell: Callable[[str, BaseException], object]) -> Iterator[None]:
    """In this context, report an error that ends a thread with the thread's name; tracebacks are printed as usual."""
    before = threading.excepthook

    def ended(args: threading.ExceptHookArgs) -> None:
        before(args)
        if args.thread is not None and args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            tell(args.thread.name, args.exc_value)

    threading.excepthook = ended
    try:
        yield
    finally:
        threading.excepthook = before


def guard_task(task: asyncio.Task[None], what: str, tell: Tell, *, may_end: bool = False) -> None:
    """Report when `task` ends other than by cancellation. `may_end`: it may also return, once its work is done."""

    def ended(task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is None and may_end:
            return
        if error is not None:
            log.critical("The %s hit an exception; this process ends", what, exc_info=error)
        tell(f"the {what} ended" + (f" on {in_words(error)}" if error is not None else " without an error"))

    task.add_done_callback(ended)


def guarded(action: Callable[[], None], what: str, tell: Tell) -> Callable[[], None]:
    """Wrap `action` for an event loop to call: an error it raises is reported, where the loop would only log it."""

    def call() -> None:
        try:
            action()
        except Exception as error:
            log.critical("The %s hit an exception; this process ends", what, exc_info=error)
            tell(f"the {what} ended on {in_words(error)}")

    return call
