"""Twelve log files of a deployment under load: 2 routers, 5 prefills, 5 decodes, all of one size.

Line shapes are those of sglang 0.5.18 and sglang-router 0.3.2. A room concerns one router, one prefill and one decode;
which lines name it depends on the level and on --enable-request-time-stats-logging, as in the real ones:

    mixed   prefill-0, decode-0 and router-0 at DEBUG, prefill-1 and decode-1 at INFO with time stats, the rest at INFO
    dense   all at DEBUG with time stats: three lines name a room on each prefill, two on each decode
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

ROUTERS, PREFILLS, DECODES = 2, 5, 5
START = 1795226400  # 2026-11-21 02:00:00 UTC
ROOMS_PER_SECOND = 400
BATCH = 2000  # rooms per write
FAILED_EVERY, CRASHED_EVERY = 1000, 20_000  # requests of which one fails, or leaves a traceback

POST = b'[%s] INFO:     10.0.0.9:%d - "POST /generate HTTP/1.1" 200 OK\n'
PREFILL_BATCH = (
    b"[%s TP0] Prefill batch, #new-seq: 1, #new-token: %d, #cached-token: 0, token usage: 0.%02d, #running-req: 0, "
    b"#queue-req: %d, #pending-token: 0, #bootstrap-req: %d, #inflight-req: 1, #optimistic-req: 0, cuda graph: False, "
    b"input throughput (token/s): %d.17\n"
)
DECODE_BATCH = (
    b"[%s TP0] Decode batch, #running-req: %d, #token: %d, token usage: 0.%02d, pre-allocated usage: 0.00, "
    b"#prealloc-req: 0, #transfer-req: 1, #retracted-req: 0, cuda graph: True, gen throughput (token/s): %d.20, "
    b"#queue-req: 0\n"
)
PREFILL_DEBUG = (
    b"[%(t)s] Using regular tokenizer for 1 inputs\n"
    b"[%(t)s TP0] Received multipart with total byte size 105\n"
    b"[%(t)s TP0] got info room=%(room)d agent_name='e54b48c6-658b-4d37-964a-783c22cd19a9' required_dst_info_num=1\n"
    b"[%(t)s TP0] room=%(room)d is bootstrapped\n"
    b"[%(t)s TP0] CommonKVSender init with num_kv_indices: %(tokens)d and aux_index: %(slot)d\n"
)
DECODE_DEBUG = (
    b"[%(t)s] Using regular tokenizer for 1 inputs\n"
    b"[%(t)s TP0] Fetched bootstrap info: {'rank_ip': '10.0.0.3', 'rank_port': 45795, 'pp_rank': 0, 'is_dummy': False} "
    b"for engine rank: 0\n"
    b"[%(t)s TP0] Sending to prefill server with bootstrap room %(room)d is_dummy=False\n"
)
STATS = (
    b"[%(t)s TP0] ReqTimeStats(rid=%(rid)s, bootstrap_room=%(room)d, input_len=%(tokens)d, cached_input_len=0, "
    b"output_len=64, attempts=1, type=%(kind)s): bootstrap_duration=1.21ms, queue_duration=0.50ms, "
    b"forward_duration=%(slot)d.04ms, start_time=1795226400.5\n"
)
FAILED = {
    "prefill": b"[%(t)s TP0] Prefill bootstrap failed for request rank=0 req.rid='%(rid)s' "
    b"req.bootstrap_room=%(room)d with exception KVTransferError(bootstrap_room=%(room)d): Request %(room)d timed out "
    b"after 300.0s in KVPoll.Bootstrapping\n",
    "decode": b"[%(t)s TP0] Decode transfer failed for request rank=0 decode_req.req.rid='%(rid)s' "
    b"decode_req.req.bootstrap_room=%(room)d with exception KVTransferError(bootstrap_room=%(room)d): Request %(room)d "
    b"timed out after 300.0s in KVPoll.WaitingForInput\n",
}
TRACEBACK = (
    b"Traceback (most recent call last):\n"
    b'  File "/srv/sglang/python/sglang/srt/disaggregation/nixl/conn.py", line 412, in transfer_worker\n'
    b"    state = self.agent.check_xfer_state(handle)\n"
    b"nixl._bindings.nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT\n"
)
ROUTER = (
    b"\x1b[2m%(t)s\x1b[0m \x1b[32m INFO\x1b[0m \x1b[1mhttp_request\x1b[0m\x1b[1m{\x1b[0m\x1b[3mmethod\x1b[0m\x1b[2m="
    b"\x1b[0mPOST \x1b[3muri\x1b[0m\x1b[2m=\x1b[0m/generate \x1b[3mrequest_id\x1b[0m\x1b[2m=\x1b[0m"
    b'"req-%(rid)s" \x1b[3mstatus_code\x1b[0m\x1b[2m=\x1b[0m200 \x1b[3mlatency\x1b[0m\x1b[2m=\x1b[0m%(tokens)d'
    b"\x1b[1m}\x1b[0m\x1b[2m:\x1b[0m \x1b[2msmg::response\x1b[0m\x1b[2m:\x1b[0m finished processing request\n"
)


_DIM = b"\x1b[2m%(t)s\x1b[0m \x1b[34mDEBUG\x1b[0m \x1b[2msmg::routers::http::pd_router\x1b[0m\x1b[2m:\x1b[0m "
ROUTER_DEBUG = (
    _DIM + b"PD retry attempt 0 using prefill=http://10.0.0.3:30000 decode=http://10.0.0.8:30000\n",
    _DIM + b"Sending concurrent requests prefill_url=http://10.0.0.3:30000 decode_url=http://10.0.0.8:30000\n",
    _DIM + b"Received concurrent requests\n",
    _DIM + b"Decode response status: 200 OK\n",
)


class File(NamedTuple):
    name: str
    kind: str  # router, prefill, decode
    index: int
    debug: bool
    stats: bool


def files(mix: str) -> list[File]:
    counts = {"router": ROUTERS, "prefill": PREFILLS, "decode": DECODES}
    return [
        File(f"{kind}-{at}.log", kind, at, mix == "dense" or at == 0, mix == "dense" or at == 1)
        for kind, count in counts.items()
        for at in range(count)
    ]


def room_of(number: int) -> int:
    """The 63-bit room of the n-th request (splitmix64)."""
    z = (number * 0x9E3779B97F4A7C15 + 0x1234567) & (2**64 - 1)
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (z ^ (z >> 31)) >> 1


def takes(file: File, number: int) -> bool:
    if file.kind == "router":
        return number % ROUTERS == file.index
    if file.kind == "prefill":
        return number % PREFILLS == file.index
    return number // PREFILLS % DECODES == file.index


def lines(file: File, number: int, t: bytes) -> bytes:
    room = room_of(number)
    rid = b"%016x%016x" % (room_of(number + (1 << 40)) * 2 + 1, room ^ 0x5555555555555555)
    fields = {
        b"t": t, b"room": room, b"rid": rid, b"tokens": 100 + room % 3000, b"slot": room % 97,
        b"kind": file.kind.encode(),
    }  # fmt: skip
    if file.kind == "router":
        return ROUTER % fields if not file.debug else b"".join(line % fields for line in (*ROUTER_DEBUG, ROUTER))
    text = b""
    if file.kind == "prefill":
        text += PREFILL_DEBUG % fields if file.debug else b""
        text += PREFILL_BATCH % (t, 100 + room % 3000, room % 90, room % 7, room % 5, room % 40000)
    else:
        text += DECODE_DEBUG % fields if file.debug else b""
        for step in range(3):
            text += DECODE_BATCH % (t, room % 64, room % 90000 + step, room % 90, room % 9000)
    if number % FAILED_EVERY == 0:
        text += FAILED[file.kind] % fields + (TRACEBACK if number % CRASHED_EVERY == 0 else b"")
    elif file.stats:
        text += STATS % fields
    return text + POST % (t, 30000 + room % 20000)


def write(path: Path, file: File, size: int) -> None:
    """`size`: bytes at least; the last batch is cut so that all files have the same number of bytes to the line."""
    number = 0
    with path.open("wb") as stream:
        while stream.tell() < size:
            t = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(START + number / ROOMS_PER_SECOND)).encode()
            batch = b"".join(lines(file, n, t) for n in range(number, number + BATCH) if takes(file, n))
            left = size - stream.tell()
            stream.write(batch if len(batch) <= left else batch[: batch.rfind(b"\n", 0, left) + 1] or batch)
            number += BATCH
            if len(batch) > left:
                break
