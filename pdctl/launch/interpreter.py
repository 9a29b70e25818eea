"""Which Python starts the embedded engine and router: this one, or for a one-file build one that has their packages."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from pdctl import program

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdctl.launch.deployment import Deployment, Spec

# What `pip install 'pdctl[engine]'` brings and the started processes import; NIXL is optional (shm is used without it).
ENGINE_PARTS = (
    "torch",
    "zmq",
    "msgspec",
    "safetensors",
    "tokenizers",
    "numpy",
    "jinja2",
    "fastapi",
    "uvicorn",
    "orjson",
)
ROUTER_PARTS = ("orjson", "httptools")
# What a pip install has besides, because `pdctl[engine]` asks for it.
ALSO = {"pdctl.engine": ("prometheus_client",), "pdctl.router": ()}
PATIENCE = 20.0  # seconds for a Python to look for its packages
ASK = "import sys, importlib.util as u; print('has', *[n for n in sys.argv[1:] if u.find_spec(n) is None])"


class Interpreter(NamedTuple):
    """`python` "": there is none. `missing`: packages it lacks, in the order they were asked for."""

    python: str
    missing: tuple[str, ...]


def parts(modules: Iterable[str]) -> tuple[str, ...]:
    """The packages that `modules` need; () where none is the embedded engine or router."""
    wanted = {"pdctl.engine": ENGINE_PARTS, "pdctl.router": ROUTER_PARTS}
    found = [name for module in wanted if module in modules for name in wanted[module]]
    if program.FILE:
        found += [name for module in wanted if module in modules for name in ALSO[module]]
    return tuple(dict.fromkeys(found))


def find(wanted: tuple[str, ...]) -> Interpreter:
    """The first Python that lacks none of `wanted`; if all lack some, the first one."""
    if not program.FILE:
        return Interpreter(sys.executable, tuple(name for name in wanted if find_spec(name) is None))
    return _find(wanted, program.pythons())


@cache
def _find(wanted: tuple[str, ...], pythons: tuple[str, ...]) -> Interpreter:
    asked: list[Interpreter] = []
    for python in pythons:
        answer = _ask(python, wanted)
        if not answer.missing:
            return answer
        asked.append(answer)
    return asked[0] if asked else Interpreter("", wanted)


def _ask(python: str, wanted: tuple[str, ...]) -> Interpreter:
    """One that cannot be started or does not answer in time has nothing."""
    try:
        done = subprocess.run(
            [python, "-c", ASK, *wanted], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired):
        return Interpreter(python, wanted)
    words = done.stdout.split()
    return Interpreter(python, tuple(words[1:]) if words[:1] == ["has"] and not done.returncode else wanted)


def equipped(deployment: Deployment) -> Deployment:
    """Of a one-file build: the same with the Python that was found, where one was. Of others: as it is."""
    wanted = parts({program.module_of(spec.argv) for spec in deployment.specs}) if program.FILE else ()
    found = find(wanted) if wanted else Interpreter("", ())
    if not found.python or found.missing:
        return deployment

    def with_python(spec: Spec) -> Spec:
        ours = spec.argv[1:2] == (program.FILE,)
        return dataclasses.replace(spec, argv=(found.python, *spec.argv[1:])) if ours else spec

    roles = tuple(map(with_python, deployment.roles))
    router = with_python(deployment.router) if deployment.router else None
    return dataclasses.replace(deployment, roles=roles, router=router)
