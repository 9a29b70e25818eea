"""The lines a release can write: the template of every logger call, with its level and the function it stands in.

A part that only a running program knows is `{}`. A message that is put together over several statements
(`text += f"…"`) is the template of all of them, each later part in `⟨…⟩`: it may be missing. The texts of exceptions
count too, as level `raise`: they end up in failure lines and tracebacks.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.read_release.wheel import Wheel

FOLDERS = (
    "sglang/srt/disaggregation", "sglang/srt/managers", "sglang/srt/entrypoints", "sglang/srt/observability",
    "sglang/srt/metrics", "sglang/srt/tracing", "sglang/srt/server_args.py", "sglang/srt/utils.py",
    "sglang/srt/utils/common.py", "sglang/srt/utils/log_utils.py", "sglang/srt/utils/request_logger.py",
    "sglang/srt/utils/watchdog.py", "sglang/srt/utils/network.py", "sglang/srt/utils/tensor_bridge.py",
    "sglang/srt/model_executor", "sglang/srt/mem_cache/memory_pool.py", "sglang/srt/mem_cache/common.py",
    "sglang/srt/distributed/parallel_state.py", "sglang/srt/arg_groups/pd_disaggregation_hook.py",
    "sglang/launch_server.py",
)  # fmt: skip
REASONS = ("disaggregation/", "managers/schedule", "managers/disagg", "managers/data_parallel", "mem_cache/")
LEVELS = {
    "debug": "debug", "info": "info", "warning": "warning", "warn": "warning", "error": "error",
    "exception": "error", "critical": "critical", "fatal": "critical", "log": "?",
}  # fmt: skip
HELPERS = {"log_info_on_rank0": "info", "log_debug_on_rank0": "debug", "print_warning_once": "warning",
           "print_info_once": "info", "print": "print", "logger_warning_once": "warning",
           "warning_once": "warning", "info_once": "info", "print_deprecated_warning": "warning",
           "record_failure": "raise", "conclude_failure": "raise"}  # fmt: skip
SILENT = ("add_argument", "Arg", "append", "join", "field", "Counter", "Gauge", "Histogram", "Summary")
PERCENT = re.compile(r"%(?:\([^)]*\))?[-+ #0-9.]*[sdrfgxi]")
BRACES = re.compile(r"\{[^{}]*\}")
HOLE = "{}"


class Line(NamedTuple):
    """where: file and function, below sglang/srt."""

    template: str
    level: str
    where: str


def read(wheel: Wheel) -> tuple[Line, ...]:
    found: set[Line] = set()
    for path, module in wheel.modules(*FOLDERS):
        short = path.removeprefix("sglang/").removeprefix("srt/")
        if "/encode" in path or short.startswith(("disaggregation/mini_lb", "disaggregation/launch_lb")):
            continue  # other programs
        for function, name in _functions(module):
            for template, level in _said(function):
                if _tells(template) and (level not in ("raise", "passed", "returned") or short.startswith(REASONS)):
                    found.add(Line(template, level, f"{short}:{name}"))
    return tuple(sorted(found))


def _tells(template: str) -> bool:
    """A template of nothing but holes and a word says nothing that could be recognized."""
    return len(re.sub(r"[^A-Za-z]", "", template.replace(HOLE, ""))) >= 4


def _functions(module: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Every function with the name of its class before it, and what stands outside of all."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[ast.AST, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield child, f"{prefix}{child.name}"
            if isinstance(child, ast.ClassDef):
                yield from walk(child, f"{child.name}.")
            elif not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from walk(child, prefix)

    yield (
        ast.Module(
            [one for one in module.body if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))],
            [],
        ),
        "-",
    )
    yield from walk(module, "")


def _said(function: ast.AST) -> Iterator[tuple[str, str]]:
    texts = _texts(function)
    for node in ast.walk(function):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args:
                for text in _templates(argument, texts):
                    yield text, "raise"
        elif isinstance(node, ast.Assert) and node.msg is not None:
            for text in _templates(node.msg, texts):
                yield text, "raise"
        elif isinstance(node, ast.Call):
            yield from _call(node, texts)
    if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) and "log" not in function.name:
        # A function that makes a text for its caller to log: `return f"…"`, and reasons that are handed on.
        for node in ast.walk(function):
            if (
                isinstance(node, ast.Return)
                and node.value is not None
                and isinstance(node.value, (ast.JoinedStr, ast.BinOp))
            ):
                for text in _templates(node.value, texts):
                    yield text, "returned"


def _call(node: ast.Call, texts: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    func = node.func
    if isinstance(func, ast.Attribute) and func.attr in LEVELS and "log" in ast.unparse(func.value).lower():
        level = LEVELS[func.attr]
        arguments = node.args[1:] if func.attr == "log" else node.args
        if func.attr == "log" and node.args and isinstance(node.args[0], ast.Attribute):
            level = node.args[0].attr.lower()
        if arguments:
            for text in _templates(arguments[0], texts):
                yield text, level
        return
    name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
    level = HELPERS.get(name, "")
    for argument in (*node.args, *(one.value for one in node.keywords)):
        if level:
            for text in _templates(argument, texts):
                yield text, level
        elif name not in SILENT and (
            isinstance(argument, ast.JoinedStr)
            or (isinstance(argument, ast.Constant) and isinstance(argument.value, str) and " " in argument.value)
        ):
            for text in _templates(argument, texts):
                yield text, "passed"


def _texts(function: ast.AST) -> dict[str, list[str]]:
    """Local name → the templates it may hold; what is added to one later is optional."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).extend(_templates(node.value, found))
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.target, ast.Name):
            for text in _templates(node.value, found)[:1]:
                before = found.get(node.target.id, [])
                found[node.target.id] = [f"{one}⟨{text}⟩" for one in before] or [text]
    return found


def _templates(node: ast.expr, texts: dict[str, list[str]]) -> list[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = PERCENT.sub(HOLE, node.value)
        return [BRACES.sub(HOLE, text)]
    if isinstance(node, ast.JoinedStr):
        return ["".join(_part(each) for each in node.values)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [
            a + b
            for a in _templates(node.left, texts)[:3] or [HOLE]
            for b in _templates(node.right, texts)[:3] or [HOLE]
        ]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _templates(node.left, texts)
    if isinstance(node, ast.IfExp):
        return [*_templates(node.body, texts), *_templates(node.orelse, texts)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return _templates(node.func.value, texts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "join":
        return [HOLE]
    if isinstance(node, ast.Name):
        return texts.get(node.id, [])[:6]
    return []


def _part(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Constant):
        return str(node.value.value)
    return HOLE
