"""From files to what they say: each read by its form, scripts with what the ones before them set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.errors import UsageError
from pdctl.imports import started
from pdctl.imports.found import Engine, Found, Router
from pdctl.manifests import read
from pdctl.manifests.command_lines import Flags
from pdctl.manifests.manifest import COMPOSE, SCRIPT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.imports.notes import Notes

RECIPE, KUBERNETES = "recipe", "kubernetes"


def gather(texts: Sequence[tuple[str, str]], known: Mapping[str, str], notes: Notes) -> Found:
    """`texts`: (name, text) of each file; `known`: variables to fill in. UsageError for what is none of the forms."""
    variables = dict(known)
    engines: list[Engine] = []
    routers: list[Router] = []
    sections: dict[str, object] = {}
    forms: list[str] = []
    for name, text in texts:
        form = form_of(text)
        if form == read.TOPOLOGY:
            raise UsageError(f"{name} is a topology already", "check it with `pdctl topology check`")
        if form == RECIPE:
            from pdctl.imports import recipe  # late: the other forms need none of it

            found = recipe.read(text, name, variables, notes)
            engines += found.engines
            routers += found.routers
            sections |= found.sections
        else:
            manifest = read.read_text(text, name, variables)
            engines += started.engines(manifest, variables, notes)
            routers += started.routers(manifest, variables, notes)
        if form in (SCRIPT, ""):
            from pdctl.manifests import shell  # late, as above

            after = shell.variables(text, variables)
            if not form and after == variables:
                notes.left_out(name, "nothing in it starts an engine or a router")
            variables = after
        forms.append(form)
    dynamo = next((engine for engine in engines if engine.kind == "dynamo"), None)
    if dynamo is not None and not routers:
        routers.append(Router("dynamo", Flags(()), {}, dynamo.place))
    return Found(tuple(engines), tuple(routers), sections, _one(forms))


def form_of(text: str) -> str:
    """What a file is: script, compose, recipe, kubernetes, topology; "" for none of them."""
    kind = read.kind_of(text)
    if kind == read.MANIFEST:
        return KUBERNETES
    keys = {line.partition(":")[0] for line in text.splitlines() if line and not line[0].isspace() and ":" in line}
    if kind != SCRIPT and {"backend", "resources", "model"} <= keys:
        return RECIPE
    return kind


def _one(forms: Sequence[str]) -> str:
    """Manifests beside a script are a deployment on Kubernetes: the script applies them."""
    for form in (KUBERNETES, RECIPE, COMPOSE):
        if form in forms:
            return form
    return SCRIPT
