"""The fields of records that are sent between processes: ServerArgs, and the classes of srt/disaggregation."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.read_release.wheel import Wheel

FRAMES = ("from_zmq", "from_frames", "decode", "from_bytes")
IO = "sglang/srt/managers/io_struct.py"
BODIES = ("GenerateReqInput", "TokenizedGenerateReqInput")


class Field(NamedTuple):
    """`record`: file and class below srt/disaggregation (`nixl/conn.py TransferInfo`), or `ServerArgs`.

    `frame`: the index of the ZMQ frame it is read from, "" if it is not read from one.
    """

    record: str
    name: str
    frame: str


def read(wheel: Wheel) -> tuple[Field, ...]:
    found: set[Field] = set()
    for _, module in wheel.modules("sglang/srt/server_args.py", "sglang/srt/arg_groups/fields"):
        for node in module.body:
            if isinstance(node, ast.ClassDef) and (node.name == "ServerArgs" or _namespace(node)):
                found |= {Field("ServerArgs", name, "") for name in _fields(node)}
    for path, module in wheel.modules("sglang/srt/disaggregation"):
        short = path.removeprefix("sglang/srt/disaggregation/")
        if short.startswith(("encode", "mini_lb", "launch_lb")):
            continue
        for node in module.body:
            if isinstance(node, ast.ClassDef):
                found |= set(_record(f"{short} {node.name}", node))
    bodies = wheel.module(IO)
    for node in bodies.body if bodies is not None else ():
        if isinstance(node, ast.ClassDef) and node.name in BODIES:
            found |= {Field(f"io_struct.py {node.name}", name, "") for name in _fields(node)}
    return tuple(sorted(found))


def _namespace(node: ast.ClassDef) -> bool:
    """Whether a class's fields are collected into ServerArgs: `_NS_PATH` says into which part."""
    return any(isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "_NS_PATH" for one in node.body)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            note = ast.unparse(statement.annotation)
            if "ClassVar" not in note and "Derived(" not in note:
                yield statement.target.id


def _record(name: str, node: ast.ClassDef) -> Iterator[Field]:
    frames: dict[str, str] = {}
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name in FRAMES:
            frames |= _frames(method)
    for field in _fields(node):
        yield Field(name, field, frames.get(field, ""))


def _frames(method: ast.FunctionDef) -> dict[str, str]:
    """Field → frame index, from `cls(room=int(msg[0]…), …)`; a local name has the index of its value."""
    made: dict[str, str] = {}
    found: dict[str, str] = {}
    for node in ast.walk(method):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            made[node.targets[0].id] = _index(node.value, made)
    for node in ast.walk(method):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("cls", "TransferInfo", "KVArgsRegisterInfo"):
            for one in node.keywords:
                if one.arg is not None:
                    found[one.arg] = _index(one.value, made)
    return {name: index for name, index in found.items() if index}


def _index(node: ast.expr, made: dict[str, str]) -> str:
    for each in ast.walk(node):
        of_a_name = isinstance(each, ast.Subscript) and isinstance(each.value, ast.Name)
        index = each.slice if isinstance(each, ast.Subscript) else None
        if of_a_name and isinstance(index, ast.Constant):
            return str(index.value)
        if isinstance(each, ast.Name) and made.get(each.id):
            return made[each.id]
    return ""
