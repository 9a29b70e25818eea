"""The environment variables that a release reads: the fields of `environ.py`, and names read elsewhere."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

from tools.read_release.expressions import Names, spelled

if TYPE_CHECKING:
    from tools.read_release.wheel import Wheel

ENVIRON = "sglang/srt/environ.py"
NAME = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
ASKS = r"os\.environ|getenv|env_var\(|\benviron\["
ASKING = re.compile(r"environ|getenv|env_var")


class Setting(NamedTuple):
    """`kind`: bool, int, float, text, json, list, or "" if the reading code decides. `declared`: in environ.py."""

    name: str
    kind: str
    default: str
    declared: str  # "yes" or ""


KINDS = {"Bool": "bool", "Int": "int", "Float": "float", "Str": "text", "JSON": "json", "Tuple": "list"}


def read(wheel: Wheel) -> tuple[Setting, ...]:
    module = wheel.module(ENVIRON)
    found = _declared(module) if module is not None else {}
    for _, each in wheel.modules("sglang/srt", "sglang/launch_server.py", "sglang/cli", "sglang/utils.py", naming=ASKS):
        for name in _asked(wheel.nodes(each)):
            found.setdefault(name, Setting(name, "", "", ""))
    return tuple(sorted(found.values()))


def _declared(module: ast.Module) -> dict[str, Setting]:
    names = Names()
    names.take(module)
    found: dict[str, Setting] = {}
    for node in module.body:
        if not isinstance(node, ast.ClassDef) or node.name != "Envs":
            continue
        for statement in node.body:
            if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or not isinstance(statement.value, ast.Call):
                continue
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            kind = ast.unparse(statement.value.func)
            if isinstance(target, ast.Name) and kind.startswith("Env"):
                word = next((say for part, say in KINDS.items() if kind.startswith(f"Env{part}")), kind[3:].lower())
                arguments = statement.value.args
                default = spelled(arguments[0], names, 40) if arguments else ""
                found[target.id] = Setting(target.id, word, default, "yes")
                for extra in ast.walk(statement.value):  # an older name that the field accepts too
                    if isinstance(extra, ast.Constant) and isinstance(extra.value, str) and NAME.fullmatch(extra.value):
                        found.setdefault(extra.value, Setting(extra.value, word, default, "yes"))
    return found


def _asked(nodes: list[ast.AST]) -> set[str]:
    """Names in `os.environ[…]`, in `"…" in os.environ`, and in calls of functions named after the environment."""
    found: set[str] = set()
    for node in nodes:
        texts: list[ast.expr] = []
        if isinstance(node, ast.Call) and ASKING.search(_dotted(node.func)):
            texts = node.args[:1]
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _is_environ(node.value):
            texts = [node.slice]
        elif isinstance(node, ast.Compare) and any(_is_environ(each) for each in node.comparators):
            texts = [node.left]
        for text in texts:
            if isinstance(text, ast.Constant) and isinstance(text.value, str) and NAME.fullmatch(text.value):
                found.add(text.value)
    return found


def _is_environ(node: ast.expr) -> bool:
    return _dotted(node).endswith("environ")


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{_dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""
