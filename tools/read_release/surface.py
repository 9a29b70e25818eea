"""The HTTP surface of a release: its routes with their methods, and the Prometheus metrics it exports."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

from tools.read_release.expressions import Names, value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.read_release.wheel import Wheel

METHODS = ("get", "post", "put", "delete", "patch", "head", "options")
SERVERS = {
    "sglang/srt/entrypoints": "server",
    "sglang/srt/managers": "server",
    "sglang/srt/disaggregation": "bootstrap",
}
METRIC = re.compile(r"sglang[:_][a-z][a-z0-9_]*")


class Route(NamedTuple):
    """`server`: `server` for the API port, `bootstrap` for the bootstrap server. `method` `*`: any."""

    server: str
    path: str
    method: str


class Metric(NamedTuple):
    """`type`: gauge, counter, histogram or summary."""

    name: str
    type: str


def routes(wheel: Wheel) -> tuple[Route, ...]:
    found = set()
    for folder, server in SERVERS.items():
        for path, module in wheel.modules(folder):
            if "/encod" in path or "disaggregation/mini_lb" in path or "launch_lb" in path:
                continue  # other programs
            found |= {Route(server, *each) for each in _routes(module, wheel.nodes(module))}
    return tuple(sorted(found))


def _routes(module: ast.Module, nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    names = Names()
    names.take(module)
    for node in nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        word = node.func.attr
        if word not in (*METHODS, "api_route", "add_api_route", "route", "mount") and not word.startswith("add_"):
            continue
        arguments = [value(each, names) for each in node.args]
        paths = [one for one in arguments if isinstance(one, str) and one.startswith("/")]
        if not paths:
            continue
        owner = ast.unparse(node.func.value)
        if word in METHODS and owner.endswith(("app", "router")):
            yield paths[0], word.upper()
        elif word in ("api_route", "add_api_route", "route"):
            methods = next((one.value for one in node.keywords if one.arg == "methods"), None)
            listed = value(methods, names) if methods is not None else ["GET"]
            for method in listed if isinstance(listed, list) else ["*"]:
                yield paths[0], str(method)
        elif word == "add_route":
            yield paths[0], str(arguments[0])
        elif word.startswith("add_") and word[4:] in METHODS and owner.endswith("router"):
            yield paths[0], word[4:].upper()
        elif word == "mount":
            yield paths[0], "*"
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Mount" and node.args:
            path = value(node.args[0], names)
            if isinstance(path, str):
                yield path, "*"


def metrics(wheel: Wheel) -> tuple[Metric, ...]:
    found = set()
    for _, module in wheel.modules("sglang/srt", naming="sglang[:_]"):
        for node in wheel.nodes(module):
            if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
                found |= set(_metric(node))
    return tuple(sorted(found))


def _metric(node: ast.Call) -> Iterator[Metric]:
    kind = (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")).lower()
    word = next((one for one in ("gauge", "counter", "histogram", "summary") if one in kind), "")
    name = next((one.value for one in node.keywords if one.arg == "name"), node.args[0] if node.args else None)
    if isinstance(name, ast.Constant) and isinstance(name.value, str) and METRIC.fullmatch(name.value) and word:
        # prometheus_client appends _total to a counter's name if it is missing
        text = name.value.removesuffix("_total") + "_total" if word == "counter" else name.value
        yield Metric(text, word)
