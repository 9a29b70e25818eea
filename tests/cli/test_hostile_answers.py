"""What servers and records say reaches no terminal as it is: every string of theirs is hostile here."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from pdctl.launch import preflight, procfs
from pdctl.launch.run_opening import open_run
from pdctl.launch.run_record import State
from tests.cases import for_each
from tests.cli.verb import within
from tests.fleet.conftest import Answers, Serve, port_of, serve
from tests.launch.conftest import QUICK, deploy

__all__ = ["serve"]

HOSTILE = "\x1b[31mEVIL\x1b]0;pwn\x07\u202e\u200b\x9b1m\x00\n\r2026 fake line"
TRACES = ("EVIL", "pwn")  # what remains of it may be shown


def plain(text: str) -> bool:
    """Whether nothing in it controls a terminal, or hides or reorders text."""
    return text.replace("\n", "").replace("\t", "").isprintable() and "\n2026 fake line" not in text


def engine(role: str, **wrong: Any) -> Answers:
    info = {"disaggregation_mode": role, "version": "0.5.23", "page_size": 16, "tp_size": 1, "served_model_name": "m"}
    load = {"num_used_tokens": 1, "max_total_num_tokens": 1600, "num_running_reqs": 1, "queues": {"waiting": 1}}
    return {
        "/health": (200, ""),
        "/server_info": (
            200,
            json.dumps({**info, **{name: HOSTILE for name in info if name in wrong or "all" in wrong}}),
        ),
        "/v1/loads": (200, json.dumps({"loads": [{**load, HOSTILE: HOSTILE, **wrong.get("load", {})}]})),
        "/metrics": (200, f'sglang:num_requests_total{{model_name="{HOSTILE}"}} 5\n'),
    }


def router(*urls: str) -> Answers:
    entry = {
        "worker_type": HOSTILE,
        "is_healthy": False,
        "reason": HOSTILE,
        "id": HOSTILE,
        "labels": {HOSTILE: HOSTILE},
    }
    roles = ("prefill", "decode")
    listed = [{**entry, "url": url, "worker_type": role} for url, role in zip(urls, roles, strict=True)]
    bad = [{**entry, "url": url, "worker_type": "decode"} for url in (HOSTILE, "http://h/" + HOSTILE)]
    said = dict.fromkeys(("status", "reason", "detail", "message"), HOSTILE)
    return {
        "/readiness": (503, json.dumps({**said, "reasons": [HOSTILE]})),
        "/workers": (200, json.dumps({"workers": [*listed, *bad], "stats": {HOSTILE: HOSTILE}})),
    }


def test_status_shows_no_string_of_a_server_as_it_is(tmp_path: Path, serve: Serve) -> None:
    whole = deploy()
    ports = [port_of(serve(engine("prefill", all=True))), port_of(serve(engine("decode", disaggregation_mode=True)))]
    servers = [
        dataclasses.replace(one, port=port, ranks=0, bootstrap_port=None)
        for one, port in zip(whole.servers, ports, strict=True)
    ]
    assert whole.router is not None
    front = dataclasses.replace(whole.router, port=port_of(serve(router(*(one.url for one in servers)))))
    deployment = dataclasses.replace(whole, roles=tuple(servers), router=front)
    directory, run, lock = open_run(tmp_path, "blue", deployment, QUICK, check=preflight.check, argv=("pdctl",))
    me = procfs.identity(os.getpid())
    alive = tuple(dataclasses.replace(one, pid=os.getpid(), started=me, generation=1) for one in run.processes)
    directory.save(dataclasses.replace(
        run, supervisor=os.getpid(), supervisor_started=me, state=State.SERVING, processes=alive
    ))  # fmt: skip
    os.close(lock)
    for form in ((), ("-o", "json")):
        done = within("status", "blue", *form, env={"PDCTL_HOME": str(tmp_path), "PATH": os.environ["PATH"]})
        assert "EVIL" in done.stdout, done
        assert plain(done.stdout + done.stderr), ascii(done.stdout)
        assert "disaggregation-mode" in done.stdout
        assert "/readiness" in done.stdout


@for_each("form", ["text", "jsonl"])
def test_advise_shows_no_string_of_a_server_as_it_is(tmp_path: Path, serve: Serve, form: str) -> None:
    odd = {"load": {"num_used_tokens": HOSTILE}}
    ends = [serve(engine("prefill", all=True)), serve(engine("decode", **odd))]
    file = tmp_path / f"{form}.jsonl"
    words = ("autoscale", "advise", "--router", serve(router(*ends)), "--count", "2", "--interval", "0.1s", "-v")
    done = within(*words, "--record", file, "-o", form)
    assert done.returncode == 0, done
    assert "EVIL" in done.stdout
    assert plain(done.stdout + done.stderr), ascii(done.stdout)
    again = within("autoscale", "advise", "--replay", file, "-v", "-o", form)
    assert (again.returncode, again.stdout) == (0, done.stdout)


@for_each("form", ["text", "jsonl"])
def test_advise_shows_no_string_of_a_record_as_it_is(tmp_path: Path, serve: Serve, form: str) -> None:
    file = tmp_path / f"{form}.jsonl"
    urls = ("--prefill", serve(engine("prefill")), "--decode", serve(engine("decode")))
    assert within("autoscale", "advise", *urls, "--count", "1", "--record", file).returncode == 0
    head, line = file.read_text(encoding="utf-8").splitlines()

    def replay(look: dict[str, Any]) -> Any:
        file.write_text(f"{head}\n{json.dumps(look)}\n", encoding="utf-8")
        done = within("autoscale", "advise", "--replay", file, "-v", "-o", form)
        assert plain(done.stdout + done.stderr), ascii(done.stdout + done.stderr)
        return done

    look = json.loads(line)
    names = [{**one, "name": f"{HOSTILE}{at}"} for at, one in enumerate(look["observation"]["replicas"])]
    told = replay({**look, "notes": [HOSTILE], "observation": {**look["observation"], "replicas": names}})
    assert "EVIL" in told.stdout + told.stderr
    for at in (HOSTILE, "2026-11-24T01:00:00.000Z" * 9999, "yesterday", ""):
        done = replay({**look, "at": at})
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: {file}:2: `at` is ")
        assert "not a time such as 2026-11-24T01:00:00.000Z" in done.stderr
        assert len(done.stderr) < 500
