"""Logs of SGLang engines, line by line, as 0.5.8 to 0.5.23 write them. Seconds count from 02:00:00."""

from __future__ import annotations

HOST = "127.0.0.1"
# An access line: port, path, status.
ACCESS = 'INFO:     127.0.0.1:5000{} - "POST {} HTTP/1.1" {}'


def at(second: int) -> str:
    return f"[2026-11-21 02:{second // 60:02}:{second % 60:02}]"


def engine(role: str, port: int, bootstrap: int, *lines: str, until: int = 1800, more: str = "") -> list[str]:
    """A start, these lines, and a sign of life at `until`."""
    return [
        f"{at(0)} server_args=ServerArgs(model_path='/srv/model', host='{HOST}', port={port}, log_level='debug', "
        f"disaggregation_mode='{role}', disaggregation_transfer_backend='nixl', "
        f"disaggregation_bootstrap_port={bootstrap}{more})",
        f"{at(1)} INFO:     Uvicorn running on http://{HOST}:{port} (Press CTRL+C to quit)",
        *lines,
        f'{at(until)} INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK',
    ]


def rid(room: int) -> str:
    return f"{room:032x}"


def sending(second: int, room: int) -> str:
    return f"{at(second)} Sending to prefill server with bootstrap room {room} is_dummy=False"


def decode_failed(second: int, room: int, why: str, queue: str = "transfer") -> str:
    return (
        f"{at(second)} Decode {queue} failed for request rank=0 decode_req.req.rid='{rid(room)}' "
        f"decode_req.req.bootstrap_room={room} with exception KVTransferError(bootstrap_room={room}): {why}"
    )


def decode_timed_out(second: int, room: int, waited: int = 20) -> str:
    return decode_failed(second, room, f"Request {room} timed out after {waited}.0s in KVPoll.WaitingForInput")


def got_info(second: int, room: int) -> list[str]:
    return [
        f"{at(second)} got info room={room} agent_name='c2b1f0aa-77d1-4a8e-8c19-5ad1c3b0a001' required_dst_info_num=1",
        f"{at(second)} room={room} is bootstrapped",
    ]


def prefill_failed(second: int, room: int, why: str, queue: str = "bootstrap") -> str:
    return (
        f"{at(second)} Prefill {queue} failed for request rank=0 req.rid='{rid(room + 1)}' req.bootstrap_room={room} "
        f"with exception KVTransferError(bootstrap_room={room}): {why}"
    )


def prefill_timed_out(second: int, room: int, waited: int = 20) -> str:
    return prefill_failed(second, room, f"Request {room} timed out after {waited}.0s in KVPoll.Bootstrapping")


def received(second: int, room: int, who: str, port: int | None = 8998, host: str = HOST) -> str:
    return (
        f"{at(second)} Receive: obj=GenerateReqInput(rid='{who}', bootstrap_host='{host}', bootstrap_port={port}, "
        f"bootstrap_room={room}, stream=False)"
    )


def finished(second: int, room: int, who: str, how: str = "{'type': 'length', 'length': 8}") -> str:
    return (
        f"{at(second)} Finish: obj=GenerateReqInput(rid='{who}', bootstrap_host='{HOST}', bootstrap_port=8998, "
        f"bootstrap_room={room}, stream=False), out={{'meta_info': {{'finish_reason': {how}}}}}"
    )
