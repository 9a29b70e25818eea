"""The readers of request traces. The first rows of each format are those of the public files, or of their scripts."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import threading
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.errors import UsageError
from pdctl.simulation import trace_files
from pdctl.simulation.request_trace import RequestTable, RequestTrace, TraceRequest
from pdctl.simulation.synthetic import make_request_trace
from pdctl.simulation.trace_files import read_request_trace, write_request_trace
from tests.cases import for_each

NS = 10**9
AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
MOON = b'{"timestamp": 0, "input_length": 600, "output_length": 7, "hash_ids": [0, 1]}\n'

READ = {
    "Azure 2023": (
        b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
        b"2023-11-16 18:15:50.9951690,396,109",
        [(0, 374, 44), (4_314_579_000, 396, 109)],
    ),
    "Azure 2024": (
        AZURE
        + b"2024-05-12 23:59:59.990000+00:00,2162,5\n2024-05-13 00:00:01+00:00,100,1\n2024-05-13T02:00:03+02:00,1,1",
        [(0, 2162, 5), (1_010_000_000, 100, 1), (3_010_000_000, 1, 1)],
    ),
    "BurstGPT 1": (
        BURST + b"5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,230,1317,Conversation log\n",
        [(0, 472, 18), (40 * NS, 1087, 230)],
    ),
    "BurstGPT 3": (
        b"Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        b"19440110.0,1722ac82,43,GPT-4,906.0,446,1352,Conversation log\n"
        b'19440161.5,d5983bf9,,"ChatGPT, ""4""",36,29,65,Conversation log\n',
        [(0, 906, 446), (51_500_000_000, 36, 29)],
    ),
    "BlitzScale": (b"timestamp(ms),prefill,decode\n1000,12,3\n1250,13,4\n", [(0, 12, 3), (250_000_000, 13, 4)]),
    "BlitzScale's scripts": (b"timestamp,prefill,decode\n1000,12,3\n1250,13,4\n", [(0, 12, 3), (250_000_000, 13, 4)]),
    "Vidur": (
        b",arrived_at,num_prefill_tokens,num_decode_tokens\n0,1e-05,100,9\n1,1.500010,200,8\n",
        [(0, 100, 9), (1_500_000_000, 200, 8)],
    ),
    "Mooncake": (
        MOON + b'{"timestamp": 27.5, "input_length": 512, "output_length": 1, "hash_ids": [0]}\n',
        [(0, 600, 7, (0, 1)), (27_500_000, 512, 1, (0,))],
    ),
    "Mooncake without blocks": (
        b'{"timestamp": 3, "input_length": 600, "output_length": 7}\n{"timestamp": 4, "input_length": 6, '
        b'"output_length": 7, "hash_ids": null}\n',
        [(0, 600, 7), (1_000_000, 6, 7)],
    ),
    "Bailian": (
        b'{"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 33, "output_length": 132, '
        b'"type": "text", "turn": 1, "hash_ids": [1089, 1090, 18446744073709551615]}\n',
        [(0, 33, 132, (1089, 1090, 2**64 - 1))],
    ),
    "a byte order mark, blank lines, out of order": (
        b"\xef\xbb\xbf" + BURST + b"\n9,m,1,2,3,l\r\n \n7,m,3,4,7,l\n\n7,m,5,6,11,l\n",
        [(0, 3, 4), (0, 5, 6), (2 * NS, 1, 2)],
    ),
}  # fmt: skip


def written(directory: Path, data: bytes) -> Path:
    path = directory / "trace"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", READ)
def test_each_format_is_told_by_its_content(name: str, tmp_path: Path) -> None:
    data, expected = READ[name]
    path = written(tmp_path, data)
    trace = read_request_trace(path)
    assert list(trace.requests) == [TraceRequest(*one) for one in expected]
    assert trace.name == "trace"
    assert trace.skipped == 0
    assert trace.prefix_block_tokens == (512 if name == "Mooncake" else 16 if name == "Bailian" else 0)
    path.write_bytes(gzip.compress(data[:50]) + gzip.compress(data[50:]))
    assert read_request_trace(path) == trace


def test_a_limit_takes_the_first_rows_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, READ["a byte order mark, blank lines, out of order"][0])
    assert list(read_request_trace(path, limit=2).requests) == [TraceRequest(0, 3, 4), TraceRequest(2 * NS, 1, 2)]
    path.write_bytes(MOON + b"broken\n")  # what lies behind it is not looked at
    assert len(read_request_trace(path, limit=1).requests) == 1


def test_every_format_of_the_tables_is_read_above() -> None:
    read = {name.split("'")[0].split(" ")[0] for name in READ}
    assert {one.name for one in (*trace_files.CSV_FORMATS, *trace_files.JSON_FORMATS)} <= read


BROKEN: list[tuple[bytes, str]] = [
    (b"", "{} is empty"),
    (b"\n \n", "{} is empty"),
    (AZURE, "{} has no request"),
    (b"a,b,c\n1,2,3\n", "{}:1: no header of a trace: `a,b,c`"),
    (b"1,2,3\n", "{}:1: no header of a trace: `1,2,3`"),
    (b"\n\nTimestamp,Model\n", "{}:3: no header of a trace: `Timestamp,Model`"),
    (b"timestamp(s),prefill,decode\n", "{}:1: no header of a trace: `timestamp(s),prefill,decode`"),
    (b"timestamp,prefill,decode,Prefill\n1,2,3,4\n", "{}:1: two columns are called `prefill`"),
    (b'"timestamp,prefill\n', "{}:1: no header of a trace: unexpected end of data"),
    (b"\x89\xff,b\n", "{}:1: no header of a trace: no UTF-8 text: byte 1 is 0x89"),
    (b'[{"timestamp": 0}]\n', "{}:1: a JSON array, expected one object on each line"),
    (b"PK\x03\x04rest", "{} is a zip archive"),
    (b"\x28\xb5\x2f\xfdrest", "{} is packed with zstd"),
    (b"PAR1rest", "{} is a Parquet file"),
    ("TIMESTAMP,a".encode("utf-16"), "{} is UTF-16 text"),
    (b"\x1f\x8bxxxxxxxxxxxx", "{}: damaged gzip file (Error -3 while decompressing data: unknown compression method)"),
    (gzip.compress(AZURE + b"2023-11-16 18:15:46,1,2\n")[:-6], "{}: the gzip file ends too early"),
    (AZURE + b"2023-11-16 18:15:46,1\n", "{}:2: 2 cells, expected 3 as in the header"),
    (AZURE + b"2023-11-16 18:15:46,1,2,\n", "{}:2: 4 cells, expected 3 as in the header"),
    (
        AZURE + b"16.11.2023 18:15,1,2\n",
        "{}:2: `TIMESTAMP` is `16.11.2023 18:15`, expected a date and time such as 2023-11-16 18:15:46.68059",
    ),
    (
        AZURE + b"2023-02-29 18:15:46,1,2\n",
        "{}:2: `TIMESTAMP` is `2023-02-29 18:15:46`, expected a date and time such as 2023-11-16 18:15:46.68059",
    ),
    (
        AZURE + b"2023-02-28 24:15:46,1,2\n",
        "{}:2: `TIMESTAMP` is `2023-02-28 24:15:46`, expected a date and time such as 2023-11-16 18:15:46.68059",
    ),
    (
        AZURE + b"2023-11-16 18:15:46,1,2\n2003-11-16 18:15:46,1,2\n",
        "{}:3: it is more than ten years from the first request",
    ),
    (
        AZURE + b"2023-11-16 18:15:46,0,2\n",
        "{}:2: `ContextTokens` is `0`, expected a whole number from 1 to 10,000,000",
    ),
    (
        AZURE + b"2023-11-16 18:15:46,5,-2\n",
        "{}:2: `GeneratedTokens` is `-2`, expected a whole number from 1 to 10,000,000",
    ),
    (
        BURST + b"5,ChatGPT,472,0,472,API log\n",
        "{}:2: `Response tokens` is `0`, expected a whole number from 1 to 10,000,000",
    ),
    (
        BURST + b"5,ChatGPT,4_7,1,472,API log\n",
        "{}:2: `Request tokens` is `4_7`, expected a whole number from 1 to 10,000,000",
    ),
    (
        BURST + b"5,ChatGPT,%s,1,1,API log\n" % (b"1" + b"0" * 5000),
        "{}:2: `Request tokens` is `1000000000000000000000000000000000000000…`, expected a whole number from 1 to "
        "10,000,000",
    ),
    (BURST + b"-5,a,1,1,1,b\n", "{}:2: `Timestamp` is `-5`, expected a number of seconds from 0"),
    (BURST + b"nan,a,1,1,1,b\n", "{}:2: `Timestamp` is `nan`, expected a number of seconds from 0"),
    (BURST + b"1e999,a,1,1,1,b\n", "{}:2: `Timestamp` is `1e999`, expected a number of seconds from 0"),
    (BURST + b"5,a\xff,1,1,1,b\n", "{}:2: no UTF-8 text: byte 4 is 0xff"),
    (BURST + b'5,"a,1,1,1,b\n', "{}:2: unexpected end of data"),
    (b"timestamp,prefill,decode\n1;2;3\n", "{}:2: 1 cells, expected 3 as in the header"),
    (
        b"timestamp,prefill,decode\nsoon,2,3\n",
        "{}:2: `timestamp` is `soon`, expected a number of milliseconds from 0",
    ),
    (MOON + b"{\n", "{}:2: no JSON: expecting property name enclosed in double quotes at column 2"),
    (MOON + MOON[:-3] + b"\n", "{}:2: no JSON: expecting ',' delimiter at column 76"),
    (MOON + b"[1]\n", "{}:2: expected a JSON object, got `[1]`"),
    (MOON + b"7\n", "{}:2: expected a JSON object, got `7`"),
    (MOON + b'{"timestamp": NaN}\n', "{}:2: no JSON: NaN is no number"),
    (MOON + b'{"timestamp": ' + b"[" * 200_000 + b"\n", "{}:2: no JSON that can be read: it is nested too deeply"),
    (MOON + b'{"timestamp": 1e%s}\n' % (b"9" * 30), "{}:2: no JSON that can be read: a number is too large"),
    (MOON + b'{"timestamps": 1}\n', "{}:2: `timestamp` is missing; is `timestamps` meant?"),
    (MOON + b'{"timestamp": 1, "output_length": 2}\n', "{}:2: `input_length` is missing"),
    (MOON.replace(b"0,", b"true,", 1), "{}:1: `timestamp` is `true`, expected a number of milliseconds from 0"),
    (MOON.replace(b"0,", b'"0",', 1), "{}:1: `timestamp` is `0`, expected a number of milliseconds from 0"),
    (MOON.replace(b"600", b"600.5"), "{}:1: `input_length` is `600.5`, expected a whole number from 1 to 10,000,000"),
    (MOON.replace(b"7", b"null"), "{}:1: `output_length` is `null`, expected a whole number from 1 to 10,000,000"),
    (MOON.replace(b"7", b"10000001"), 
     "{}:1: `output_length` is `10000001`, expected a whole number from 1 to 10,000,000"),
    (
        MOON.replace(b"[0, 1]", b"[0, -1]"),
        "{}:1: `hash_ids` is `[0, -1]`, expected a list of whole numbers from 0 to 2⁶⁴ − 1",
    ),
    (
        MOON.replace(b"[0, 1]", b'{"0": 1}'),
        '{}:1: `hash_ids` is `{"0": 1}`, expected a list of whole numbers from 0 to 2⁶⁴ − 1',
    ),
    (
        MOON.replace(b"[0, 1]", b"[0, 1, 2, 3, 4, 5, 6]"),
        "{}:1: 7 hash_ids do not fit a prompt of 600 tokens in blocks of 512 or 16 or 32 or 64 or 128 or 256 or "
        "1024 or 2048 tokens",
    ),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_a_broken_file_is_refused_with_place_and_reason(number: int, tmp_path: Path) -> None:
    data, message = BROKEN[number]
    path = written(tmp_path, data)
    with pytest.raises(UsageError) as refused:
        read_request_trace(path)
    assert refused.value.message == message.replace("{}", str(path), 1)
    assert refused.value.fix


GOOD_ROWS = {
    AZURE: b"2023-11-16 18:15:47,1,2\n",
    BURST: b"5,a,1,2,3,b\n",
    b"timestamp,prefill,decode\n": b"1,1,2\n",
    b"": b'{"timestamp": 0, "input_length": 1, "output_length": 2}\n',
}


def test_bad_rows_are_left_out_and_counted_where_the_caller_says_so(tmp_path: Path) -> None:
    left_out = 0
    for data, message in BROKEN:
        header = next(one for one in GOOD_ROWS if data.startswith(one))
        row = data.removeprefix(header)
        if not re.search(r":\d+: (?!no header|two columns|a JSON array)", message) or (not header and row[:1] != b"{"):
            continue
        good = GOOD_ROWS[header]
        trace = read_request_trace(written(tmp_path, header + good + row + b"\n" + good), skip_bad_rows=True)
        assert trace.skipped == 1, message
        assert {one[1:] for one in trace.requests} <= {(1, 2, ()), (600, 7, (0, 1))}
        left_out += 1
    assert left_out > 30
    with pytest.raises(UsageError) as refused:
        read_request_trace(written(tmp_path, BURST + b"x\n" * 1234), skip_bad_rows=True)
    assert refused.value.message.endswith(
        "has no request: 1,234 bad rows, the first in line 2: 1 cells, expected 6 as in the header"
    )


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path, why in ((tmp_path, "is a directory"), (tmp_path / "none", "no such file or directory")):
        with pytest.raises(UsageError) as refused:
            read_request_trace(path)
        assert refused.value.message == f"{path}: {why}"


def test_a_pipe_is_read_byte_by_byte(tmp_path: Path) -> None:
    """Also the two bytes that tell gzip, which may not come together."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    data = gzip.compress(MOON)

    def write() -> None:
        with open(path, "wb", buffering=0) as pipe:
            for byte in data:
                pipe.write(bytes([byte]))

    writer = threading.Thread(target=write)
    writer.start()
    assert len(read_request_trace(path).requests) == 1
    writer.join(30)
    assert not writer.is_alive()


@for_each("piece", [1, 2, 7, 258, 4096])
def test_gzip_is_unpacked_in_pieces_of_any_size(piece: int, tmp_path: Path) -> None:
    rows = b"".join(b"%d,m,%d,%d,1,l\n" % (at, at + 1, at + 2) for at in range(200))
    path = written(tmp_path, gzip.compress(BURST + rows) + gzip.compress(b"201,m,1,1,1,l\n" * 300))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_files, "PIECE", piece)
        assert len(read_request_trace(path).requests) == 500


def test_what_comes_out_of_a_small_file_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_files, "MOST_BYTES", 8 << 20)
    monkeypatch.setattr(trace_files, "MOST_LINES", 1_000_000)
    for inside, message in (
        (BURST + b" " * (5 << 20), "{}:2: a line of more than 4 MiB"),
        (BURST + b"\n" * 1_100_000, "{} has more than 1,000,000 lines"),
        (BURST + (b" " * 99 + b"\n") * 90_000, "{} has more than 0 GiB, unpacked"),
    ):
        path = written(tmp_path, gzip.compress(inside))
        assert path.stat().st_size < 40_000
        with pytest.raises(UsageError) as refused:
            read_request_trace(path, skip_bad_rows=True)
        assert refused.value.message == message.replace("{}", str(path))
    monkeypatch.setattr(trace_files, "MOST_BLOCKS", 5)
    with pytest.raises(UsageError, match="has more than 5 prefix blocks"):
        read_request_trace(written(tmp_path, MOON * 3))


def test_memory_grows_by_the_columns_alone(tmp_path: Path) -> None:
    rows = 40_000
    path = written(tmp_path, AZURE + b"2023-11-16 18:15:46.6805900,374,44\n" * rows)
    tracemalloc.start()
    try:
        trace = read_request_trace(path)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(trace.requests) == rows
    assert held < rows * 24 * 1.3
    assert peak < held + 12 * (1 << 20)  # a chunk of the file, as lines


@for_each("tokens", [16, 64, 512, 1024])
def test_the_size_of_prefix_blocks_follows_from_prompts_and_their_blocks(tokens: int) -> None:
    """Whether a last block that is not full has a number or none."""
    for fill in (lambda prompt: -(-prompt // tokens), lambda prompt: prompt // tokens):
        reader = trace_files._TraceReader("trace", skip_bad_rows=False)
        rows = [{"timestamp": 0, "input_length": n, "output_length": 1, "hash_ids": list(range(fill(n)))}
                for n in (5000, 40, 7777, 123_456)]  # fmt: skip
        reader.read(iter([json.dumps(row).encode() for row in rows]), 100)
        assert reader.block_tokens[0] == tokens


def test_one_wrong_row_does_not_change_the_size_of_prefix_blocks(tmp_path: Path) -> None:
    """38 blocks of 16 tokens would fit its prompt, but the row before it has larger ones."""
    wrong = MOON.replace(b"[0, 1]", json.dumps(list(range(38))).encode())
    path = written(tmp_path, MOON + wrong + MOON)
    with pytest.raises(
        UsageError, match=r":2: 38 hash_ids do not fit a prompt of 600 tokens in blocks of 512 or 256 t"
    ):
        read_request_trace(path)
    trace = read_request_trace(path, skip_bad_rows=True)
    assert (trace.prefix_block_tokens, trace.skipped, len(trace.requests)) == (512, 1, 2)


@given(
    st.lists(st.tuples(st.integers(0, 10**15), st.integers(1, 10**5), st.integers(1, 10**5), st.booleans()), min_size=1)
)
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int, bool]]
) -> None:
    table = RequestTable()
    first = min(row[0] for row in rows)
    for at, (time_ns, prompt, answer, shared) in enumerate(sorted(rows)):
        blocks = range(0 if shared else (at + 1) * 10**6, 10**8)[: -(-prompt // 512)]
        table.append(time_ns - first, prompt, answer, blocks)
    trace = RequestTrace("again", table, 512)
    path = tmp_path_factory.getbasetemp() / "again"
    write_request_trace(path, trace)
    assert read_request_trace(path) == trace


def test_a_trace_without_prefixes_gets_blocks_of_its_own(tmp_path: Path) -> None:
    """SGLang's and Dynamo's load generators build the prompt from them."""
    made = make_request_trace("burst:duration=60", 1)
    path = tmp_path / "trace.jsonl"
    write_request_trace(path, made)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    blocks = [block for row in rows for block in row["hash_ids"]]
    assert blocks == list(range(len(blocks)))
    assert all(len(row["hash_ids"]) == -(-row["input_length"] // 512) for row in rows)
    read = read_request_trace(path)
    first = made.requests[0].arrival_ns
    assert [(one.arrival_ns + first, *one[1:3]) for one in read.requests] == [tuple(one[:3]) for one in made.requests]
    with pytest.raises(UsageError, match="No such file or directory"):
        write_request_trace(tmp_path / "none" / "trace", made)


PIECES = (
    *(b"0", b"1", b"-1", b"7.5", b"1e5", b"1e99999", b"NaN", b"null", b"true", b'"', b",", b"{", b"}", b"[", b"]"),
    *(b":", b"\\", b"\x00", b"\xff", b"\xef\xbb\xbf", b"\r", b" ", b"\t", b"2023-11-16 18:15:46", b"+00:00", b"_"),
    *(b"9" * 30, b"[" * 3000, b"0x1f", "१२".encode(), "²".encode(), b"timestamp", b"hash_ids", b"input_length"),
)  # fmt: skip


def fuzzed(row: bytes, draw: random.Random) -> bytes:
    data = bytearray(row)
    for _ in range(draw.randrange(1, 4)):
        at, end = draw.randrange(len(data) + 1), draw.randrange(1, 9)
        data[at : at + draw.randrange(2) * end] = draw.choice(PIECES)
    return bytes(data).replace(b"\n", b" ")


@pytest.mark.parametrize("rows", [10_000, pytest.param(1_000_000, marks=pytest.mark.heavy)])
def test_fuzzed_rows_are_requests_or_counted(rows: int, tmp_path: Path) -> None:
    draw = random.Random(f"rows/{rows}")
    samples = [data.splitlines() for data, _ in READ.values()]
    each = rows // len(samples)
    for at, sample in enumerate(samples):
        sample = [line for line in sample if line.strip(b"\xef\xbb\xbf ")]
        header = b"" if sample[0].startswith(b"{") else sample[0] + b"\n"
        good = sample[-1] + b"\n"
        path = tmp_path / str(at)
        with path.open("wb") as file:
            file.write(header + good)
            file.writelines(fuzzed(draw.choice(sample[bool(header) :]), draw) + b"\n" for _ in range(each))
        trace = read_request_trace(path, skip_bad_rows=True)
        assert each * 0.99 < trace.skipped + len(trace.requests) <= each + 1  # a row may have become blank
        assert 0 < trace.skipped < each
        assert all(one.arrival_ns >= 0 < one.prompt_tokens and one.output_tokens > 0 for one in trace.requests)


def test_fuzzed_files_are_traces_or_refused(tmp_path: Path) -> None:
    draw = random.Random("files")
    samples = [data for data, _ in READ.values()] + [gzip.compress(data) for data, _ in READ.values()]
    path = tmp_path / "trace"
    for _ in range(1500):
        data = bytearray(draw.choice(samples))
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(data) + 1)
            data[at : at + draw.randrange(30)] = draw.choice(PIECES)
        path.write_bytes(data)
        try:
            assert read_request_trace(path, skip_bad_rows=draw.random() < 0.5).requests
        except UsageError as refused:
            assert refused.message.startswith(str(path))  # noqa: PT017
            assert refused.fix  # noqa: PT017
