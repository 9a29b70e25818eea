"""The flags of a command line, from the code that builds its argparse: `add_argument` calls or annotated fields.

SGLang 0.5.3 to 0.5.13 calls `add_argument` for each flag; 0.5.14 to 0.5.19 derive most flags from `A[type, Arg(…)]`
fields of ServerArgs; from 0.5.20 on these fields are in the classes of `arg_groups/fields/`.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, NamedTuple

from tools.read_release.expressions import UNKNOWN, Names, spelled, truth, value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.read_release.wheel import Wheel

SERVER_ARGS = "sglang/srt/server_args.py"
GROUPS = "sglang/srt/arg_groups"
BARE = ("store_true", "store_false", "store_const", "append_const", "count", "help", "version")
OWNERS = ("ServerArgs", "RouterArgs")
TAKES = {"+": "=*", "*": "=*", "?": "=?", None: "="}


class Flag(NamedTuple):
    """`takes`: "" no value, "=" one, "=*" several, "=?" one or none. `choices`: separated by "|", "" for any value.

    `type`: str, int, float, or the name of the function that parses the value. `default`: as written.
    """

    name: str
    takes: str
    type: str
    choices: str
    default: str


class Reading(NamedTuple):
    """`doubts`: what the syntax tree does not tell, one sentence each; only the real parser decides these."""

    flags: tuple[Flag, ...]
    doubts: tuple[str, ...]


def read(wheel: Wheel) -> Reading:
    """The flags of `python -m sglang.launch_server`."""
    module = wheel.module(SERVER_ARGS)
    if module is None:
        return Reading((), (f"{wheel.name} has no {SERVER_ARGS}",))
    groups = [one for _, one in wheel.modules(GROUPS)]
    names = Names()
    for each in (*groups, module):
        names.take(each)
    reader = _Reader(names, [*groups, module])
    for each in (one for path, one in wheel.modules(f"{GROUPS}/fields") if path):
        for node in each.body:
            if isinstance(node, ast.ClassDef) and _is_namespace(node):
                reader.fields(node)
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name == "ServerArgs":
            reader.fields(node)
            reader.calls(node)
    return reader.reading()


def _defaults(modules: list[ast.Module]) -> dict[str, ast.expr]:
    """Field → its default, for ServerArgs and the classes from which its fields are collected."""
    found: dict[str, ast.expr] = {}
    for module in modules:
        for node in module.body:
            if isinstance(node, ast.ClassDef) and (node.name in OWNERS or _is_namespace(node)):
                for one in node.body:
                    if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and one.value is not None:
                        found[one.target.id] = one.value
    return found


def read_router(wheel: Wheel, package: str) -> Reading:
    """The flags of `python -m PACKAGE.launch_router`: those of RouterArgs.add_cli_args called with its defaults.

    `launch_server` calls it with use_router_prefix=True; the prefixed flags are not read.
    """
    modules = [module for _, module in wheel.modules(package)]
    builders = [
        method
        for module in modules
        for node in module.body
        if isinstance(node, ast.ClassDef) and node.name == "RouterArgs"
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "add_cli_args"
    ]
    if len(builders) != 1:
        return Reading((), (f"{wheel.name} has {len(builders)} RouterArgs.add_cli_args; the reader knows one",))
    names = Names()
    for each in modules:
        names.take(each)
    names.call(builders[0])
    reader = _Reader(names, modules)
    for statement in _taken(builders[0].body, names):
        reader.calls(statement)
    return reader.reading()


def _taken(body: list[ast.stmt], names: Names) -> Iterator[ast.stmt]:
    """The statements that are executed: for an `if` with a known condition, only those of the branch taken."""
    for statement in body:
        holds = truth(statement.test, names) if isinstance(statement, ast.If) else None
        if isinstance(statement, ast.If) and holds is not None:
            yield from _taken(statement.body if holds else statement.orelse, names)
        else:
            yield statement


def _is_namespace(node: ast.ClassDef) -> bool:
    return any(
        isinstance(one, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "_NS_PATH" for t in one.targets)
        for one in node.body
    )


class _Reader:
    def __init__(self, names: Names, modules: list[ast.Module]) -> None:
        self._names = names
        self._actions = _action_nargs(modules)
        self._defaults = _defaults(modules)
        self._flags: dict[str, Flag] = {}
        self._doubts: list[str] = []

    def reading(self) -> Reading:
        return Reading(tuple(sorted(self._flags.values())), tuple(self._doubts))

    def calls(self, tree: ast.AST) -> None:
        loops = {
            id(inner): outer for outer in ast.walk(tree) if isinstance(outer, ast.For) for inner in ast.walk(outer)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
                self._call(node, loops.get(id(node)))

    def _call(self, node: ast.Call, loop: ast.For | None) -> None:
        for names in self._bindings(loop):
            if not node.args:
                given = ", ".join(map(ast.unparse, node.keywords))
                self._doubts.append(f"line {node.lineno}: add_argument({given}) names no constant")
                return
            options = [value(each, names) for each in node.args]
            if any(not isinstance(one, str) for one in options):
                self._doubts.append(
                    f"line {node.lineno}: add_argument({ast.unparse(node.args[0])}, …) names no constant"
                )
                return
            keywords = {one.arg: one.value for one in node.keywords if one.arg is not None}
            if len(keywords) != len(node.keywords):
                self._doubts.append(f"line {node.lineno}: {options[0]} is given **keywords")
            self._add(options, keywords, node.lineno)

    def _bindings(self, loop: ast.For | None) -> Iterator[Names]:
        """The names in every iteration of a loop over constants."""
        turns = value(loop.iter, self._names) if loop is not None else UNKNOWN
        if loop is None or not isinstance(turns, list) or not isinstance(loop.target, ast.Name):
            yield self._names
            return
        for turn in turns:
            yield Names({**self._names, loop.target.id: ast.Constant(turn)})

    def _add(self, options: list[str], keywords: dict[str, ast.expr], line: int) -> None:
        action = keywords.get("action")
        named = _dotted(action) if action is not None and not isinstance(action, ast.Constant) else ""
        word = value(action, self._names) if action is not None else None
        if named.endswith("BooleanOptionalAction"):
            options = [*options, *(f"--no-{one[2:]}" for one in options if one.startswith("--"))]
            takes = ""
        elif isinstance(word, str):
            takes = "" if word in BARE else self._takes(keywords)
        elif named:
            if "nargs" in keywords:
                takes = self._takes(keywords)
            elif named.rpartition(".")[2] in self._actions:
                takes = _worth(self._actions[named.rpartition(".")[2]])
            else:
                self._doubts.append(f"line {line}: the action {named} of {options[0]} is not in these files")
                takes = "="
        else:
            takes = self._takes(keywords)
        self._keep(options, takes, keywords, line)

    def _takes(self, keywords: dict[str, ast.expr]) -> str:
        return _worth(value(keywords["nargs"], self._names)) if "nargs" in keywords else "="

    def _keep(self, options: list[str], takes: str, keywords: dict[str, ast.expr], line: int) -> None:
        allowed = ""
        if "choices" in keywords:
            listed = value(keywords["choices"], self._names)
            if isinstance(listed, list) and all(one is not UNKNOWN for one in listed):
                ordered = sorted(map(str, listed)) if isinstance(keywords["choices"], ast.Set) else map(str, listed)
                allowed = "|".join(ordered)
            else:
                allowed = "?"  # computed at run time
        kind = _dotted(keywords["type"]) if "type" in keywords else ("" if takes == "" else "str")
        default = spelled(self._default(keywords), self._names)
        for option in options:
            if option.startswith("--"):
                self._flags[option[2:]] = Flag(option[2:], takes, kind, allowed, default)
            elif not option.startswith("-"):
                self._doubts.append(f"line {line}: {option} is a positional argument")

    def _default(self, keywords: dict[str, ast.expr]) -> ast.expr | None:
        """A flag's default; `ServerArgs.page_size` and `_declared_default("page_size")` mean the field's default."""
        given = keywords.get("default")
        if given is None and value(keywords.get("action"), self._names) == "store_true":
            return ast.Constant(False)
        if isinstance(given, ast.Attribute) and _dotted(given.value) in OWNERS:
            return self._defaults.get(given.attr, given)
        if isinstance(given, ast.Call) and _dotted(given.func) == "_declared_default" and given.args:
            return self._defaults.get(str(value(given.args[0], self._names)), given)
        if isinstance(given, ast.Call) and _dotted(given.func).endswith("field"):
            return next((one.value for one in given.keywords if one.arg == "default_factory"), given)
        return given

    def fields(self, node: ast.ClassDef) -> None:
        """Read the flags of fields `name: A[type, "help"] = default` and `name: A[type, Arg(…)] = default`."""
        for statement in node.body:
            if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
                continue
            note = statement.annotation
            if isinstance(note, ast.Constant) and isinstance(note.value, str):
                try:
                    note = ast.parse(note.value, mode="eval").body
                except SyntaxError:
                    self._doubts.append(
                        f"line {statement.lineno}: the annotation of {statement.target.id} is no Python"
                    )
                    continue
            if not isinstance(note, ast.Subscript) or _dotted(note.value).rpartition(".")[2] not in ("A", "Annotated"):
                continue
            parts = note.slice.elts if isinstance(note.slice, ast.Tuple) else [note.slice]
            self._field(statement.target.id, parts[0], parts[1:], statement.value, statement.lineno)

    def _field(self, name: str, kind: ast.expr, notes: list[ast.expr], default: ast.expr | None, line: int) -> None:
        told: dict[str, ast.expr] | None = None
        for note in notes:
            note = self._names.get(note.id, note) if isinstance(note, ast.Name) else note
            if isinstance(note, ast.Call) and _dotted(note.func).rpartition(".")[2] == "Arg":
                told = {one.arg: one.value for one in note.keywords if one.arg is not None}
                break
            if isinstance(value(note, self._names), str) or isinstance(note, ast.JoinedStr):
                told = {}
                break
        if told is None or value(told.get("no_cli"), self._names) is True:
            return
        given = value(told.get("cli_name"), self._names) if "cli_name" in told else None
        option = given or "--" + name.replace("_", "-")
        also = value(told.get("aliases"), self._names) if "aliases" in told else []
        if not isinstance(option, str) or not isinstance(also, list) or UNKNOWN in also:
            self._doubts.append(f"line {line}: the names of {name} are no constants")
            return
        keywords = dict(told)
        if default is not None:
            keywords["default"] = default
        if "action_kwargs" in told and isinstance(told["action_kwargs"], ast.Dict):
            for key, one in zip(told["action_kwargs"].keys, told["action_kwargs"].values, strict=True):
                if isinstance(key, ast.Constant):
                    keywords[str(key.value)] = one
        options = [option, *(also or [])]
        if "action" in told:
            self._add(options, keywords, line)
            return
        if "type_parser" in told:
            keywords["type"] = told["type_parser"]
        inner = _without_none(self._resolved(kind))
        base = _dotted(inner.value) if isinstance(inner, ast.Subscript) else _dotted(inner)
        base = base.rpartition(".")[2]
        if base == "Literal" and isinstance(inner, ast.Subscript):
            words = inner.slice.elts if isinstance(inner.slice, ast.Tuple) else [inner.slice]
            keywords.setdefault("choices", ast.List(list(words), ast.Load()))
            first = words[0].value if isinstance(words[0], ast.Constant) else ""
            keywords.setdefault("type", ast.Name(type(first).__name__))
            keywords.pop("nargs", None)
        elif base in ("list", "List") and "type_parser" not in told:
            keywords.setdefault("nargs", ast.Constant("+"))
            element = inner.slice if isinstance(inner, ast.Subscript) else None
            keywords.setdefault("type", ast.Name(_scalar(element)))
        elif base == "bool" and "type_parser" not in told:
            keywords = {"action": ast.Constant("store_true"), **{k: v for k, v in keywords.items() if k == "default"}}
        else:
            keywords.setdefault("type", ast.Name(_scalar(inner)))
        self._add(options, keywords, line)

    def _resolved(self, kind: ast.expr) -> ast.expr:
        """A type, with a name replaced by what it is bound to."""
        for _ in range(4):
            if isinstance(kind, ast.Name) and kind.id in self._names:
                kind = self._names[kind.id]
        return kind


def _scalar(node: ast.expr | None) -> str:
    name = _dotted(node) if node is not None else ""
    return name if name in ("str", "int", "float") else "str"


def _without_none(node: ast.expr) -> ast.expr:
    """X for Optional[X], X | None and Union[X, None]; the node itself if more than one type is left."""
    if isinstance(node, ast.Subscript):
        outer = _dotted(node.value).rpartition(".")[2]
        if outer == "Optional":
            return node.slice
        if outer == "Union" and isinstance(node.slice, ast.Tuple):
            left = [one for one in node.slice.elts if not (isinstance(one, ast.Constant) and one.value is None)]
            return left[0] if len(left) == 1 else node
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        if isinstance(node.right, ast.Constant) and node.right.value is None:
            return node.left
        if isinstance(node.left, ast.Constant) and node.left.value is None:
            return node.right
    return node


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return ast.unparse(node).split("(", 1)[0][:40]


def _worth(nargs: Any) -> str:
    if nargs == 0:
        return ""
    return "=*" if isinstance(nargs, int) and nargs > 1 else TAKES.get(nargs, "=")


def _action_nargs(modules: list[ast.Module]) -> dict[str, Any]:
    """Name of each argparse.Action in these modules → the nargs it uses by default."""
    found: dict[str, Any] = {}
    for module in modules:
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef) and any(_dotted(base).endswith("Action") for base in node.bases):
                found[node.name] = None
                for method in node.body:
                    if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                        found[node.name] = _default(method, "nargs", Names())
    return found


def _default(method: ast.FunctionDef, name: str, names: Names) -> Any:
    arguments = method.args
    given = arguments.args[len(arguments.args) - len(arguments.defaults) :]
    for each, default in (
        *zip(given, arguments.defaults, strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ):
        if each.arg == name and default is not None:
            return value(default, names)
    return None
