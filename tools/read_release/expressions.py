"""Evaluate expressions as far as the syntax tree allows: constants, lists of them, names bound to them."""

from __future__ import annotations

import ast
from typing import Any

UNKNOWN: Any = object()  # a value known only at run time


class Names(dict[str, ast.expr]):
    """Module-level names and the expression each is bound to; a second binding replaces the first."""

    def take(self, module: ast.Module | ast.FunctionDef) -> None:
        for statement in module.body:
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                target, value = statement.targets[0], statement.value
            elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                target, value = statement.target, statement.value
            else:
                continue
            if isinstance(target, ast.Name):
                self[target.id] = value

    def call(self, function: ast.FunctionDef) -> None:
        """Bind the names inside a function called with its defaults: its parameters, and top-level assignments."""
        given = function.args
        for each, default in zip(reversed(given.args), reversed(given.defaults), strict=False):
            self[each.arg] = default
        for each, one in zip(given.kwonlyargs, given.kw_defaults, strict=True):
            if one is not None:
                self[each.arg] = one
        self.take(function)


def value(node: ast.expr | None, names: Names, depth: int = 0) -> Any:
    """The value, or UNKNOWN; a list may hold UNKNOWN."""
    if node is None or depth > 8:
        return UNKNOWN
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return value(names.get(node.id), names, depth + 1)
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return _listed(node.elts, names, depth)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = value(node.left, names, depth + 1), value(node.right, names, depth + 1)
        return left + right if type(left) is type(right) and isinstance(left, (str, list, int)) else UNKNOWN
    if isinstance(node, ast.IfExp):
        test = truth(node.test, names, depth)
        return UNKNOWN if test is None else value(node.body if test else node.orelse, names, depth + 1)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = value(node.operand, names, depth + 1)
        return -number if isinstance(number, (int, float)) else UNKNOWN
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("list", "sorted", "set"):
        return value(node.args[0], names, depth + 1) if len(node.args) == 1 else UNKNOWN
    if isinstance(node, ast.JoinedStr):
        return _joined(node, names, depth)
    return UNKNOWN


def truth(node: ast.expr, names: Names, depth: int = 0) -> bool | None:
    """Whether a condition holds; None if that is known only at run time."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = truth(node.operand, names, depth + 1)
        return None if inner is None else not inner
    known = value(node, names, depth + 1)
    return None if known is UNKNOWN else bool(known)


def _listed(nodes: list[ast.expr], names: Names, depth: int) -> Any:
    out: list[Any] = []
    for each in nodes:
        if isinstance(each, ast.Starred):
            more = value(each.value, names, depth + 1)
            if not isinstance(more, list):
                return UNKNOWN
            out += more
        else:
            out.append(value(each, names, depth + 1))
    return out


def _joined(node: ast.JoinedStr, names: Names, depth: int) -> Any:
    parts = []
    for part in node.values:
        inner = part.value if isinstance(part, ast.FormattedValue) else part
        text = value(inner, names, depth + 1)
        if text is UNKNOWN:
            return UNKNOWN
        parts.append(str(text))
    return "".join(parts)


def spelled(node: ast.expr | None, names: Names, limit: int = 60) -> str:
    """A default for human readers: its value if known, else the expression, cut to `limit` characters."""
    if node is None:
        return ""
    known = value(node, names)
    text = repr(known) if known is not UNKNOWN and not _partly(known) else ast.unparse(node)
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _partly(known: Any) -> bool:
    return isinstance(known, list) and any(each is UNKNOWN or _partly(each) for each in known)
