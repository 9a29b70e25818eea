"""What a prefill's bootstrap server says about its ranks (sglang 0.5.13+ srt/disaggregation/common/conn.py)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pdctl.fleet import http

# The topology query: all four selectors -1. 503 until every rank has registered, then 200.
QUERY = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
# sglang 0.5.3 and 0.5.8 name the selectors differently and answer 400 to the query above.
OLD_QUERY = "/route?engine_rank=-1&target_dp_group=-1&target_pp_rank=-1"
COUNT = re.compile(r"\((\d+) workers registered\)")


@dataclass(frozen=True, slots=True)
class Registration:
    """`registered` is None where the server does not count (it is unreachable, or older than 0.5.13)."""

    reached: bool
    complete: bool
    registered: int | None = None
    reason: str = ""


def registration(host: str, port: int, ranks: int, timeout: float = 2.0) -> Registration:
    """Whether all `ranks` of the prefill whose bootstrap server is at host:port have registered."""
    base = f"http://{_bracket(host)}:{port}"
    answer = http.get(base + QUERY, timeout)
    if answer.status == 400:
        return _old(http.get(base + OLD_QUERY, timeout), ranks)
    if not answer.reached:
        return Registration(False, False, reason=answer.reason)
    if answer.ok:
        return Registration(True, True, ranks)
    found = COUNT.search(answer.text)
    return Registration(True, False, int(found[1]) if found else None, answer.text.strip()[:200])


def _old(answer: http.Answer, ranks: int) -> Registration:
    """0.5.3 and 0.5.8 answer 200 with null sizes until the first rank has registered; they never count."""
    body = answer.json()
    sized = isinstance(body, dict) and body.get("prefill_attn_tp_size") is not None
    return Registration(answer.reached, answer.ok and sized, ranks if sized else None, answer.reason)


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host
