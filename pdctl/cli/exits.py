"""End the process: with the exit code a verb returned or an error carries, on a signal, or with a report of a bug."""

from __future__ import annotations

import codecs
import contextlib
import errno
import gc
import io
import os
import signal
import sys
from typing import TYPE_CHECKING

from pdctl import __version__, program
from pdctl.errors import (
    ExitCode,
    MissingExtraError,
    PdctlError,
    StorageError,
    TopologyError,
    limit_reached,
    memory_used_up,
)
from pdctl.render import term

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import NoReturn


# Errors of pdctl's environment: full, read-only, broken or forbidden files and devices.
SURROUNDINGS = frozenset({
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG,
    errno.ENOTDIR, errno.EISDIR, errno.ESTALE, errno.ENXIO, errno.ENODEV, errno.EFBIG, errno.ETXTBSY,
})  # fmt: skip
STREAMS = ("standard output", "standard error")  # as `Term` names them; without these EBADF is a bug

YOUNG = 50_000  # objects between garbage collections; with Python's 700 they take a tenth of a small verb's time

MOST_REPEATED = 200  # letters of a word of the command line that an error repeats
SEPARATORS = ",=:."

NO_MEMORY = b"error: out of memory\n  fix: raise the limit of this shell (ulimit -v unlimited) or of this container\n"
INTERRUPTED = 130  # Typer's exit code for a KeyboardInterrupt that no verb handled


# Replacements of our own characters if the terminal's encoding lacks them; all others are escaped.
PLAIN = {
    "…": "...", "→": "->", "×": "x", "─": "-", "±": "+-", "✗": "x", "✓": "ok", "–": "-", "│": "|", "├": "|", "└": "`",
    "━": "=", "╌": "-", "┊": ":", "╭": ",", "░": ".", "○": "o",
    "≥": ">=", "●": "*", "·": ".", "▶": ">", "µ": "u", "²": "^2", "³": "^3", "⁰": "^0", "⁵": "^5", "⁹": "^9",
}  # fmt: skip
WITHOUT_LETTERS = "pdctl.plain"


def run(argv: Sequence[str]) -> None:
    """Run one verb and exit with the code listed in docs/cli.md, also for a bug, which is reported."""
    try:
        from pdctl.cli import app

        words = app.respelt(argv)
        verb = app.prepare(words)
        if verb is None:
            from pdctl.cli import usage  # imported late: it loads Typer

            verb = usage.prepare(words)
        gc.freeze()  # what is imported by now stays; the imports of the verb create no garbage either
        gc.set_threshold(YOUNG)
        gc.enable()
        codecs.register_error(WITHOUT_LETTERS, plain)
        for stream in (sys.stdout, sys.stderr):  # names and logs may contain characters that the terminal lacks
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors=WITHOUT_LETTERS)
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            code = verb()
        finally:
            term.out().flush()  # flush here, where a full disk or a closed pipe is still handled
        if code == INTERRUPTED:
            reraise(signal.SIGINT)
        _leave(code if isinstance(code, int) else ExitCode.OK)
    except PdctlError as error:
        _say(_shortened(error, argv))
        _leave(error.exit_code)
    except BrokenPipeError:
        # The reader of a verb that follows went away (`pdctl logs -f | head`): there is nobody to follow for.
        term.silence(sys.stdout)
        _leave(ExitCode.OK)
    except OSError as error:
        outside = error.errno in SURROUNDINGS or (error.errno == errno.EBADF and error.filename in STREAMS)
        reached = limit_reached(error) or (_refused(error) if outside else None)
        if reached is not None:
            _say(_shortened(reached, argv))
            term.silence(sys.stdout)
            _leave(reached.exit_code)
        _unexpected(error)
    except KeyboardInterrupt:
        reraise(signal.SIGINT)
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing in {"", "pdctl"}:
            _unexpected(error)
        refusal = MissingExtraError(
            f"{program.FILE or sys.executable} has no module `{missing}`, which pdctl needs",
            "use the Python that pdctl was installed for, or install pdctl for this one with pip",
        )
        _say(refusal)
        _leave(refusal.exit_code)
    except Exception as error:  # noqa: BLE001 - the exit policy is the one blanket handler: a bug becomes a report
        _unexpected(error)


def _unexpected(error: Exception) -> NoReturn:
    """Say which limit was reached, or report a bug. Where memory is used up, nothing can be told from a bug."""
    try:
        short = memory_used_up()
        reached = limit_reached(error) or short
        if reached is None:
            _report()
        else:
            _say(reached)
        if short is not None:  # an orderly exit needs memory too
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            os._exit(ExitCode.NOT_PROBED)
    except (MemoryError, ImportError, SystemError):  # what an import raises without memory
        with contextlib.suppress(OSError):
            os.write(2, NO_MEMORY)
        os._exit(ExitCode.NOT_PROBED)
    _leave(ExitCode.BUG if reached is None else reached.exit_code)


def reraise(number: int) -> None:
    """End by the signal itself, so that the caller's `$?` is right (130, 143)."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def leave_unheard(code: int, number: int = 0) -> NoReturn:
    """End now, by signal `number` if there is one, although a thread still waits for a blocked terminal.

    That thread holds the stream's lock: any flush, including the one at interpreter exit, would wait forever.
    """
    if number:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(code)


def plain(error: UnicodeError) -> tuple[str, int]:
    """An error handler for codecs: replace what the encoding lacks by `PLAIN`, bytes of file names, or escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_plain, error.object[error.start : error.end])), error.end


def _plain(letter: str) -> str:
    if "\udc80" <= letter <= "\udcff":  # a byte of a file name that is not text in this locale (PEP 383)
        return f"\\x{ord(letter) - 0xDC00:02x}"
    if letter.isascii():
        return letter
    # The same escapes as in JSON, because the output may be a JSON document.
    return PLAIN.get(letter) or "".join(f"\\u{unit:04x}" for unit in _utf16(letter))


def _utf16(letter: str) -> Iterator[int]:
    data = letter.encode("utf-16-be", "surrogatepass")
    return (int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2))


def _refused(error: OSError) -> StorageError:
    """The error for an operation that the operating system refused, which is never a bug of pdctl."""
    where = f"{error.filename}: " if error.filename is not None else ""
    from pdctl import user_files  # imported late: needed only for an error

    fix = {
        errno.ENOSPC: user_files.room_advice(error.filename if isinstance(error.filename, str) else "."),
        errno.EDQUOT: "free space there, or raise the quota",
        errno.EBADF: "write to a file or a pipe: >FILE",
    }.get(error.errno or 0, "check the path and its permissions")
    if isinstance(error.filename, str) and error.errno in (errno.EACCES, errno.EPERM):
        fix = user_files.as_owner(error.filename) or fix
    return StorageError(f"{where}{error.strerror or error}", fix)


def _shortened(error: PdctlError, argv: Sequence[str]) -> PdctlError:
    """The error, in which long words of the command line, and what they consist of, are cut where they are repeated."""
    parts = set[str]()
    for word in (one for one in argv if len(one) > MOST_REPEATED):
        parts.add(word)
        for sign in SEPARATORS:
            parts.update((*word.split(sign), word.partition(sign)[2]))
    longest_first = sorted((one for one in parts if len(one) > MOST_REPEATED), key=lambda one: (-len(one), one))

    def cut(text: str) -> str:
        for part in longest_first:
            text = text.replace(part, f"{part[:MOST_REPEATED]}…")
        return text

    if longest_first:
        error.message, error.fix = cut(error.message), cut(error.fix)
        if isinstance(error, TopologyError) and error.diagnostics:
            from pdctl.render import diagnostics

            error.diagnostics = tuple(
                one._replace(message=cut(one.message), help=cut(one.help)) for one in diagnostics.of(error)
            )
    return error


def _say(error: PdctlError) -> None:
    try:
        _print(error)
        sys.stderr.flush()
    except OSError:  # a full disk, or nobody reads: the exit code still tells
        term.silence(sys.stderr)
    except MemoryError:  # not enough is left for the sentence
        with contextlib.suppress(OSError):
            os.write(2, NO_MEMORY)


def _print(error: PdctlError) -> None:
    if isinstance(error, TopologyError) and error.diagnostics:
        from pdctl.render import diagnostics

        diagnostics.show(diagnostics.of(error), term.err())
    text = str(error.message)
    head = "" if text.startswith("error") else "error: "
    sys.stderr.write(term.readable(f"{head}{text}\n" + (f"  fix: {error.fix}\n" if error.fix else "")))


def _report() -> None:
    # Imported here, because only a crash needs them (they are a tenth of `pdctl plan`'s start-up time).
    import platform
    import tempfile
    import traceback

    trace = traceback.format_exc()
    text = (
        f"# pdctl {__version__} crashed\n\n- python {platform.python_version()} on {platform.platform()}\n"
        f"- argv: `{' '.join(sys.argv)}`\n\n```\n{trace}```\n"
    )
    last = trace.strip().splitlines()[-1]
    sys.stderr.write(term.readable(f"error: this is a bug in pdctl: {last}\n"))
    try:
        handle, name = tempfile.mkstemp(prefix="pdctl-crash-", suffix=".md")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as report:
            report.write(text)
    except OSError as error:  # it cannot be saved, so print it
        sys.stderr.write(f"{text}  report: above, because it could not be written: {error.strerror}\n")
        return
    sys.stderr.write(f"  report: {name}\n  fix: file it with that report\n")


def _leave(code: int) -> NoReturn:
    sys.stdout.flush()
    gc.freeze()  # skips the two collections at interpreter exit, which nothing here needs
    raise SystemExit(int(code))
