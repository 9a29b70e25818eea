"""Every engine and router as it would be started, read the same way from a plan and from a manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.engines import numerals
from pdctl.engines.kinds import EMBEDDED
from pdctl.engines.sglang.agreement import common_page_size
from pdctl.engines.sglang.endpoints import DEFAULT_BOOTSTRAP_PORT as BOOTSTRAP
from pdctl.engines.sglang.endpoints import DEFAULT_PORT as HTTP
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdctl.engines.versions import Version
    from pdctl.layout.instance_plan import InstancePlan, Plan
    from pdctl.manifests.command_lines import Flags, Listed
    from pdctl.manifests.manifest import Container, Manifest, ManifestPod
    from pdctl.topology.model import Topology

TRUE = ("1", "true", "yes", "on", "y", "t")


class WrittenSetting(NamedTuple):
    """An environment variable. `value` None: it is set, but its value is not written there."""

    name: str
    value: str | None
    place: str = ""

    @property
    def evidence(self) -> str:
        said = f"{self.name}={self.value if self.value is not None else '…'}"
        return f"{self.place}: {said}" if self.place else said


@dataclass(frozen=True, slots=True)
class Server:
    """One engine or, in `Servers.sides`, all engines that are started alike except for their addresses.

    engine: sglang, dynamo (SGLang under Dynamo) or embedded. release: as written, "" if not written. version: the
    release whose rules apply, None if unknown. network: what it shares ports and loopback with (a host, a pod).
    instance: from a plan; pod and container: from a manifest. mistyped: flags that others it was given most likely mean
    (PD318), so their values are not known.
    """

    name: str
    role: str  # prefill | decode | ""
    engine: str
    release: str
    version: Version | None
    flags: Flags
    env: Mapping[str, WrittenSetting]
    network: str
    count: int | None
    url: str = ""
    instance: InstancePlan | None = None
    pod: ManifestPod | None = None
    container: Container | None = None
    mistyped: frozenset[str] = frozenset()

    @property
    def port(self) -> int | None:
        return self._port("port", HTTP)

    @property
    def bootstrap_port(self) -> int | None:
        """The flag, or SGLang's default; None if it depends on a variable. On decode it is used in place of null."""
        return self._port("disaggregation-bootstrap-port", BOOTSTRAP)

    def _port(self, name: str, default: int) -> int | None:
        if not self.flags.has(name):
            return default if name not in self.mistyped else None
        return self.flags.number(name)

    @property
    def backend(self) -> str:
        """The transfer backend, "" if the value depends on a variable."""
        name = "disaggregation-transfer-backend"
        default = "" if name in self.mistyped else "mooncake" if self.engine != EMBEDDED else "auto"
        return default if not self.flags.has(name) else self.flags.text(name) or ""

    @property
    def dp_ranks(self) -> int:
        return max(self.flags.number("dp-size") or 1, self.flags.number("attn-dp-size") or 1)

    @property
    def dp_attention(self) -> bool:
        return self.flags.has("enable-dp-attention") or (self.flags.number("attn-dp-size") or 1) > 1

    @property
    def attn_tp(self) -> int | None:
        """tp divided by the attention groups; None if a size depends on a variable."""
        if any(self.flags.unclear(name) for name in ("tp-size", "dp-size", "attn-dp-size", "attn-cp-size")):
            return None
        groups = self.dp_ranks if self.dp_attention else 1
        return (self.flags.number("tp-size") or 1) // groups // (self.flags.number("attn-cp-size") or 1) or 1

    @property
    def follows(self) -> bool:
        """Whether it is a further node of an instance whose leader is written next to it."""
        return self.pod is not None and self.pod.part == "worker"

    def on(self, variable: str) -> bool:
        said = self.env.get(variable)
        return said is not None and said.value is not None and said.value.lower() in TRUE

    def quantity(self, variable: str) -> float | None:
        said = self.env.get(variable)
        return numerals.real(said.value.strip()) if said is not None and said.value is not None else None

    def place(self, line: int = 0) -> str:
        return self.pod.at(line) if self.pod is not None else ""


@dataclass(frozen=True, slots=True)
class RouterLine:
    """A router's command line. `kind`: sglang-router, smg, mini-lb or pdctl. `discovers`: it finds pods by itself."""

    name: str
    kind: str
    flags: Flags
    prefills: tuple[Listed, ...]
    decodes: tuple[Listed, ...]
    network: str
    pod: ManifestPod | None = None
    container: Container | None = None

    @property
    def discovers(self) -> bool:
        return self.flags.has("service-discovery")

    def policy(self, role: str) -> str:
        """The role's routing policy; sglang_router 0.3.2 and smg 1.13.0 default to cache_aware."""
        return self.flags.text(f"{role}-policy") or self.flags.text("policy") or "cache_aware"


@dataclass(frozen=True, slots=True, eq=False)
class Servers:
    """`engines`: each one, including followers. `sides`: one for all that are alike, without followers.

    They were read from a plan or a manifest. Compared by identity, as Facts are.
    """

    engines: tuple[Server, ...]
    sides: tuple[Server, ...]
    routers: tuple[RouterLine, ...]
    topology: Topology | None = None
    plan: Plan | None = None
    manifest: Manifest | None = None

    def of(self, role: str) -> tuple[Server, ...]:
        return tuple(side for side in self.sides if side.role == role)

    def pairs(self) -> Iterator[tuple[Server, Server]]:
        """Every prefill side with every decode side."""
        for prefill in self.of("prefill"):
            for decode in self.of("decode"):
                yield prefill, decode

    @property
    def page_size(self) -> int:
        """The page size to set on both roles."""
        return common_page_size(*(side.flags.number("page-size") for side in self.sides))

    @property
    def embedded(self) -> bool:
        return bool(self.sides) and all(side.engine == EMBEDDED for side in self.sides)
