"""A few GETs of one server at once, under one deadline."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from pdctl.fleet import peer_json
from pdctl.fleet.http_client import Answer, answer_of
from pdctl.fleet.http_connection import Call, wait
from pdctl.fleet.observations import Reply

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.fleet.deadline import Deadline


UNAUTHORIZED, FORBIDDEN = 401, 403
# In JSON, the words of a server that wants another key; SGLang answers {"error": "Forbidden"}.
KEY_WANTED = re.compile(r"\bAPI[ -]key\b|^(?:Forbidden|Unauthorized)$", re.IGNORECASE)
LIMIT = 8 * 1024 * 1024  # bytes of one answer; many are read at once
MAX_TEXT = 64 * 1024  # characters kept of a body that is not JSON
DATE = re.compile(r"[A-Z][a-z]{2}, (\d\d) ([A-Z][a-z]{2}) (\d{4}) (\d\d):(\d\d):(\d\d) GMT")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
DATE_AGE = 2.0  # seconds: a server's Date is in whole seconds, and uvicorn and aiohttp update it once a second


class Prober:
    """`patience`: seconds one request may take. `key`: bearer token for servers that require one."""

    def __init__(self, deadline: Deadline, patience: float, key: str = "") -> None:
        self.deadline = deadline
        self._patience = patience
        self._key = key

    def ask(self, base: str, path: str) -> Answer:
        return self.ask_all(base, (path,))[0]

    def ask_all(self, base: str, paths: Sequence[str]) -> tuple[Answer, ...]:
        """GET all paths at once, each on its own connection."""
        within = self.deadline.within(self._patience)
        calls = [Call("GET", base + path, None, within, key=self._key, limit=LIMIT) for path in paths]
        try:
            wait(calls)
        finally:
            for call in calls:
                call.close()
        return tuple(map(answer_of, calls))

    def look(self, base: str, path: str) -> Reply:
        return reply(path, self.ask(base, path))


def reply(path: str, answer: Answer) -> Reply:
    """The answer with its body parsed, or with the reason why there is none."""
    body = answer.json() if answer.body else None
    if body is None and answer.body:
        body = answer.text[:MAX_TEXT]
    return Reply(
        path,
        answer.status,
        answer.seconds,
        refusal(answer),
        body,
        wants_key(answer.status, answer.headers, answer.body),
    )


def wants_key(status: int, headers: Mapping[str, str], body: bytes) -> bool:
    """Whether a server refuses a request for want of the right API key.

    A 403 is that only if it says so: a proxy or a firewall in between answers 403 too.
    """
    if status != FORBIDDEN or "www-authenticate" in headers:
        return status in (UNAUTHORIZED, FORBIDDEN)
    return bool(KEY_WANTED.search(peer_json.message(peer_json.parse(body))))


def refusal(answer: Answer) -> str:
    """ "" for a 200, else what the server or the network reported."""
    if answer.ok:
        return ""
    if not answer.reached:
        return answer.reason
    return told(answer.headers, answer.body)


def told(headers: Mapping[str, str], body: bytes) -> str:
    """What an answer other than 200 says, in words; "" if nothing."""
    if "location" in headers:
        return f"redirects to {peer_json.quoted(headers['location'])}, which is not followed"
    return peer_json.quoted(peer_json.complaint(body))


def clock_offset(answer: Answer) -> float | None:
    """The least by which the server's clock differs from ours, in seconds (ahead: positive); None without a Date."""
    told = _moment(answer.headers.get("date", ""))
    if told is None:
        return None
    least, most = told - answer.ended, told + DATE_AGE - (answer.ended - answer.seconds)
    return least if least > 0 else most if most < 0 else 0.0


def _moment(date: str) -> float | None:
    """A date such as "Sat, 21 Nov 2026 02:04:44 GMT" in seconds since the epoch; None if it is not one."""
    found = DATE.fullmatch(date)
    if found is None:
        return None
    day, month, year, hour, minute, second = found.groups()
    try:
        moment = datetime(
            int(year), MONTHS.index(month) + 1, int(day), int(hour), int(minute), int(second), tzinfo=timezone.utc
        )
    except ValueError:
        return None
    return moment.timestamp()
