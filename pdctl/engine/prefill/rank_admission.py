"""Whose registrations a bootstrap server takes: those signed with the deployment secret, or of this instance's hosts.

Without a secret it is SGLang's protocol, in which nobody proves anything. What can be held against a stranger then: a
rank registers the address it calls from, and the instance's shape is known from its own command line.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from pdctl.http_auth import SIGNATURE, Verifier

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.deployment_secret import DeploymentSecret
    from pdctl.engine.kv_link.bootstrap_rows import RankRow
    from pdctl.engine.prefill.rank_table import Request
    from pdctl.layout.shape import Shape

MAX_RANKS = 1 << 16  # of one prefill instance; a row that claims more is not believed


class Admission:
    """`shape`: of the instance, from its command line; None: the first row decides, as in sglang."""

    def __init__(self, shape: Shape | None = None, secret: DeploymentSecret | None = None) -> None:
        self._shape = shape
        self._verifier = Verifier(secret) if secret is not None else None

    @property
    def signed(self) -> bool:
        """Whether what passes `unsigned` is of this deployment."""
        return self._verifier is not None

    def unsigned(self, request: Request) -> str:
        """Why a request that changes the table is answered 401; empty if it may be read."""
        if self._verifier is None:
            return ""
        if not request.signature:
            return (
                f"this prefill takes registrations signed with its deployment secret only ({SIGNATURE} is missing); "
                "SGLang ranks need an instance without one: pdctl launch --no-deployment-secret"
            )
        return self._verifier.refuse(request.signature, request.method, request.target, request.body)

    def misfit(self, row: RankRow, request: Request) -> str:
        """Why a row is answered 400 or 403: it is not of this instance, or not the sender's to register."""
        sizes = (row.dp_size, row.attn_cp_size, row.attn_tp_size, row.pp_size)
        shape = self._shape
        if shape is not None:
            expected = (shape.dp_ranks, shape.cp, shape.attn_tp_size, shape.pp)
            if sizes != expected:
                return f"dp, cp, tp and pp sizes {sizes} are not those of this instance: {expected}"
        for name, index, size in zip(("dp", "cp", "tp", "pp"), row.slot, sizes, strict=True):
            if index >= size and shape is not None:
                return f"{name} rank {index} does not exist: this instance has {size}"
        if sizes[0] * sizes[1] * sizes[2] * sizes[3] > MAX_RANKS:
            return f"dp, cp, tp and pp sizes {sizes} are more than {MAX_RANKS} ranks"
        if address(row.rank_ip) is None:
            return f"rank_ip {row.rank_ip[:64]!r} is not an IP address"
        return "" if self._verifier is not None else foreign(request, (row.rank_ip,))


def foreign(request: Request, known: Iterable[str]) -> str:
    """Why the sender is a stranger: it calls neither from this machine nor from one of the `known` addresses."""
    peer = address(request.peer)
    if peer is None or peer.is_loopback or peer == address(request.own):
        return ""
    if any(peer == address(one) for one in known):
        return ""
    return (
        f"{request.peer} may not register {', '.join(sorted(set(known)))[:200] or 'anything'}: a rank registers the "
        "address it calls from (set SGLANG_HOST_IP on that rank, or start the instance with a deployment secret)"
    )


def address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address without its zone; IPv4 also where a socket for both families shows it as IPv6."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found
