"""Commands that repair a router's list: the whole command line, or a change at run time.

Checked against sglang-router 0.3.2 and smg 1.13.0: neither can change a bootstrap port in place; a worker has to leave
and come back. mini_lb has no such endpoint.
"""

from __future__ import annotations

import ipaddress
import json
import shlex
from functools import lru_cache
from typing import TYPE_CHECKING

from pdctl.doctor.bootstrap_ports import address, plain, port_claims
from pdctl.engines.kinds import RELEASED_ROUTER, ROUTERS, router_kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.doctor.facts import Facts
    from pdctl.fleet.observations import Engine, Router


@lru_cache(maxsize=2)
def router_command(facts: Facts) -> str:
    """The router's command line with every prefill's real port and every decode, each in the role it says it has."""
    truth = {claim.prefill: claim.truth for claim in port_claims(facts, True).claims}
    prefills: list[tuple[str, int | None]] = []
    decodes: list[str] = []
    for engine in facts.engines:
        name, url = engine.endpoint.name, plain(engine.endpoint.url)
        if role(engine) == "prefill":
            prefills.append((url, truth.get(name) or engine.number("disaggregation_bootstrap_port")))
        elif role(engine) == "decode":
            decodes.append(url)
    return spell(facts.router, prefills, decodes)


def role(engine: Engine) -> str:
    """The engine's role: what it reports, else what the user said."""
    return engine.mode if engine.mode in ("prefill", "decode") else engine.endpoint.role


def spell(router: Router | None, prefills: Iterable[tuple[str, int | None]], decodes: Iterable[str]) -> str:
    known = router_kind(router.kind) if router is not None else None
    words = list((known or ROUTERS[RELEASED_ROUTER]).words)
    if router is not None:
        host, port = address(router.url)
        words += ["--host", host] if _literal(host) else []  # they refuse a name
        words += ["--port", str(port)]
    for url, bootstrap in prefills:
        words += ["--prefill", url, *((str(bootstrap),) if bootstrap is not None else ())]
    for url in decodes:
        words += ["--decode", url]
    return shlex.join(words)


def _literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def worker_body(url: str, role: str, bootstrap_port: int | None) -> str:
    """What POST /workers takes."""
    port = {} if bootstrap_port is None else {"bootstrap_port": bootstrap_port}
    return json.dumps({"url": url, "worker_type": role, **port}, ensure_ascii=False)


def at_run_time(router: Router, url: str, role: str, bootstrap_port: int | None) -> str:
    """DELETE and POST /workers for one worker; "" where the router has no such endpoint."""
    if router.workers is None:
        return ""
    base = plain(router.url)
    body = worker_body(url, role, bootstrap_port)
    pick = f'.workers[]|select(.url=="{url}").id'
    return (
        f"curl -s {base}/workers | jq -r {shlex.quote(pick)} | xargs -I ID curl -s -X DELETE {base}/workers/ID"
        f" && sleep 2 && curl -s {base}/workers -H 'content-type: application/json' -d {shlex.quote(body)}"
    )
