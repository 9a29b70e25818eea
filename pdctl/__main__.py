"""`pdctl` and `python -m pdctl`: answer what must be instant, then hand over to the table of verbs."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # built in; `signal` costs a third of what `--version` takes

# Until the verb runs, Ctrl-C ends this process as it ends any other, without a traceback of half an import.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # a caller may have it ignored
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import io
import os
import sys


def open_closed_streams() -> None:
    """Open standard streams that the caller closed (`<&-`, `>&-`, cron, daemons) on /dev/null.

    A closed one is None in Python, and its number would go to the next file or socket that is opened. Input is opened
    for writing and output for reading, so that both fail as closed ones do, and no answer is lost in silence.
    """
    for fd, name, mode, way in (
        (0, "stdin", "r", os.O_WRONLY),
        (1, "stdout", "w", os.O_RDONLY),
        (2, "stderr", "w", os.O_WRONLY),
    ):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, way)  # the lowest free number, which is `fd`
            os.set_inheritable(opened, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def buffer_streams() -> None:
    """Write the standard streams of PYTHONUNBUFFERED, which have no buffer, at the end of each line.

    Without a buffer, what a full disk took only in part counts as written: the rest is lost, and nothing says so.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(getattr(stream, "buffer", None), io.RawIOBase):
            descriptor, form = stream.fileno(), {"encoding": stream.encoding, "errors": stream.errors}
            setattr(sys, name, open(descriptor, "w", buffering=1, closefd=False, **form))  # noqa: SIM115


def main() -> None:
    open_closed_streams()
    buffer_streams()
    argv = sys.argv[1:]
    if argv[:1] == ["--version"] or (argv and argv[0][:1] == "-" and set(argv[0][1:]) == {"V"}):
        from pdctl import __version__

        try:
            print(f"pdctl {__version__}", flush=True)  # noqa: T201
        except OSError as error:  # a full disk, a reader that left, or a closed stream
            import errno

            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            if isinstance(error, BrokenPipeError):
                return
            fix = "write to a file or a pipe: >FILE" if error.errno == errno.EBADF else "free space there"
            sys.stderr.write(f"error: standard output: {error.strerror}\n  fix: {fix}\n")
            sys.exit(4)  # as every verb does (pdctl.cli.exits); importing that costs more than a version may
        return
    if argv[:1] == ["-m"]:  # how a one-file build starts its own modules
        from pdctl.program import run_module

        if _signal.getsignal(_signal.SIGINT) == _signal.SIG_DFL:  # as `python -m` starts them
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        run_module(argv)
        return
    if "_PDCTL_COMPLETE" in os.environ:
        from pdctl.cli.completion import complete

        complete()
        return
    import gc

    gc.disable()  # imports make no garbage; collecting while they run costs half of a bare start-up
    try:
        from pdctl.cli.exits import NO_MEMORY, run
    except (ImportError, MemoryError) as error:
        from pdctl.errors import limit_reached

        reached = limit_reached(error)
        if reached is None:
            raise
        sys.stderr.write(f"error: {reached.message}\n  fix: {reached.fix}\n")
        sys.exit(reached.exit_code)
    try:
        run(argv)
    except (
        MemoryError,
        SystemError,
    ):  # `run` answers every error; here Python had no memory to call it, or to leave it
        os.write(2, NO_MEMORY)
        os._exit(4)


if __name__ == "__main__":
    main()
