"""Secrets recognised by their position in HTTP (headers, URLs, queries) or by their appearance alone."""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pdctl.doctor.secret_name import named_values
from pdctl.doctor.secret_shapes import (
    AUTHORIZATION,
    ENCODED,
    ESCAPED,
    FIELD,
    FLAG,
    FORM,
    GONE,
    HASH,
    HASHED,
    HEADERS,
    ISSUED,
    LONGEST,
    PRIVATE,
    QUERIED,
    QUOTE,
    RANDOM,
    REQUEST,
    REQUEST_NAME,
    URL,
    WEBHOOK,
    SecretSpan,
    closing,
    end_of_line,
    is_random,
    looks_secret,
    unless_harmless,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEADER = re.compile(rf"(?i)(?<![A-Za-z0-9_])(?:{HEADERS})(?P<mid>{ESCAPED}[\"']?[ \t]{{0,4}}[:=,][ \t]{{0,4}})")
_SCHEME = re.compile(r"(?i)(?:(?:bearer|basic|token|negotiate|apikey|key|bot|splunk|sso-key|ntlm)[ \t]+)?")
_TO_END = re.compile(r"(?i)(?:digest|aws4-hmac-sha256|aws|signature|hawk|oauth|sharedkey)\b")
_UNTIL_END = re.compile(r"(?:\\[^nr\"'\s]|[^\r\n\\\"'\0])+")
_TOKEN = re.compile(r"[^\s,;\"'`<>)}\]\\]+")
_BEARER = re.compile(r"(?i)\b(?:bearer|basic)[ \t]+(?P<value>[A-Za-z0-9._~+/=-]{6,})")
_USER = re.compile(r"(?<=://)(?P<value>[^/\s\"'<>\\?#]{1,512})(?=@)")
_SLASHED = re.compile(
    r"(?<=://)(?P<value>[^/\s:@\"'<>\[\\]{0,128}:(?!\d{1,5}(?:[/?#\s\"'),;\]]|$))[^\s\"'<>\\?#]{1,256})(?=@[A-Za-z0-9\[])"
)
_BARE_USER = re.compile(
    r"(?<![\w/.%+-])[A-Za-z0-9_.-]{1,64}:(?!\d+@)(?P<value>[^\s@:/\"'<>,;()\[\]]{3,128})@(?=[A-Za-z0-9])"
)
_QUERY = re.compile(rf"(?i)(?:[?&;]|&amp;)(?:{QUERIED})=(?P<value>[^\s&\"'<>#;\\]{{3,}})")
_ACCOUNT = re.compile(r"(?i)\b(?:accountkey|sharedaccesskey|sharedaccesssignature)=(?P<value>[^\s;\"']{4,})")
_USER_FLAG = re.compile(
    r"(?<!\S)[\"']?(?:-u|-U|--user|--proxy-user)(?:[ =]|[\"'],\s?)[\"']?[^\s:\"']{1,64}:(?P<value>[^\s\"']{3,256})"
)
_SHORT_FLAG = re.compile(
    r"\b(?:sshpass|(?:docker|podman|helm registry) login|redis-cli|mysql|mysqldump|mongosh?|ldapsearch|smbclient)\b"
    r"[^\n|;&]{0,200}?[ ]-(?:pass|p|a|w)[ ]?[\"']?(?P<value>[^\s\"'-][^\s\"']{3,128})"
)
_PEM = re.compile(r"-----BEGIN (?P<kind>[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?)-----")
_PEM_REST = re.compile(r"(?:(?:[\s\"'+|,>-]|\\[nr])*[A-Za-z0-9+/=]{16,})*")
_PUTTY = re.compile(r"Private-Lines: \d+\s+(?P<value>(?:[A-Za-z0-9+/=]{4,}\s{0,4})+)")
_PGPASS = re.compile(r"(?m)^[^:\s#\[]{1,128}:(?:\d{2,5}|\*):[^:\s]{1,64}:[^:\s]{1,64}:(?P<value>[^:\s]{4,128})$")


def headers(text: str) -> Iterator[SecretSpan]:
    done = 0  # a name inside another's value does not count
    for match in _HEADER.finditer(text):
        if match.start() < done:
            continue
        for span in _header(text, match):
            done = max(done, span.end)
            yield span


def _header(text: str, match: re.Match[str]) -> Iterator[SecretSpan]:
    at = match.end()
    mark = match["mid"].strip(" \t:=,")
    before = text[match.start() - 1 : match.start()]
    opened = QUOTE.match(text, at)
    if opened is not None:
        close = closing(text, opened.end(), opened["quote"])
        end = close if close is not None else end_of_line(text, at)
        yield from unless_harmless(
            text, opened.end(), end, AUTHORIZATION, True, "" if close is not None else opened["quote"]
        )
    elif not mark and before in ('"', "'"):  # -H "Cookie: a=b; c=d"
        close = closing(text, at, before)
        yield from unless_harmless(
            text, at, close if close is not None else end_of_line(text, at), AUTHORIZATION, True, ""
        )
    elif "cookie" in match.group().lower() or _TO_END.match(text, at):
        found = _UNTIL_END.match(text, at)
        if found is not None:
            yield from unless_harmless(text, at, found.end(), AUTHORIZATION, True, "")
    else:
        scheme = _SCHEME.match(text, at)
        found = _TOKEN.match(text, scheme.end() if scheme else at)
        if found is not None and len(found.group()) > 3:
            yield from unless_harmless(
                text,
                found.start(),
                found.end(),
                AUTHORIZATION,
                looks_secret(found.group()) or bool(scheme and scheme.group()),
                "",
            )


def patterned(text: str) -> Iterator[SecretSpan]:
    for pattern, rule in (
        (_BEARER, AUTHORIZATION), (_USER, URL), (_SLASHED, URL), (_BARE_USER, URL), (_QUERY, URL), (_ACCOUNT, FIELD),
        (_USER_FLAG, FLAG), (_SHORT_FLAG, FLAG), (_PUTTY, PRIVATE), (_PGPASS, FIELD),
    ):  # fmt: skip
        for match in pattern.finditer(text):
            yield from unless_harmless(text, *match.span("value"), rule, True, "")
    for pattern, rule in ((ISSUED, FORM), (HASHED, HASH)):
        for match in pattern.finditer(text):
            yield SecretSpan(*match.span(), rule)
    for match in WEBHOOK.finditer(text):
        yield SecretSpan(*match.span(match.lastgroup or 0), URL)


def private_keys(text: str) -> Iterator[SecretSpan]:
    for match in _PEM.finditer(text):
        close = text.find(f"-----END {match['kind']}-----", match.end(), match.end() + LONGEST)
        if close < 0:
            rest = _PEM_REST.match(text, match.end())
            close = rest.end() if rest else match.end()
        if text[match.end() : close].strip() not in ("", GONE):
            yield SecretSpan(match.end(), close, PRIVATE)


_RUN = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{12,}={0,2}(?![A-Za-z0-9+/=_-])")
_PERCENT = re.compile(r"%(?:3[aAdD]|40|2[fF6]|22)")
_PARTS = frozenset(" \t\r\n\"'<>&?=;,/")  # delimiters of one component of a URL


def _random_parts(run: str) -> Iterator[tuple[int, int]]:
    """The random parts of `run`. A path is judged name by name, unless it has the length of a key that has slashes."""
    body = run.rstrip("=")
    if "/" not in body or "+" in body or len(body) in (40, 43, 86) or body != run:
        if is_random(body):
            yield 0, len(run)
        return
    at = 0
    for part in body.split("/"):
        if is_random(part):
            yield at, at + len(part)
        at += len(part) + 1


def encoded(text: str) -> Iterator[SecretSpan]:
    for match in _RUN.finditer(text):
        run = match.group()
        if run.islower() or run.isupper() or run.isdigit():
            continue
        named = REQUEST.match(run) or REQUEST_NAME.search(text, max(0, match.start() - 40), match.start())
        random = [] if named else [*_random_parts(run)]
        if random:
            yield from (SecretSpan(match.start() + first, match.start() + last, RANDOM) for first, last in random)
        elif not named and _is_base64_text(run):
            yield SecretSpan(*match.span(), ENCODED)
    done = 0
    for match in _PERCENT.finditer(text):
        if match.start() < done:
            continue
        start, end = match.start(), match.end()
        while start > max(done, match.start() - 2048) and text[start - 1] not in _PARTS:
            start -= 1
        while end < min(len(text), match.end() + 2048) and text[end] not in _PARTS:
            end += 1
        done = end
        plain = unquote(text[start:end])
        if plain != text[start:end] and GONE not in plain and any(_plain(plain)):
            yield SecretSpan(start, end, ENCODED)


def _plain(text: str) -> Iterator[SecretSpan]:
    for detector in (named_values, headers, patterned):
        yield from detector(text)


def _is_base64_text(run: str) -> bool:
    """Whether it decodes to printable ASCII, as only one in 10⁵ runs of twelve random bytes does."""
    body = run.rstrip("=")
    if (len(body) < 16 and body == run) or len(body) % 4 == 1:
        return False
    head = body[: min(len(body) // 4 * 4, 64)]
    if not _decodes(head):
        return False
    return _decodes(body + "=" * (-len(body) % 4))


def _decodes(run: str) -> bool:
    try:
        data = base64.b64decode(run.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        return False
    return len(data) >= 8 and data.isascii() and all(32 <= byte < 127 or byte in (9, 10, 13) for byte in data)
