"""Request traces that others have recorded, read from files, and the one that is written: Mooncake's.

Which format a file has is told by its content: JSON lines by the members of the first object, CSV by its header.
"""

from __future__ import annotations

import contextlib
import csv
import json
import re
import shlex
import zlib
from datetime import date
from decimal import Decimal
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pdctl import user_files
from pdctl.errors import UsageError
from pdctl.quick_definitions import NamedTuple, compile_late
from pdctl.simulation.request_trace import MOST_TOKENS, RequestTable, RequestTrace
from pdctl.suggestions import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    Row = tuple[int, int, int, Sequence[int]]  # ns, tokens of the prompt and of the answer, prefix blocks

MOST_LINES = 50_000_000  # the largest public trace has 27 million
MOST_BLOCKS = 100_000_000  # prefix blocks of all prompts: 800 MB
MOST_BYTES = 16 << 30  # of a file, unpacked
LONGEST_LINE = 4 << 20  # bytes: a prompt of 10⁷ tokens in blocks of 16 has 625,000 prefix blocks
LONGEST_TRACE = 3660 * 86_400 * 10**9  # ns
PIECE = 1 << 20  # bytes unpacked at a time
LONGEST_COUNT = len(str(MOST_TOKENS))  # digits
QUOTED = 40  # characters of a wrong value that an error repeats, and more than a number has
BLOCK_TOKENS = 512  # of a prefix block in Mooncake's traces
OTHER_BLOCK_TOKENS = (16, 32, 64, 128, 256, 1024, 2048)  # in those of others; of Bailian: 16


class BadRow(ValueError):
    """A row that is no request; the text says why."""


class TraceFormat(NamedTuple):
    """The columns or members that have a request's time, prompt and answer. `clock`: what its times are.

    `marker` is a member that only this format has.
    """

    name: str
    time: tuple[str, ...]  # any of them
    prompt: str
    answer: str
    clock: str  # date, s, ms
    blocks: str = ""
    marker: str = ""
    source: str = ""


CSV_FORMATS = (
    TraceFormat(
        "Azure", ("timestamp",), "contexttokens", "generatedtokens", "date",
        source="Azure LLM inference traces of 2023 and 2024 (AzurePublicDataset)",
    ),
    TraceFormat(
        "BurstGPT", ("timestamp",), "request tokens", "response tokens", "s",
        source="BurstGPT, all releases; a failed request has 0 response tokens and is a bad row",
    ),
    TraceFormat(
        "BlitzScale", ("timestamp(ms)", "timestamp"), "prefill", "decode", "ms",
        source="what BlitzScale's scripts make of the two above",
    ),
    TraceFormat(
        "Vidur", ("arrived_at",), "num_prefill_tokens", "num_decode_tokens", "s", source="Vidur's simulator",
    ),
)  # fmt: skip

JSON_FORMATS = (
    TraceFormat(
        "Bailian", ("timestamp",), "input_length", "output_length", "s", "hash_ids", "chat_id",
        source="Qwen usage traces of Alibaba's Bailian, blocks of 16 tokens",
    ),
    TraceFormat(
        "Mooncake", ("timestamp",), "input_length", "output_length", "ms", "hash_ids",
        source="Mooncake's traces, with blocks of 512 tokens, and whatever writes their format, also without blocks",
    ),
)  # fmt: skip

# What files begin with that are neither text nor gzip.
PACKED = {
    b"PK\x03\x04": "a zip archive",
    b"\x28\xb5\x2f\xfd": "packed with zstd",
    b"\xfd7zXZ": "packed with xz",
    b"BZh": "packed with bzip2",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}
GZIP = b"\x1f\x8b"
FORMS = "docs/simulate.md lists the formats; the header or the first object tells which one a file has"

_SECOND = compile_late(r"(\d{4}-\d\d-\d\d)[ T]([01]\d|2[0-3]):([0-5]\d):([0-5]\d)", re.ASCII)
_REST = compile_late(r"(?:\.(\d{1,12}))?(?:Z|([+-])(\d\d):?(\d\d))?", re.ASCII)  # of a date


def read_request_trace(path: str | Path, *, skip_bad_rows: bool = False, limit: int | None = None) -> RequestTrace:
    """The requests of a file, plain or gzip, at most the first `limit`. The earliest arrives at 0.

    Raise UsageError with file, line and reason for a row that is no request, or count such rows if they are skipped;
    also for a file that cannot be read, has none of the formats, or is larger than the bounds of this module.
    """
    reader = _TraceReader(str(path), skip_bad_rows)
    try:
        with contextlib.closing(_lines(path)) as lines:
            reader.read(lines, MOST_LINES if limit is None else limit)
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}", "name a file with a trace") from None
    requests = reader.requests
    if not requests:
        why = f": {reader.skipped:,} bad rows, the first in {reader.first_bad}" if reader.skipped else ""
        raise UsageError(f"{path} has no request{why}", FORMS)
    tokens = reader.block_tokens[0] if requests.block_count else 0
    return RequestTrace(Path(path).name, requests.sorted_from_zero(), tokens, reader.skipped)


class _TraceReader:
    def __init__(self, path: str, skip_bad_rows: bool) -> None:
        self.path = path
        self.skip_bad_rows = skip_bad_rows
        self.requests = RequestTable()
        self.block_tokens: Sequence[int] = (BLOCK_TOKENS, *OTHER_BLOCK_TOKENS)  # that no row has ruled out
        self.skipped = 0
        self.first_bad = ""  # line and reason

    def read(self, lines: Iterator[bytes], limit: int) -> None:
        rows = ((number, line) for number, line in enumerate(lines, 1) if line and not line.isspace())
        number, first = next(rows, (0, b""))
        first = first.removeprefix(b"\xef\xbb\xbf")
        for magic, what in PACKED.items():
            if first.startswith(magic):
                raise UsageError(f"{self.path} is {what}", "unpack it, or convert it to UTF-8 text")
        if first.lstrip().startswith(b"{"):
            remaining: Iterable[tuple[int, bytes]] = chain([(number, first)], rows)
            parse = _JsonRows().parse
        else:
            remaining, parse = rows, self._csv_rows(number, first).parse
        begin = None  # what the clock says of the first request
        for number, line in remaining:
            try:
                time_ns, prompt, answer, blocks = parse(line)
                if begin is None:
                    begin = time_ns
                if abs(time_ns - begin) > LONGEST_TRACE:
                    raise BadRow("it is more than ten years from the first request")
                if blocks:
                    self._rule_out(prompt, len(blocks))
                    if self.requests.block_count + len(blocks) > MOST_BLOCKS:
                        raise UsageError(
                            f"{self.path} has more than {MOST_BLOCKS:,} prefix blocks", _command_that_cuts(self.path)
                        )
            except BadRow as bad:
                self._skip(number, bad)
                continue
            self.requests.append(time_ns - begin, prompt, answer, blocks)
            limit -= 1
            if not limit:
                break

    def _csv_rows(self, number: int, header: bytes) -> _CsvRows:
        try:
            written = [name.strip() for name in _cells(_text(header))]
        except BadRow as error:
            raise UsageError(f"{self.path}:{number}: no header of a trace: {error}", FORMS) from None
        names = [" ".join(name.lower().split()) for name in written]
        for known in CSV_FORMATS:
            times = [one for one in known.time if one in names]
            columns = (*times[:1], known.prompt, known.answer)
            if times and set(columns) <= set(names):
                if double := [one for one in columns if names.count(one) > 1]:
                    raise UsageError(f"{self.path}:{number}: two columns are called `{double[0]}`", "rename one")
                return _CsvRows(written, [names.index(one) for one in columns], CLOCKS[known.clock])
        if not header:
            raise UsageError(f"{self.path} is empty", FORMS)
        if header.lstrip().startswith(b"["):
            raise UsageError(
                f"{self.path}:{number}: a JSON array, expected one object on each line",
                f"jq -c '.[]' {shlex.quote(self.path)} > trace.jsonl",
            )
        raise UsageError(f"{self.path}:{number}: no header of a trace: {_quote(header.decode('utf-8'))}", FORMS)

    def _rule_out(self, prompt: int, blocks: int) -> None:
        """Keep the block sizes with which so many blocks cover the prompt, or all of it but a part of a block."""
        if len(self.block_tokens) == 1 and blocks == -(-prompt // self.block_tokens[0]):  # as nearly always
            return
        left = [size for size in self.block_tokens if blocks in (prompt // size, -(-prompt // size))]
        if not left:
            sizes = " or ".join(map(str, self.block_tokens))
            raise BadRow(f"{blocks:,} hash_ids do not fit a prompt of {prompt:,} tokens in blocks of {sizes} tokens")
        self.block_tokens = left

    def _skip(self, number: int, bad: BadRow) -> None:
        if not self.skip_bad_rows:
            raise UsageError(
                f"{self.path}:{number}: {bad}", "correct the row, or leave out such rows: --skip-bad-rows"
            ) from None
        self.first_bad = self.first_bad or f"line {number}: {bad}"
        self.skipped += 1


class _CsvRows:
    """`at`: which cell is the time, which the prompt and which the answer."""

    def __init__(self, names: list[str], at: list[int], clock: TraceClock) -> None:
        self._width = len(names)
        self._at = at
        self._names = [names[one] for one in at]
        self._clock = clock

    def parse(self, line: bytes) -> Row:
        cells = _cells(_text(line))
        if len(cells) != self._width:
            raise BadRow(f"{len(cells)} cells, expected {self._width} as in the header")
        first, second, third = self._at
        time, prompt, answer = cells[first].strip(), cells[second].strip(), cells[third].strip()
        if (time_ns := self._clock.read(time)) < 0:
            raise BadRow(f"`{self._names[0]}` is {_quote(time)}, expected {self._clock.wanted}")
        return time_ns, _written_tokens(prompt, self._names[1]), _written_tokens(answer, self._names[2]), ()


def _cells(line: str) -> list[str]:
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line.rstrip("\r\n")], strict=True))
    except csv.Error as error:
        raise BadRow(str(error)) from None


class _JsonRows:
    """The format is that of the first object which has the members of one."""

    def __init__(self) -> None:
        self._form: TraceFormat | None = None
        self._decoder = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse_constant)

    def parse(self, line: bytes) -> Row:
        try:
            row = self._decoder.decode(_text(line))
        except json.JSONDecodeError as error:
            raise BadRow(f"no JSON: {error.msg.lower()} at column {error.colno}") from None
        except BadRow:
            raise
        except RecursionError:
            raise BadRow("no JSON that can be read: it is nested too deeply") from None
        except (ValueError, ArithmeticError):
            raise BadRow("no JSON that can be read: a number is too large") from None
        if not isinstance(row, dict):
            raise BadRow(f"expected a JSON object, got {_quote(line.decode('utf-8'))}")
        form = self._form or next(one for one in JSON_FORMATS if not one.marker or one.marker in row)
        time, prompt, answer = form.time[0], form.prompt, form.answer
        for name in (time, prompt, answer):
            if name not in row:
                raise BadRow(f"`{name}` is missing{_near(name, row)}")
        self._form = form
        if (time_ns := _number_ns(row[time], UNITS[form.clock])) < 0:
            raise BadRow(f"`{time}` is {_quote(row[time])}, expected {CLOCKS[form.clock].wanted}")
        return time_ns, _tokens(row[prompt], prompt), _tokens(row[answer], answer), _block_ids(row.get(form.blocks))


def _near(name: str, row: dict[str, Any]) -> str:
    meant = nearest(name, [one for one in row if len(one) <= QUOTED][:50])
    return f"; is `{meant}` meant?" if meant else ""


def _refuse_constant(name: str) -> NoReturn:
    raise BadRow(f"no JSON: {name} is no number")


def _tokens(value: object, name: str) -> int:
    if type(value) is int and 1 <= value <= MOST_TOKENS:
        return value
    raise BadRow(f"`{name}` is {_quote(value)}, expected a whole number from 1 to {MOST_TOKENS:,}")


def _block_ids(value: object) -> Sequence[int]:
    if value is None:
        return ()
    if (
        isinstance(value, list)
        and set(map(type, value)) <= {int}
        and (not value or (min(value) >= 0 and max(value) < 1 << 64))
    ):
        return value
    raise BadRow(f"`hash_ids` is {_quote(value)}, expected a list of whole numbers from 0 to 2⁶⁴ − 1")


def _written_tokens(text: str, name: str) -> int:
    digits = text if text.isdigit() else text.removesuffix(".0")  # of a column that pandas took for floats
    if digits.isdigit() and len(digits) <= LONGEST_COUNT and digits.isascii():
        return _tokens(int(digits), name)
    raise BadRow(f"`{name}` is {_quote(text)}, expected a whole number from 1 to {MOST_TOKENS:,}")


UNITS = {"s": 10**9, "ms": 10**6}  # ns
LONGEST_CLOCK = 10**11 * 10**9  # ns that a time may lie after 0: it may count from 1970


class TraceClock(NamedTuple):
    """`read` gives ns from any one start, -1 for what is no such time."""

    read: Callable[[str], int]
    wanted: str


def _number_ns(value: object, unit: int) -> int:
    if isinstance(value, (Decimal, int)) and not isinstance(value, bool) and 0 <= value <= LONGEST_CLOCK // unit:
        return int(value * unit)
    return -1


def _written_ns(text: str, places: int) -> int:
    if len(text) > QUOTED or not text.isascii():
        return -1
    whole, _, decimals = text.partition(".")
    if len(whole) <= 20 and whole.isdigit() and (decimals.isdigit() or not decimals):
        time_ns = int(whole) * 10**places + int(decimals[:places].ljust(places, "0"))
        return time_ns if time_ns <= LONGEST_CLOCK else -1
    try:
        return _number_ns(Decimal(text), 10**places)  # 1e-05
    except ArithmeticError:
        return -1


def _date_ns(text: str) -> int:
    """From the year 1, in UTC; a date without a zone is one in UTC."""
    begin = _second_ns(text[:19])
    rest = _REST.fullmatch(text, 19) if begin >= 0 else None
    if rest is None:
        return -1
    decimals, sign, hours, minutes = rest.groups()
    if decimals:
        begin += int(decimals[:9].ljust(9, "0"))
    if sign:
        ahead = (int(hours) * 60 + int(minutes)) * 60 * 10**9
        begin -= ahead if sign == "+" else -ahead
    return begin


@lru_cache(maxsize=1024)  # requests of one second follow each other
def _second_ns(text: str) -> int:
    found = _SECOND.fullmatch(text)
    if found is None:
        return -1
    try:
        days = date.fromisoformat(found[1]).toordinal()
    except ValueError:
        return -1
    return (((days * 24 + int(found[2])) * 60 + int(found[3])) * 60 + int(found[4])) * 10**9


CLOCKS = {
    "date": TraceClock(_date_ns, "a date and time such as 2023-11-16 18:15:46.68059"),
    "s": TraceClock(lambda text: _written_ns(text, 9), "a number of seconds from 0"),
    "ms": TraceClock(lambda text: _written_ns(text, 6), "a number of milliseconds from 0"),
}


def _text(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRow(f"no UTF-8 text: byte {error.start + 1} is 0x{line[error.start]:02x}") from None


def _quote(value: object) -> str:
    text = str(value) if isinstance(value, (str, Decimal)) else json.dumps(value, default=str, ensure_ascii=False)
    text = text.strip()
    return f"`{text if len(text) <= QUOTED else text[:QUOTED] + '…'}`"


def _command_that_cuts(path: str | Path) -> str:
    return f"read a part of it: head -n 1000000 {shlex.quote(str(path))} > part"


def _lines(path: str | Path) -> Generator[bytes, None, None]:
    """The lines of a file, unpacked if it begins as gzip does. Raise OSError, UsageError."""
    size, count, rest = 0, 0, b""
    for chunk in _unpacked(path):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
        size, count = size + len(chunk), count + len(lines)
        if size > MOST_BYTES or count > MOST_LINES:
            most = f"{MOST_BYTES >> 30} GiB, unpacked" if size > MOST_BYTES else f"{MOST_LINES:,} lines"
            raise UsageError(f"{path} has more than {most}", _command_that_cuts(path))
        if len(rest) > LONGEST_LINE:
            raise UsageError(f"{path}:{count + 1}: a line of more than {LONGEST_LINE >> 20} MiB", FORMS)
    yield rest


def _unpacked(path: str | Path) -> Iterator[bytes]:
    chunks = user_files.chunks(path)
    first = b""
    while len(first) < len(GZIP) and (more := next(chunks, b"")):  # a pipe may give one byte at a time
        first += more
    chunks = chain([first], chunks)
    if not first.startswith(GZIP):
        yield from chunks
        return
    unpacker, waiting = None, b""
    try:
        for chunk in chunks:
            waiting = chunk
            while waiting:
                if unpacker is None or unpacker.eof:  # files packed one by one may follow each other
                    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
                yield unpacker.decompress(waiting, PIECE)
                waiting = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
    except zlib.error as error:
        raise UsageError(f"{path}: damaged gzip file ({error})", "fetch it again") from None
    if unpacker is not None and not unpacker.eof:
        raise UsageError(f"{path}: the gzip file ends too early", "fetch it again")


def write_request_trace(path: Path, trace: RequestTrace) -> None:
    """Write Mooncake's format, which SGLang's and Dynamo's load generators read too. Raise UsageError.

    They build prompts from `hash_ids`: where the trace has none, each block gets a number of its own.
    """
    try:
        with user_files.replacing(path) as out:
            out.writelines(line.encode() for line in _mooncake_lines(trace))
    except OSError as error:
        raise user_files.unwritable(str(path), error) from None


def _mooncake_lines(trace: RequestTrace) -> Iterable[str]:
    fresh = 0
    for one in trace.requests:
        blocks: Sequence[int] = one.prefix_blocks
        if not trace.prefix_block_tokens:
            blocks = range(fresh, fresh - (-one.prompt_tokens // BLOCK_TOKENS))
            fresh = blocks.stop
        ms, ns = divmod(one.arrival_ns, 10**6)
        time = f"{ms}.{ns:06}".rstrip("0") if ns else f"{ms}"
        yield (
            f'{{"timestamp": {time}, "input_length": {one.prompt_tokens}, "output_length": {one.output_tokens}, '
            f'"hash_ids": {list(blocks)}}}\n'
        )
