"""The secret shared by the processes of one deployment, by which each tells its peers from strangers.

`pdctl launch` mints one per run, writes it to a file that only its user can read, and passes the file's path in the
environment. Nothing sends the secret itself: what goes over a socket is a MAC, or a token derived for one purpose.
A process without the variable has no secret and asks for none; this is how real SGLang peers interoperate.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl import user_files
from pdctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

ENV = "PDCTL_DEPLOYMENT_SECRET_FILE"
HELP = f"the secret of the deployment this process belongs to, a file of mode 0600 (default: ${ENV})"
MAC_BYTES = 32
MIN_BYTES = 16
MAX_BYTES = 4096


@dataclass(frozen=True, slots=True, repr=False)
class DeploymentSecret:
    """A shared key of at least 16 bytes. Its repr does not show it."""

    key: bytes

    def __repr__(self) -> str:
        return "DeploymentSecret(…)"

    @classmethod
    def mint(cls) -> DeploymentSecret:
        return cls(secrets.token_hex(32).encode())

    @classmethod
    def read(cls, path: Path) -> DeploymentSecret:
        """Raise UsageError if the file cannot be read, is open to other users, or is too short or too long."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise UsageError(f"{path}: cannot read the deployment secret: {error.strerror}") from None
        try:
            mode = os.fstat(handle).st_mode
            data = os.read(handle, MAX_BYTES + 1).strip()
        except OSError as error:
            raise UsageError(f"{path}: cannot read the deployment secret: {error.strerror}") from None
        finally:
            os.close(handle)
        if mode & 0o077:
            raise UsageError(f"{path}: other users may read the deployment secret", f"chmod 600 {path}")
        if not MIN_BYTES <= len(data) <= MAX_BYTES:
            raise UsageError(f"{path}: a deployment secret has {MIN_BYTES} to {MAX_BYTES} bytes, this one {len(data)}")
        return cls(data)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> DeploymentSecret | None:
        """The secret that `environ` points at; None where it names none. Raise UsageError as `read` does."""
        path = environ.get(ENV)
        return cls.read(Path(path)) if path else None

    def write(self, path: Path) -> None:
        """Create `path` with mode 0600; replace what was there."""
        path.unlink(missing_ok=True)  # whatever its mode was
        user_files.write_whole(path, self.key + b"\n", 0o600)

    def mac(self, purpose: str, *parts: bytes | memoryview) -> bytes:
        """A MAC of 32 bytes over `parts`, valid for `purpose` only. The length of each part is signed too."""
        signed = hmac.new(self.key, digestmod=hashlib.sha256)
        for part in (purpose.encode(), *parts):
            signed.update(len(part).to_bytes(8, "big"))
            signed.update(part)
        return signed.digest()

    def verify(self, mac: bytes, purpose: str, *parts: bytes | memoryview) -> bool:
        """Whether `mac` is this secret's over `parts`, compared in constant time."""
        return hmac.compare_digest(mac, self.mac(purpose, *parts))

    def token(self, purpose: str) -> str:
        """A bearer token for `purpose`, as hexadecimal text; the secret does not follow from it."""
        return self.mac("token", purpose.encode()).hex()


def choose(flag: str, environ: MutableMapping[str, str]) -> None:
    """The secret in the file `flag`, or that of `environ` if `flag` is "". Raise UsageError if the file is unusable."""
    if flag:
        environ[ENV] = str(Path(flag).absolute())
    DeploymentSecret.from_environment(environ)
