"""Cases that broke something once, made as short as they go. None may break it again."""

from __future__ import annotations

from typing import NamedTuple

from pdctl.engine.cluster.node_links import Greeting, NodeHello
from tests.cases import for_each
from tests.fuzz.edits import SEPARATOR
from tests.fuzz.judge import judge
from tests.fuzz.rank_targets import ARGS, framed
from tests.fuzz.targets import TARGETS

DIGITS = b"9" * 5000  # int() takes 4300 of them
ROOM = b"room=" + DIGITS + b" is bootstrapped"
STAMP = b"[2026-11-21 01:34:04] "
TIMED_OUT = (
    b"%sPrefill bootstrap failed for request rank=0 req.rid='a973' req.bootstrap_room=8463976258232842567 with "
    b"exception KVTransferError(bootstrap_room=8463976258232842567): Request 8463976258232842567 timed out after %ss "
    b"in KVPoll.Bootstrapping"
)


class Found(NamedTuple):
    target: str
    what: str
    data: bytes


FOUND = (
    Found("line", "a room of more digits than int() takes", STAMP + ROOM),
    Found("log", "an address without a port", STAMP + b'http://\xb3 "PUT /route HTTP/1.1" 200'),
    Found(
        "log",
        "a port of more digits than int() takes",
        STAMP + b"INFO: Uvicorn running on http://1:" + DIGITS + b" (Press CTRL+C to quit)",
    ),
    Found(
        "log",
        "a superscript is a digit to str.isdigit, and none to int()",
        "[2026-11-21 19:44:26] pdctl: 0 generation 1: p -m pdctl.engine --disaggregation-mode prefill "
        "--disaggregation-bootstrap-port ²\n".encode(),
    ),
    Found("logs", "the same room in a deployment", STAMP + ROOM + SEPARATOR + STAMP + b"room=7 is bootstrapped"),
    Found(
        "bootstrap-http",
        "a content-length with more leading zeros than int() takes digits",
        b"PUT /route HTTP/1.1\r\nhost: x\r\ncontent-length: " + b"0" * 5000 + b"2\r\n\r\n{}",
    ),
    Found("metrics", "letters without an equals sign: quadratic", b"a_x{" + b"p" * 60_000 + b"} 1\n"),
    Found(
        "manifest",
        "an annotation of more digits than int() takes",
        b"kind: Deployment\napiVersion: apps/v1\nmetadata: {name: p}\nspec:\n  template:\n    metadata:\n"
        b"      annotations: {sglang.ai/bootstrap-port: '" + DIGITS + b"'}\n    spec:\n      containers:\n"
        b"        - {name: e, command: [python3, -m, sglang.launch_server, --disaggregation-mode, prefill]}\n",
    ),
    Found(
        "manifest",
        "an image whose version has more digits than int() takes",
        b"kind: Pod\napiVersion: v1\nspec:\n  containers:\n    - {name: e, image: 'lmsysorg/sglang:v"
        + DIGITS
        + b".5.23',\n"
        b"       command: [python3, -m, sglang.launch_server, --disaggregation-mode, prefill]}\n",
    ),
    Found(
        "logs",
        "a tp_size of more digits than int() takes",
        STAMP + b"WARNING args.py:2326: KV cache is forced as chunk cache for decode server\n"
        b"[2026-11-21 02:01:15] server_args=ServerArgs(m/s, tp_size=" + DIGITS,
    ),
    Found(
        "logs",
        "a bootstrap port of more digits than int() takes",
        STAMP + b"server_args=ServerArgs(model_path='m', disaggregation_mode='decode', page_size=1, "
        b"disaggregation_bootstrap_port=" + DIGITS + b", host='127.0.0.1', port=30000)",
    ),
    Found(
        "logs",
        "a prefill's port in a router's first line of more digits than int() takes",
        b"2026-11-21 02:01:26  INFO smg::server: Starting router on 127.0.0.1:8000 | "
        b'mode: PrefillDecode { prefill_urls: [("http://127.0.0.1:30000", Some(' + DIGITS + b"))], decode_urls: "
        b'["http://127.0.0.1:30002"], prefill_policy: None, decode_policy: None } | policy: X | max_payload: 512MB',
    ),
    Found(
        "logs",
        "a room in digits of another script, which int() takes as text and not as bytes",
        STAMP
        + b"Prefill bootstrap failed for request rank=0 req.rid='d0f6' req.bootstrap_room="
        + "٣".encode()
        + b" with exception KVTransferError(bootstrap_room=3392169506759347915): Request 3392169506759347915 timed out "
        b"after 10.0s in KVPoll.Bootstrapping",
    ),
    Found(
        "logs",
        "a time no float holds, in a timeline",
        STAMP
        + b"ReqTimeStats(rid=e42ab0f30a5d490ab406cb5619c2c582, bootstrap_room=0, input_len=4, cached_input_len=0, "
        b"output_len=1, attempts=0, type=prefill): bootstrap_duration=0.15ms, queue_duration=1.93ms, "
        b"forward_duration=19.80ms, entry_time=" + DIGITS + b".213, transfer_speed=0.00 GB/s, transfer_total=0.00 MB",
    ),
    Found(
        "logs",
        "a time-out no float holds, in words",
        TIMED_OUT % (STAMP, DIGITS + b".0"),
    ),
    Found(
        "log",
        "a time-out in words that is no number",
        TIMED_OUT % (STAMP, b"1.2.3"),
    ),
    Found(
        "logs",
        "a timeline of what is no number",
        STAMP
        + b"ReqTimeStats(rid=e42ab0f30a5d490ab406cb5619c2c582, bootstrap_room=0, input_len=4, cached_input_len=0, "
        b"output_len=1, attempts=0, type=prefill): bootstrap_duration=1.2.3ms, queue_duration=1.93ms, entry_time=..",
    ),
    Found(
        "logs",
        "an attempt whose number stands for so many before it that there is no memory for them",
        b'2026-11-21 02:01:30 DEBUG http_request{method=POST uri=/generate request_id="gnt-1"}: '
        b"sglang_router_rs::routers::http::pd_router: src/routers/http/pd_router.rs:321: PD retry attempt 99999999 "
        b"using prefill=http://127.0.0.1:30000 decode=http://127.0.0.1:30002\n" + TIMED_OUT % (STAMP, b"10.0"),
    ),
    Found(
        "logs",
        "an access line's zone in superscripts, which are digits to isdigit() and not to int()",
        '127.0.0.1 [21/Nov/2026:02:01:15 +²²²²] "GET /route?engine_rank=0 HTTP/1.1" 200 5 "-" "x"\n'.encode()
        + TIMED_OUT % (STAMP, b"10.0"),
    ),
    Found(
        "logs",
        "a stamp of the calendar's first day whose zone puts it before that",
        TIMED_OUT % (b"0001-01-01T00:00:00+14:00 ", b"10.0"),
    ),
    Found(
        "logs",
        "a stamp without a date next to one of the calendar's last day",
        TIMED_OUT % (b"9999-12-31T23:59:59Z ", b"10.0") + SEPARATOR + TIMED_OUT % (b"[01:34:04] ", b"10.0"),
    ),
    Found(
        "import",
        "a variable whose name is none",
        b"services:\n  p:\n    environment: {'(': b}\n"
        b"    command: p -m sglang.launch_server --disaggregation-mode prefill\n"
        b"  d:\n    command: p -m sglang.launch_server --disaggregation-mode decode\n",
    ),
    Found(
        "import",
        "a size in digits of another script",
        "kind: Pod\nspec:\n  volumes: [{emptyDir: {medium: Memory, sizeLimit: ٣G}}]\n  containers:\n"
        "    - {command: [p, -m, sglang.launch_server, --disaggregation-mode, prefill]}\n"
        "    - {command: [p, -m, sglang.launch_server, --disaggregation-mode, decode]}\n".encode(),
    ),
    Found(
        "import",
        "a model whose name is longer than a file's can be",
        b"p -m sglang.launch_server --disaggregation-mode prefill --model-path " + DIGITS + b"\n"
        b"p -m sglang.launch_server --disaggregation-mode decode\n",
    ),
    Found("import", "a control character in a router's address", b"-m sglang_router.launch_router --prefill 0 8 \x1b"),
    Found(
        "import",
        "a frontend nobody knows, with a policy",
        b"model:\nresources:\nfrontend: {type: g, args: {policy: v}}\nbackend:\n  sglang_config: {prefill: {e: k}, "
        b"decode: {s: []}}\n",
    ),
    Found(
        "dialect",
        "a pattern at which re.compile warns",
        b"- {id: x, speaker: sglang, level: info, literal: 'hello', pattern: 'hello [[a]', example: 'hello a'}\n",
    ),
    Found("bundle", "words joined by dashes: cubic", b"2-" * 8000),
    Found("bundle", "dashes alone", b"-" * 60_000),
    Found("bundle", "lists of ids that never end", b"input_ids=[" * 6000),
    Found("bundle", "names that are each other's values", b"token=" * 10_000),
    Found("bundle", "quotes that open and never close", b"api_key='x\n\"" * 5000),
    Found("bundle", "addresses without a host", b"://" * 20_000),
    Found("bundle", "users without a host", b"a:" * 30_000),
    Found("bundle", "colons quoted for a URL", b"%3A" * 20_000),
    Found("bundle", "an environment of one variable", b"A=1\n" * 15_000),
    Found("bundle", "a block that never goes deeper", b"api_key: |\n " * 5000),
    Found("bundle", "environments in environments", b"{'env': {" * 6000),
    Found("bundle", "escapes of nothing", b"\\" * 60_000),
    Found("bundle", "lists of keys that never end", b"api_key=[" * 6000),
    Found("bundle", "half a web token, over and over", b"eyJ" * 20_000),
    Found("bundle", "one word of sixty thousand letters", b"Aa1" * 20_000),
    Found("bundle", "a key, and blanks", b"password: " + b" " * 60_000),
    Found("bundle", "headers in headers", b"cookie: " * 7000),
    Found(
        "node",
        "half a surrogate pair in a node's flags, which no answer about them could hold",
        framed(Greeting(b"n" * 16, False), NodeHello(1, ARGS.to_json().replace('"auto"', r'"\ud800"'))),
    ),
    Found(
        "doctor",
        "a NaN in /server_info, which a bundle wrote as it was",
        SEPARATOR * 4 + b'{"version": "0.5.18", "mem_fraction_static": NaN}',
    ),
)


@for_each("found", FOUND, ids=lambda found: f"{found.target}: {found.what}")
def test_what_was_found_once(found: Found) -> None:
    judge(TARGETS[found.target], found.data)
