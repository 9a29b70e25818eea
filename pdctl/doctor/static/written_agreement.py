"""Settings that prefill and decode must share, as read from their command lines."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pdctl.catalogue.entry import Severity
from pdctl.doctor.check import Skipped, finding
from pdctl.doctor.static.server_sources import engines_behind, written
from pdctl.engines.kinds import EMBEDDED, RELEASED
from pdctl.engines.sglang import agreement
from pdctl.engines.sglang.agreement import ENGINES_OWN
from pdctl.engines.sglang.arguments import argument
from pdctl.engines.sglang.behaviour import KV_DTYPE_COMPARED_BY_WORD
from pdctl.engines.versions import NEWEST
from pdctl.manifests.command_lines import program
from pdctl.manifests.manifest import SCRIPT
from pdctl.quick_definitions import NamedTuple
from pdctl.shell_quoting import pasteable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pdctl.doctor.check import Finding, Verdict
    from pdctl.doctor.static.servers import Server, Servers
    from pdctl.engines.sglang.agreement import Setting

EMBEDDED_PAGE = "16"  # pdctl.engine's default page size


class Value(NamedTuple):
    """One side's setting. `text` None: it depends on a variable. `given` False: the engine decides it itself."""

    text: str | None
    given: bool
    evidence: tuple[str, ...] = ()


def flag(server: Server, *names: str, default: str = "", unset: str = ENGINES_OWN) -> Value:
    """The first of the flags that is given, else the default, else the text `unset`."""
    for name in names:
        said = server.flags.find(name)
        if said is not None:
            return Value(server.flags.text(name), True, (said.evidence,))
    if not server.mistyped.isdisjoint(names):
        return Value(None, False)
    return Value(default or unset, bool(default))


def setting(server: Server, key: str, default: str = "") -> Value:
    """A setting, read by the flags that the table of agreements names."""
    row = agreement.setting(key)
    return flag(server, *row.flags, default=default or row.default, unset=row.unset)


def page_size(server: Server) -> Value:
    return setting(server, "page_size", EMBEDDED_PAGE if server.engine == EMBEDDED else "")


def checksums(server: Server) -> Value:
    """Whether checksums are on, which is a flag without a value."""
    row = agreement.setting("disaggregation_enable_kv_checksum")
    said = next((found for name in row.flags if (found := server.flags.find(name)) is not None), None)
    return Value("enabled", True, (said.evidence,)) if said is not None else Value(row.default, True)


def layout(server: Server) -> Value:
    """The KV layout. The role's own attention backend wins over the common one; DeepSeek-V4 has its own switches."""
    own = flag(server, f"{server.role}-attention-backend", "attention-backend")
    said = [f"attention backend {own.text}"] if own.given and own.text else []
    evidence = list(own.evidence)
    special = flag(server, "dsv4-attn-backend")
    if special.given and special.text:
        said.append(f"dsv4-attn-backend {special.text}")
        evidence += special.evidence
    variable = server.env.get("SGLANG_DSV4_KV_LAYOUT")
    if variable is not None and variable.value:
        said.append(f"SGLANG_DSV4_KV_LAYOUT {variable.value}")
        evidence.append(variable.evidence)
    unclear = own.given and own.text is None
    return Value(None if unclear else ", ".join(said) or ENGINES_OWN, bool(said), tuple(evidence))


SPECULATIVE = ("algorithm", "num-steps", "eagle-topk", "num-draft-tokens", "draft-model-path")


def speculation(server: Server) -> Value:
    found = [said for name in SPECULATIVE if (said := server.flags.find(f"speculative-{name}")) is not None]
    texts = [server.flags.text(said.name) for said in found]
    text = None if None in texts else ", ".join(f"{said.name} {' '.join(said.values)}" for said in found) or "none"
    return Value(text, True, tuple(said.evidence for said in found))


def backend(server: Server) -> Value:
    return setting(server, "disaggregation_transfer_backend", server.backend)


def release(server: Server) -> Value:
    image = server.container.image if server.container is not None else ""
    if not image:
        return Value(None, False)
    line = server.container.image_line if server.container is not None else 0
    return Value(server.release or image, bool(server.release), (f"{server.place(line)}: image: {image}",))


# How a value is read if the setting's flags alone do not determine it.
READ: dict[str, Callable[[Server], Value]] = {
    "page_size": page_size,
    "KV layout": layout,
    "speculative_*": speculation,
    "disaggregation_transfer_backend": backend,
    "version": release,
    "disaggregation_enable_kv_checksum": checksums,
}
# Severity if one side's value cannot be determined; settings not listed: the same as for any other difference.
DOUBT = {
    "page_size": Severity.WARNING,
    "KV layout": Severity.INFO,
    "version": Severity.WARNING,
    "mamba_ssm_dtype": Severity.WARNING,
    "disaggregation_ib_device": Severity.INFO,
}
# These need more than two values: roles and kv_types below, the widths and stages in arithmetic.py.
ELSEWHERE = frozenset({"PD301", "PD303", "PD305", "PD306", "PD315", "PD316", "PD324"})
TERMS = tuple(row for row in agreement.SETTINGS if row.code and row.code not in ELSEWHERE)


def differing(term: Setting) -> Callable[[Servers], Verdict]:
    def judge(servers: Servers) -> Verdict:
        if not (servers.of("prefill") and servers.of("decode")):
            return Skipped("there is no prefill with a decode to compare")
        return [found for pair in servers.pairs() for found in _compared(term, servers.page_size, *pair)]

    return judge


def _compared(term: Setting, page: int, prefill: Server, decode: Server) -> Iterator[Finding]:
    read = READ.get(term.key, partial(setting, key=term.key))
    one, other = read(prefill), read(decode)
    if one.text is None or other.text is None or one.text == other.text:
        return
    doubt = None if one.given and other.given else DOUBT.get(term.key)
    yield _clash_finding(term.code, prefill, decode, one, other, doubt, page)


def _clash_finding(
    code: str,
    prefill: Server,
    decode: Server,
    one: Value,
    other: Value,
    severity: Severity | None = None,
    page: int = 0,
) -> Finding:
    evidence = [f"{side.name}: {each}" for side, value in ((prefill, one), (decode, other)) for each in value.evidence]
    return finding(
        code, decode.name, other.text or "", one.text or "", evidence, severity, other=prefill.name, size=page
    )


def kv_types(servers: Servers) -> Iterator[Finding]:
    """`auto` may resolve to the other side's type, but 0.5.10 to 0.5.16 compare the words as written."""
    for prefill, decode in servers.pairs():
        one, other = (setting(side, "kv_cache_dtype") for side in (prefill, decode))
        if one.text is None or other.text is None or one.text == other.text:
            continue
        version = decode.version
        by_word = version is not None and KV_DTYPE_COMPARED_BY_WORD.holds(version)
        maybe = "auto" in (one.text, other.text) and not by_word
        yield _clash_finding("PD303", prefill, decode, one, other, Severity.WARNING if maybe else None)


def decode_context(servers: Servers) -> Iterator[Finding]:
    """PD324. From 1 to more works only for MLA models, which a command line does not reveal."""
    for prefill, decode in servers.pairs():
        one, other = (setting(side, "dcp_size") for side in (prefill, decode))
        if one.text is None or other.text is None or one.text == other.text:
            continue
        spread = one.text == "1"
        yield _clash_finding("PD324", prefill, decode, one, other, Severity.WARNING if spread else None)


def roles(servers: Servers) -> Iterator[Finding]:
    """PD301: the role on the router's command line against the mode of the engine at that address."""
    for router in servers.routers:
        for role, listed in (("prefill", router.prefills), ("decode", router.decodes)):
            for each in listed:
                behind = engines_behind(servers, each.url, router.network)
                if any(engine.role == role for engine in behind):
                    continue  # two are told to listen there, which PD218 says
                for engine in behind:
                    mode = engine.flags.find("disaggregation-mode")
                    if mode is None and _mode_is_known(engine) and not router.discovers:
                        evidence = [each.evidence, f"{_line(engine)}: no --disaggregation-mode"]
                        fix = f"start {pasteable(engine.name)} with --disaggregation-mode {role}"
                        # Who calls a script may add flags ("$@"), which its text does not show.
                        doubt = Severity.WARNING if engine.pod is not None and engine.pod.kind == SCRIPT else None
                        observed = "neither prefill nor decode"
                        yield finding("PD301", engine.name, observed, role, evidence, doubt, fix=fix)
                    if engine.role and engine.role != role and mode is not None:
                        evidence = [each.evidence, mode.evidence]
                        fix = f"give the router {pasteable(each.url)} under --{engine.role}"
                        yield finding("PD301", engine.name, engine.role, role, evidence, fix=fix)


def _mode_is_known(engine: Server) -> bool:
    """Whether an engine without --disaggregation-mode surely runs without one: SGLang's default is null."""
    said = engine.engine == RELEASED and "disaggregation-mode" not in engine.mistyped
    return said and not engine.flags.has("config") and not _has_variable_flags(engine)


def _has_variable_flags(engine: Server) -> bool:
    """Whether a variable stands where a flag may stand, and not only where the value of one is expected."""
    started = program(engine.container.argv) if engine.container is not None else None
    expected = 0
    for word in started.flags if started is not None else ():
        if word.text.startswith("--"):
            name, equals, _ = word.text[2:].partition("=")
            known = argument(name.replace("_", "-"), engine.version or NEWEST)
            expected = 1 if known is not None and known.takes and not equals else 0
        elif "$" in word.text and not expected:
            return True
        else:
            expected = 0
    return False


def _line(engine: Server) -> str:
    argv = engine.container.argv if engine.container is not None else ()
    return engine.place(argv[0].line if argv else 0)


CHECKS = (
    written("PD301", roles),
    *(written(term.code, differing(term)) for term in TERMS),
    written("PD303", kv_types, embedded=False),
    written("PD324", decode_context),
)
