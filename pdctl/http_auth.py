"""Who may do what on pdctl's HTTP servers: API keys, requests signed with the deployment secret, the Host header.

Keys are bearer tokens as in SGLang: `--api-key` for every request but health and metrics, `--admin-api-key` for those
that change the server (sglang 0.5.23 srt/utils/auth.py). The deployment secret is a further admin credential, in two
forms: processes sign each request, so that a recorded one cannot be replayed; people use the token printed by
`python -m pdctl.http_auth FILE`.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import sys
import time
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.deployment_secret import DeploymentSecret
from pdctl.errors import UsageError
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Iterable, Mapping, Sequence

SIGNATURE = "x-pdctl-signature"  # a request's signature: "1 MILLISECONDS NONCE MAC"
PURPOSE = "http-request"
TOKEN = "router-admin"
WINDOW = 60.0  # seconds by which two hosts' clocks may differ; a signature is valid for as long
MAX_NONCES = 1 << 16  # remembered requests; only correctly signed ones count, so strangers cannot fill the table
MAX_KEY = 4096  # bytes in a key file
MAX_FIELDS = 256  # header fields of a request: in memory a small one takes twenty times its bytes
MANY_FIELDS = f"The request has more than {MAX_FIELDS} header fields."


class HeadTooLarge(ValueError):
    """Raised within a parser's callback, so that the parser does not go on with a head that is refused anyway."""


HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]*")  # RFC 3986, 3.2.2 and 3.2.3; empty where a target has no host
LARGEST_SIZE = 1 << 63
KEY_FLAGS = frozenset(("--api-key", "--admin-api-key"))
KEY_VARIABLE, ADMIN_VARIABLE = "PDCTL_API_KEY", "PDCTL_ADMIN_API_KEY"


def head_problem(headers: Collection[tuple[bytes, bytes]], version: str) -> str:
    """Return why a head is to be answered with 400; empty if it is not. Names are lower-case.

    RFC 9112, 3.2: one Host that is one. Of several different credentials no two servers would take the same.
    """
    if len({value for name, value in headers if name == b"authorization"}) > 1:
        return "The request has several Authorization headers that differ."
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1:
        return f"The request has {len(hosts)} Host headers."
    if not hosts:
        return "The request has no Host header." if version == "1.1" else ""
    return "" if HOST.fullmatch(hosts[0]) else "The request's Host header is not the name or address of a host."


def declared_size(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Return the bytes of body that a head announces by content-length, 0 without one. Names are lower-case.

    The number may have any count of leading zeros (RFC 9110, 8.6). A larger one than LARGEST_SIZE is taken for that,
    because Python makes no number of thousands of digits.
    """
    value = next((value for name, value in headers if name == b"content-length"), b"")
    digits = value.lstrip(b"0")
    if not digits.isdigit():
        return 0
    return min(int(digits), LARGEST_SIZE) if len(digits) <= len(str(LARGEST_SIZE)) else LARGEST_SIZE


class AccessLevel(Enum):
    """The credential that a route requires."""

    OPEN = "open"  # health and metrics, even on a server with a key (as in sglang)
    CLIENT = "client"
    GRADED = "graded"  # a client's; aborting requests without their whole id, or seeing others' ids, takes an admin
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, repr=False)
class Keys:
    """A server's keys; an empty one is not required. The repr shows none of them."""

    api: str = ""
    admin: str = ""
    secret: DeploymentSecret | None = None

    def __repr__(self) -> str:
        held = [name for name in ("api", "admin", "secret") if getattr(self, name)]
        return f"Keys({', '.join(held)})"


def sign(secret: DeploymentSecret, method: str, target: str, body: bytes, now: float | None = None) -> str:
    """The value of the SIGNATURE header for one request. `target`: its path and query as sent."""
    stamp = str(int((time.time() if now is None else now) * 1000))
    nonce = secrets.token_hex(12)
    return f"1 {stamp} {nonce} {_mac(secret, method, target, body, stamp, nonce)}"


def _mac(secret: DeploymentSecret, method: str, target: str, body: bytes, stamp: str, nonce: str) -> str:
    words = (method, target, stamp, nonce)
    return secret.mac(PURPOSE, *(word.encode("utf-8", "surrogateescape") for word in words), body).hex()


class Verifier:
    """Accepts each signed request once."""

    def __init__(self, secret: DeploymentSecret) -> None:
        self._secret = secret
        self._seen: OrderedDict[str, float] = OrderedDict()  # nonce → its own time, seconds since the epoch

    def refuse(self, signature: str, method: str, target: str, body: bytes, now: float | None = None) -> str:
        """Why the signature is rejected; "" if it is accepted."""
        now = time.time() if now is None else now
        version, stamp, nonce, mac = (*signature.split(" "), "", "", "", "")[:4]
        if version != "1" or not (stamp.isascii() and stamp.isdigit() and len(stamp) < 16) or len(nonce) != 24:
            return f"the {SIGNATURE} header is not one of this version of pdctl"
        expected = _mac(self._secret, method, target, body, stamp, nonce)
        if not hmac.compare_digest(mac.encode("utf-8", "replace"), expected.encode()):
            return "it was signed with another deployment secret, or changed on the way"
        age = now - int(stamp) / 1000
        if abs(age) > WINDOW:
            return f"it was signed {age:.0f} s ago by the sender's clock; more than {WINDOW:.0f} s are not believed"
        while self._seen and next(iter(self._seen.values())) < now - 2 * WINDOW:
            self._seen.popitem(last=False)
        if nonce in self._seen:
            return "it was sent before"
        if len(self._seen) >= MAX_NONCES:
            return f"more than {MAX_NONCES} signed requests came within {2 * WINDOW:.0f} s"
        self._seen[nonce] = now
        return ""


class Judgement(NamedTuple):
    """`refusal`: why the request gets a 401, "" if it may pass. `admin`: whether it has an admin's rights."""

    refusal: str
    admin: bool


class Gate:
    """Judges the requests of one server. Without any key or secret everything is open, as in SGLang."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._verifier = Verifier(keys.secret) if keys.secret is not None else None
        self._token = keys.secret.token(TOKEN) if keys.secret is not None else ""

    @property
    def guards_clients(self) -> bool:
        return bool(self._keys.api)

    @property
    def guards_admin(self) -> bool:
        """Whether an admin request needs a credential beyond a client's."""
        return self._verifier is not None or bool(self._keys.admin)

    @property
    def open(self) -> bool:
        """Whether no credential is ever required."""
        return not self.guards_admin and not self.guards_clients

    def asks_nothing(self, level: AccessLevel) -> bool:
        """Whether requests of this level pass unchecked. Most do, and then cost nothing."""
        return level is AccessLevel.OPEN or (level is AccessLevel.CLIENT and not self.guards_clients)

    def judge(
        self, level: AccessLevel, authorization: bytes, signature: str, method: str, target: str, body: bytes
    ) -> Judgement:
        """Call it once per request, because a signature is valid once. `signature`: the header's value, or ""."""
        keys = self._keys
        why = self._not_admin(authorization, signature, method, target, body)
        if not why:
            return Judgement("", True)
        client = not keys.api or _bears(authorization, keys.api)
        if not self.guards_admin:
            return Judgement("" if client or level is AccessLevel.OPEN else _asks(authorization), client)
        if level is not AccessLevel.ADMIN:
            return Judgement("" if client or level is AccessLevel.OPEN else _asks(authorization), False)
        means = ["the admin API key"] if keys.admin else []
        means += ["the deployment secret (docs/security.md)"] if self._verifier is not None else []
        shown = why if signature and self._verifier is not None else f"needs {' or '.join(means)}"
        return Judgement(f"{method} {target.partition('?')[0]}: {shown}", False)

    def _not_admin(self, authorization: bytes, signature: str, method: str, target: str, body: bytes) -> str:
        admin = self._keys.admin
        if (admin and _bears(authorization, admin)) or (self._token and _bears(authorization, self._token)):
            return ""
        if self._verifier is not None and signature:
            return self._verifier.refuse(signature, method, target, body)
        return "no admin credential"


def _asks(authorization: bytes) -> str:
    sent = "the one that was sent is wrong" if authorization else "send it as `Authorization: Bearer KEY`"
    return f"an API key is needed; {sent}"


def _bears(authorization: bytes, key: str) -> bool:
    scheme, _, sent = authorization.partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(sent.strip(), key.encode())


def read_key(path: Path) -> str:
    """The key in a file, stripped of surrounding white space. Raise UsageError if there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            data = os.read(handle, MAX_KEY + 1).strip()
        finally:
            os.close(handle)
    except OSError as error:
        raise UsageError(f"{path}: cannot read the API key: {error.strerror}") from None
    key = data.decode("ascii", "replace")
    if not data or len(data) > MAX_KEY or not key.isascii() or any(not 32 < ord(letter) < 127 for letter in key):
        raise UsageError(f"{path}: an API key is one word of printable ASCII characters, at most {MAX_KEY} bytes")
    return key


def key_of(variable: str) -> str:
    """The API key from `--key-env VARIABLE`, else from $PDCTL_API_KEY. Raise UsageError if VARIABLE is not set."""
    key = os.environ.get(variable or KEY_VARIABLE, "")
    if variable and not key:
        raise UsageError(f"--key-env {variable}: that variable is not set", f"export {variable}=…")
    return key


def masked(argv: Sequence[str]) -> list[str]:
    """A command line for display, with `***` in place of its keys."""
    shown: list[str] = []
    for word in argv:
        name, equals, _ = word.partition("=")
        if equals and name in KEY_FLAGS:
            word = f"{name}=***"
        shown.append("***" if shown and shown[-1] in KEY_FLAGS else word)
    return shown


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("API keys")
    for name, variable, what in (
        ("api-key", KEY_VARIABLE, "every request but health and metrics needs it as bearer token"),
        ("admin-api-key", ADMIN_VARIABLE, "requests that change this server need it as bearer token"),
    ):
        group.add_argument(f"--{name}", default="", metavar="KEY", help=f"{what} (others see it in the process list)")
        group.add_argument(f"--{name}-file", default="", metavar="FILE", help=f"a file with it (default: ${variable})")


def chosen(values: dict[str, object], environ: Mapping[str, str]) -> Keys:
    """Pop the values of the flags of `add_flags`; the secret comes from the environment. Raise UsageError."""
    found = []
    for name, variable in (("api_key", KEY_VARIABLE), ("admin_api_key", ADMIN_VARIABLE)):
        given, file = str(values.pop(name) or ""), str(values.pop(f"{name}_file") or "")
        flag = "--" + name.replace("_", "-")
        if given and file:
            raise UsageError(f"{flag} and {flag}-file are both given", "give one of them")
        found.append(given or (read_key(Path(file)) if file else environ.get(variable, "").strip()))
    return Keys(found[0], found[1], DeploymentSecret.from_environment(environ))


def main(argv: list[str]) -> int:
    """Print the admin token of the deployment whose secret is in FILE."""
    if len(argv) != 1:
        sys.stderr.write("usage: python -m pdctl.http_auth DEPLOYMENT_SECRET_FILE\n")
        return 2
    try:
        sys.stdout.write(DeploymentSecret.read(Path(argv[0])).token(TOKEN) + "\n")
    except UsageError as error:
        sys.stderr.write(f"{error.message}\n")
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
