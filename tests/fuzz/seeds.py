"""Real inputs to begin from: examples of dialect rows, recorded logs, recorded answers of real servers."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from pdctl.engines.row_matching import ROWS
from tests.fuzz.edits import SEPARATOR

DATA = Path(__file__).resolve().parents[1] / "data"
SETS = ("0.5.23-2p1d", "0.5.8-2p1d-router-without-ports", "0.5.8-prefill-dp2", "0.5.18-1p", "smg-1.13.0-2p1d")
SHORT = 3000  # bytes of a metrics text or an array that are used: the rest is more of the same
NEW_ALL = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
NEW_ONE = "/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0"
OLD_ALL = "/route?engine_rank=-1&target_dp_group=-1&target_pp_rank=-1"
OLD_ONE = "/route?engine_rank=0&target_dp_group=0&target_pp_rank=0"


@cache
def lines() -> tuple[bytes, ...]:
    """Each kind of line once or more, as real engines and routers wrote it, with its line end."""
    found = [line for path in sorted((DATA / "logs").glob("*.log")) for line in path.read_bytes().splitlines(True)]
    return tuple(dict.fromkeys([*(row.example.encode() for row in ROWS), *found]))


@cache
def excerpts() -> tuple[bytes, ...]:
    """Whole logs of one process, cut to what tells who wrote them."""
    return tuple(path.read_bytes()[:6000] for path in sorted((DATA / "logs").glob("*.log")))


@cache
def logsets() -> tuple[bytes, ...]:
    """The logs of one deployment: of each its start and what it says about a few rooms."""
    found = []
    for scenario in sorted((DATA / "rooms").iterdir()):
        logs = [_text(path) for path in sorted(scenario.iterdir()) if ".log" in path.name]
        found.append(SEPARATOR.join(_part(log) for log in logs))
    return tuple(one for one in found if one)


def _text(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def _part(log: bytes) -> bytes:
    whole = log.splitlines(True)
    named = [line for line in whole[12:] if b"room" in line][:24]
    return b"".join((*whole[:12], *named, *whole[-4:]))


@cache
def served(source: str, who: str) -> dict[str, bytes]:
    """Path with query → `STATUS body` as one component answered; `who` as the files' names begin."""
    found: dict[str, bytes] = {}
    for line in (DATA / "answers" / source / "INDEX.tsv").read_text().splitlines():
        file, url, status, _ = line.split("\t")
        if file.rpartition(".")[0] == who:
            parts = urlsplit(url.removeprefix("GET "))
            body = (DATA / "answers" / source / file).read_bytes()
            body = body[:SHORT] if parts.path == "/metrics" else body
            found[parts.path + ("?" + parts.query if parts.query else "")] = status.encode() + b" " + body
    return found


def engine(source: str, who: str) -> bytes:
    told = served(source, who)
    return SEPARATOR.join(
        told.get(path, b"404 ")
        for path in ("/server_info", "/model_info", "/v1/loads", "/metrics", "/health", "/get_load")
    )


def bootstrap(source: str, who: str) -> bytes:
    told = served(source, who)
    ranks = [told.get(path, b"400 ") for path in (NEW_ALL, OLD_ALL, NEW_ONE, OLD_ONE)]
    return SEPARATOR.join((told["/health"], *ranks))


def router(source: str) -> bytes:
    told = served(source, "router")
    paths = ("/readiness", "/workers", "/metrics", "/get_server_info")
    return SEPARATOR.join(told.get(path, b"404 ") for path in paths)


@cache
def engines() -> tuple[bytes, ...]:
    whole = ("0.5.23-2p1d", "0.5.8-2p1d-router-without-ports")
    found = [engine(source, who) for source in whole for who in ("prefill0", "decode0")]
    small = SEPARATOR.join(
        (
            b'{"disaggregation_mode":"prefill","disaggregation_bootstrap_port":8998,"page_size":16,"tp_size":2,"dp_size":1,'
            b'"version":"0.5.18","internal_states":[{"max_total_num_tokens":4096,"avg_spec_accept_length":null}]}',
            b'{"model_path":"m","is_generation":true}',
            served("0.5.18-1p", "prefill0")["/v1/loads"],
            b'# TYPE a counter\nsglang:num_running_reqs{x="y"} 1.0\n',
            b"200 ",
        )
    )
    return (*found, engine("0.5.8-prefill-dp2", "prefill0"), *[small] * len(found))


def expositions() -> tuple[bytes, ...]:
    """Prometheus texts of engines, sglang-router and smg, a piece from each of a few places."""
    files = ((SETS[0], "prefill0"), (SETS[1], "prefill0"), (SETS[0], "router"), (SETS[4], "router"))
    whole = [(DATA / "answers" / source / f"{who}.metrics").read_bytes() for source, who in files]
    return tuple(text[at : at + 1000] for text in whole for at in range(0, len(text), 9000))


@cache
def bootstraps() -> tuple[bytes, ...]:
    told = [bootstrap(source, "prefill0.bootstrap8998") for source in SETS[:4]]
    waiting = b"503 Prefill server not fully registered yet (1 workers registered)."
    return (
        *told,
        SEPARATOR.join((b"OK", waiting, b"400 ", b"404 ", b"404 ")),
        SEPARATOR.join((b"404 ", b"404 ", b"404 ", b"404 ", b"404 ", b'{"disaggregation_mode":"decode"}')),
    )


@cache
def routers() -> tuple[bytes, ...]:
    own = (
        b'{"schema":"pdctl.router.readiness/1","ready":true}',
        b'{"schema":"pdctl.router.workers/1","workers":[{"url":"http://127.0.0.1:30000","worker_type":"prefill",'
        b'"is_healthy":true,"bootstrap_port":8998,"load":1}]}',
        b'pdctl_router_breaker_state{prefill="http://127.0.0.1:30000",decode="http://127.0.0.1:30002"} 2\n',
        b"404 ",
    )
    mini = (b"200 ", b"404 ", b"404 ", b'{"prefill":[],"decode":[]}')
    return (*(router(source) for source in (SETS[0], SETS[1], SETS[4])), SEPARATOR.join(own), SEPARATOR.join(mini))


def deployments() -> tuple[bytes, ...]:
    """Router, then one engine for every prefill and decode, then one bootstrap server, then what /generate answers."""
    found = []
    for source in (SETS[0], SETS[1]):
        parts = [
            router(source), engine(source, "prefill0"), engine(source, "decode0"),
            bootstrap(source, "prefill0.bootstrap8998"), generated()[0],
        ]  # fmt: skip
        found.append(SEPARATOR.join(parts))
    return tuple(found)


@cache
def generated() -> tuple[bytes, ...]:
    """Answers to /generate: whole, for n = 2, aborted, and as a stream."""
    meta = (
        b'"meta_info":{"id":"a","finish_reason":{"type":"length","length":2},"prompt_tokens":5,"completion_tokens":2}'
    )
    one = b'{"text":" a b","output_ids":[52,21],' + meta + b"}"
    gone = b'{"text":"","output_ids":[],"meta_info":{"finish_reason":{"type":"abort","message":"KVTransferError"}}}'
    return (
        one,
        b"[" + one + b"," + one + b"]",
        gone,
        b"data: " + one + b"\n\ndata: " + one + b"\n\ndata: [DONE]\n\n",
        b'400 {"error":{"message":"Input length exceeds the context length."}}',
        b'500 {"detail":"x"}',
    )


def framings() -> tuple[bytes, ...]:
    """Whole HTTP answers, and what else may stand at a port."""
    head = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\n"
    return (
        head + b"content-length: 3\r\n\r\nabc",
        head + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n3;x=y\r\nabc\r\n0\r\ntrailer: x\r\n\r\n",
        head + b"\r\nuntil the end",
        b"HTTP/1.1 100 Continue\r\n\r\n" + head + b"content-length: 0\r\n\r\n",
        b"HTTP/1.0 404 Not Found\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\ndate: Sat, 21 Nov 2026 02:04:44 GMT\r\n\r\n",
        b"\x15\x03\x01\x00\x02\x02\x50",
        b"\xff" + b"\0" * 7 + b"\x01\x7f\x03\x01NULL",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\0\0\x12\x04\0\0\0\0\0\0\x03",
    )


def reached() -> tuple[bytes, ...]:
    """What the command of --from-host prints, also behind a prompt and in another order."""
    head = b'{"source": "node-7", "targets": 3, "pdctl": "pdctl.reach/1"}\n'
    one = b'{"host": "127.0.0.1", "port": 8998, "reason": "", "seconds": 0.1, "pdctl": "pdctl.reach/1"}\n'
    two = one.replace(b"8998", b"30002").replace(b'"reason": ""', b'"reason": "connection refused"')
    return head + one + two, b"user@node:~$ python3 -c x\n[pod/a/b] " + two + one + head, head


def secretive() -> tuple[bytes, ...]:
    """Texts of the kinds that go into a bundle, with something in them that must not leave."""
    return (
        b"python -m sglang.launch_server --api-key s3cr3t-value --port 30000",
        b'{"api_key": "abcd1234efgh", "port": 30000, "token": null}',
        b"HF_TOKEN=hf_abcdefghijklmnopqrstuv",
        b"ServerArgs(api_key='k-1234567', tp_size=4)",
        b"Authorization: Bearer eyJhbGciOi.J9 and http://me:pa55word@10.0.0.1:30000/health",
        b"Receive: obj=GenerateReqInput(rid='a', text='the patient is ill', bootstrap_room=7)",
        b'{"messages":[{"role":"user","content":"my \\"own\\" words"}]}',
        b"obj=GenerateReqInput(input_ids=[101, 7592, 102], bootstrap_room=7)",
        *lines()[::40],
    )


def rows() -> tuple[bytes, ...]:
    """Files of a user's own dialect rows."""
    some = [row for row in ROWS if row.phase is not None][::25]
    return (
        *(_file(row.id, row.pattern, row.example, row.literal.decode()) for row in some),
        b"rows:\n  - id: x\n    speaker: sglang\n    level: info\n    literal: 'hello'\n"
        b"    pattern: 'hello (?P<room>\\d+)'\n    example: '[2026-11-21 01:34:20] hello 7'\n"
        b"    since: 0.5.8\n    until: 0.5.23\n    echo: true\n    phase: failed\n",
    )


def _file(name: str, pattern: str, example: str, literal: str) -> bytes:
    cells = {"id": f"my-{name}", "pattern": pattern, "example": example, "literal": literal}
    quoted = [f"  {key}: '{value}'" for key, value in ((key, value.replace("'", "''")) for key, value in cells.items())]
    return "\n".join(["-", *quoted, "  speaker: sglang", "  level: info", ""]).encode()


def imported() -> tuple[bytes, ...]:
    """Deployments as others write them down: scripts in several files, a compose file, a recipe, manifests."""
    tests = Path(__file__).resolve().parents[1]
    scripts = (
        b'#!/bin/bash\nMODEL=${MODEL:-m}\nARGS=(--model-path "$MODEL" --tp 2)\nfor i in 0 1; do\n'
        b'CUDA_VISIBLE_DEVICES=$i python3 -m sglang.launch_server "${ARGS[@]}" --disaggregation-mode prefill '
        b"--port $((30000 + i)) --disaggregation-bootstrap-port $((8998 + i)) > log_$i 2>&1 &\ndone\n",
        b"ssh d0 'python3 -m sglang.launch_server --model-path m --disaggregation-mode decode --port 30002 --nnodes 2 "
        b"--node-rank 0 --dist-init-addr $HEAD:5000' # node 0\ncat <<EOF\n$X\nEOF\n",
        b"python3 -m sglang_router.launch_router --pd-disaggregation --prefill http://127.0.0.1:30000 8998 \\\n"
        b"  --prefill http://127.0.0.1:30001 8999 --decode http://d0:30002 --policy random\n",
    )
    written = sorted((tests / "imports" / "written").iterdir())
    published = sorted((tests / "doctor" / "static" / "written").glob("*.yaml"))
    return (SEPARATOR.join(scripts), *scripts, *(path.read_bytes() for path in (*written, *published)))


def manifests() -> tuple[bytes, ...]:
    """Kubernetes manifests and start scripts."""
    script = (
        b"#!/bin/bash\nexport MC_TE_METRIC=1\nfor i in 0 1; do\n"
        b'CUDA_VISIBLE_DEVICES=$i python3 -m sglang.launch_server --model-path "m" --disaggregation-mode prefill '
        b"--port 3000$i --disaggregation-bootstrap-port=8998 &\ndone\n"
        b"python3 -m sglang.launch_server --model-path m --disaggregation-mode decode --port 30001 --page-size 64 &\n"
        b"python3 -m sglang_router.launch_router --pd-disaggregation --prefill http://127.0.0.1:30000 8998 \\\n"
        b"  --decode http://127.0.0.1:30001 # the router\n"
    )
    chart = b"""apiVersion: apps/v1
kind: StatefulSet
metadata: {name: prefill}
spec:
  replicas: 2
  template:
    metadata: {labels: {app: prefill}, annotations: {sglang.ai/bootstrap-port: "8998"}}
    spec:
      hostNetwork: true
      terminationGracePeriodSeconds: 30
      containers:
        - name: engine
          image: lmsysorg/sglang:latest
          command: [sh, -c]
          args: ["exec python3 -m sglang.launch_server --model-path m --disaggregation-mode prefill --port $PORT"]
          env: [{name: PORT, value: "30000"}, {name: UCX_TLS, valueFrom: {fieldRef: {fieldPath: x}}}]
          ports: [{containerPort: 30000}, {name: boot, containerPort: 8998}]
          readinessProbe: {httpGet: {path: /health, port: 30000}, periodSeconds: 5, failureThreshold: 3}
          resources: {limits: {nvidia.com/gpu: 8, memory: 64Gi, rdma/hca: 1}}
---
apiVersion: v1
kind: Service
metadata: {name: prefill}
spec: {selector: {app: prefill}, clusterIP: None, ports: [{port: 30000}, {port: 8998, targetPort: boot}]}
"""
    return ((DATA / "doctor" / "prefill-annotated.yaml").read_bytes(), script, chart)
