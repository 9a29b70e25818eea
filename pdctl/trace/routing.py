"""The router's command line as it should have been, rebuilt from its start line and the prefills' own logs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.engines.adapters import adapter
from pdctl.engines.routers.adapters import SGLANG_ROUTER

if TYPE_CHECKING:
    from pdctl.trace.deployment import Deployment
    from pdctl.trace.upstreams import Router

PLACEHOLDER = "<bootstrap port of "  # a port no log tells
POLICIES = {
    "RoundRobin": "round_robin", "Random": "random", "CacheAware": "cache_aware", "PowerOfTwo": "power_of_two",
    "Manual": "manual", "Bucket": "bucket",
}  # fmt: skip


def router_command(deployment: Deployment) -> str:
    """One line to paste, "" when no router's start line is known. A port no log tells stands as a placeholder."""
    if len(deployment.routers) != 1:
        return ""
    router = deployment.routers[0]
    parts = list(_words(deployment, router))
    for upstream in router.prefills:
        owner = deployment.at_url(upstream.url)
        port = owner.bootstrap_port if owner else None
        parts.append(f"--prefill {upstream.url} {port or f'{PLACEHOLDER}{upstream.url}>'}")
    parts += [f"--decode {url}" for url in router.decodes] or ["--decode <URL of the decode>"]
    return " ".join([*parts, *_rest(router)])


def _words(deployment: Deployment, router: Router) -> tuple[str, ...]:
    instance = deployment.instances.get(router.name)
    known = adapter(instance.identity.speaker) if instance else None
    return known.command if known is not None and known.command else SGLANG_ROUTER.command


def _rest(router: Router) -> list[str]:
    """Address and policies, as far as the start line shows them."""
    if router.start is None:
        return []
    parts = []
    values = router.start.values
    if "host" in values and "port" in values:
        parts.append(f"--host {values['host']} --port {values['port']}")
    for flag, field in (("--prefill-policy", "prefill_policy"), ("--decode-policy", "decode_policy")):
        found = re.search(rf"{field}: Some\((\w+)", router.start.text)
        if found and found[1] in POLICIES:
            parts.append(f"{flag} {POLICIES[found[1]]}")
    return parts
