"""The lines that a release can log: the template of every logger call, with its level and its function.

A part known only at run time is `{}`. A message that is built over several statements (`text += f"…"`) is one template
of all of them, with each later part in `⟨…⟩` because it may be missing. The texts of exceptions count too, with level
`raise`: they appear in failure lines and tracebacks.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.read_release.wheel import Wheel

# Where an engine's log calls are, and where they are in other releases.
FOLDERS = (
    "sglang/srt/disaggregation", "sglang/srt/managers", "sglang/srt/entrypoints", "sglang/srt/observability",
    "sglang/srt/metrics", "sglang/srt/tracing", "sglang/srt/server_args.py", "sglang/srt/arg_groups",
    "sglang/srt/utils.py", "sglang/srt/utils", "sglang/srt/model_executor", "sglang/srt/mem_cache/memory_pool.py",
    "sglang/srt/mem_cache/common.py", "sglang/srt/mem_cache/allocation.py", "sglang/srt/distributed",
    "sglang/srt/elastic_ep", "sglang/srt/warmup.py", "sglang/launch_server.py", "sglang/utils.py",
)  # fmt: skip
REASONS = ("disaggregation/", "managers/", "mem_cache/", "observability/", "distributed/device_communicators/mooncake")
LEVELS = {
    "debug": "debug", "info": "info", "warning": "warning", "warn": "warning", "error": "error",
    "exception": "error", "critical": "critical", "fatal": "critical", "log": "?",
}  # fmt: skip
HELPERS = {"log_info_on_rank0": "info", "log_debug_on_rank0": "debug", "print_warning_once": "warning",
           "print_info_once": "info", "print": "print", "logger_warning_once": "warning",
           "warning_once": "warning", "info_once": "info", "print_deprecated_warning": "warning",
           "record_failure": "raise", "conclude_failure": "raise"}  # fmt: skip
EVENTS = ("log_json", "_log_json")  # one JSON object per line; the event is the second argument, or the first
SILENT = ("add_argument", "Arg", "append", "join", "field", "Counter", "Gauge", "Histogram", "Summary")
PERCENT = re.compile(r"%(?:\([^)]*\))?[-+ #0-9.]*[sdrfgxi]")
BRACES = re.compile(r"\{[^{}]*\}")
HOLE = "{}"
MOST = 8  # maximum number of texts that a name may hold; with more, it is not a message


class Line(NamedTuple):
    """`where`: file (relative to sglang/srt) and function."""

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
            said = set(_said(function))
            sure = {template for template, level in said if level not in ("passed", "returned")}
            for template, level in said:
                if level in ("passed", "returned") and template in sure:
                    continue  # the argument of the logging call itself
                if _tells(template) and (level not in ("raise", "passed", "returned") or short.startswith(REASONS)):
                    found.add(Line(template, level, f"{short}:{name}"))
    return tuple(sorted(found))


def _tells(template: str) -> bool:
    """Whether a template can be recognized: it needs at least four letters outside its holes."""
    return len(re.sub(r"[^A-Za-z]", "", template.replace(HOLE, ""))) >= 4


def _functions(module: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Every function, named with its class, and the statements outside functions."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[ast.AST, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield child, f"{prefix}{child.name}"
            if isinstance(child, ast.ClassDef):
                yield _outside(child), f"{prefix}{child.name}"
                yield from walk(child, f"{child.name}.")
            elif not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from walk(child, prefix)

    yield _outside(module), "-"
    yield from walk(module, "")


def _outside(node: ast.Module | ast.ClassDef) -> ast.Module:
    """The statements that are in no function or class."""
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return ast.Module([one for one in node.body if not isinstance(one, inner)], [])


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
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for text in _templates(node.value, texts):  # a reason that is kept to be logged later
                if " " in text:
                    yield text, "passed"
    if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) and "log" not in function.name:
        # A function that returns a text for its caller to log: `return f"…"`, and reasons that are passed on.
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
    if name in EVENTS:
        event = next((one.value for one in node.args[:2] if isinstance(one, ast.Constant)), None)
        if isinstance(event, str):
            yield f'{{"timestamp": "{HOLE}", "event": "{event}"{HOLE}', "info"
        return
    for argument in (*node.args, *(one.value for one in node.keywords)):
        if level:
            for text in _templates(argument, texts):
                yield text, level
        elif name not in SILENT and (
            isinstance(argument, (ast.JoinedStr, ast.BoolOp))
            or (isinstance(argument, ast.Constant) and isinstance(argument.value, str) and " " in argument.value)
        ):
            for text in _templates(argument, texts):
                yield text, "passed"


def _texts(function: ast.AST) -> dict[str, list[str]]:
    """Local name → the templates it may hold; parts that are appended later are optional."""
    found: dict[str, list[str]] = {}
    statements = [node for node in ast.walk(function) if isinstance(node, (ast.Assign, ast.AugAssign))]
    for node in sorted(statements, key=lambda one: (one.lineno, one.col_offset)):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).extend(_templates(node.value, found))
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.target, ast.Name):
            before = found.get(node.target.id, [])
            added = "".join(f"⟨{text}⟩" for text in _templates(node.value, found)[:MOST]) or f"⟨{HOLE}⟩"
            found[node.target.id] = [one + added for one in before] or [added]
    return found


def _templates(node: ast.expr, texts: dict[str, list[str]]) -> list[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = PERCENT.sub(HOLE, node.value)
        return [BRACES.sub(HOLE, text)]
    if isinstance(node, ast.JoinedStr):
        out = [""]
        for each in node.values:
            out = [head + tail for head in out for tail in _part(each, texts)][:MOST]
        return out
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [a + b for a in _templates(node.left, texts) or [HOLE] for b in _templates(node.right, texts) or [HOLE]][
            :MOST
        ]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _templates(node.left, texts)
    if isinstance(node, ast.BoolOp):
        return [text for each in node.values for text in _templates(each, texts)][:MOST]
    if isinstance(node, ast.IfExp):
        return [*_templates(node.body, texts), *_templates(node.orelse, texts)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return _templates(node.func.value, texts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "join":
        return [HOLE]
    if isinstance(node, ast.Name):
        return texts.get(node.id, [])[:MOST]
    return []


def _part(node: ast.expr, texts: dict[str, list[str]]) -> list[str]:
    """The texts that one part of an f-string may be; a name is replaced by its texts if it is bound to any."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Constant):
        return [str(node.value.value)]
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, (ast.Name, ast.IfExp)):
        return _templates(node.value, texts)[:MOST] or [HOLE]
    return [HOLE]
