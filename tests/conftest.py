"""Which test process gets which files, and in which order: each takes the next as soon as it is free."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import ModuleType

    from xdist.remote import Producer

HERE = Path(__file__).parent
DEPLOYMENTS = ("e2e", "switch", "launch")  # their files start whole deployments
LONG = ("engine/model", "engine", "cli", "router", "logs", "fuzz", "doctor")
BESIDE = 3  # files between two that start deployments
# Files that share what is dear to make, so one test process runs them, in this order.
TOGETHER = {
    # a deployment; the logs of the load that the deaths need would be read by what comes after
    "two prefills": ("e2e", "hostile_text two_prefills_one_decode lifecycle probes load role_switch deaths"),
    "recordings": ("trace", "merged diagnose proven_deaths summary recordings texts reader_zones"),  # as they were read
    "transformers": ("engine/model", "logits checkpoints corpus neighbours parallel tiny weights window"),  # imported
    "package": ("project", "import_circles unique_names dependency_rule engine_names"),  # parsed
    # engines
    "echo": ("engine/frontend", "pairing refusals instance_routes openai generate abort metrics_names lifecycle"),
}
SHARED = {
    f"tests/{folder}/test_{name}.py": what for what, (folder, names) in TOGETHER.items() for name in names.split()
}

# An example may take long because another process had the core: how long one takes says nothing.
settings.register_profile("pdctl", deadline=None)
settings.load_profile("pdctl")

# A shell without job control (a CI step, `pytest &`) ignores SIGINT for what it starts in the background, and every
# process the tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests start hundreds of Python processes. Where bytecode is not kept, as in many containers, each of them compiles
# everything it imports, and each test process every test module.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Idle threads of a pool sleep instead of turning: several processes share the cores. Read when torch is first loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


# Collection makes millions of objects that stay to the end: going through them again and again in search of garbage
# takes a third of its time, and then a part of every test's.
gc.disable()


def pytest_collection(session: pytest.Session) -> None:
    """Import a share of the modules in each test process before it collects all of them.

    In a fresh checkout each module is then compiled by one process, and the others find its bytecode. So it is with
    what hypothesis keeps of a module of the package: the constants that it tries as values.
    """
    given = getattr(session.config, "workerinput", None)
    if given is None or [Path(path).resolve() for path in session.config.args] != [HERE]:
        return
    first, step = int(given["workerid"].removeprefix("gw")), given["workercount"]
    for path in sorted(HERE.rglob("test_*.py"))[first::step]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # collecting it raises this again, and tells it
            _imported(path)
    with contextlib.suppress(ImportError):  # a module of hypothesis's own, which older releases do not have
        from hypothesis.internal.constants_ast import constants_from_module

        for path in sorted((HERE.parent / "pdctl").rglob("[!_]*.py"))[first::step]:
            constants_from_module(_imported(path))


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What shares first, then deployments one after the other beside other tests; what takes long before the rest."""
    paths = list(dict.fromkeys(item.path for item in items))
    sharing = sorted(
        (path for path in paths if _name(path) in SHARED), key=lambda path: list(SHARED).index(_name(path))
    )
    alone = [path for path in paths if path not in sharing]
    deploying = [path for path in alone if _place(path, DEPLOYMENTS) < len(DEPLOYMENTS)]
    others = sorted((path for path in alone if path not in deploying), key=lambda path: _place(path, LONG))
    order = {path: number for number, path in enumerate(sharing)}
    while deploying or others:
        for path in (*deploying[:1], *others[:BESIDE]):
            order[path] = len(order)
        del deploying[:1], others[:BESIDE]
    items.sort(key=lambda item: order[item.path])


class Scheduling(LoadFileScheduling):
    """A file's tests stay together, and so do files that share."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return SHARED.get(file, file)


@pytest.hookimpl(optionalhook=True)  # absent where xdist is off
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test printed or logged may hold halves of characters, which no process can send to another."""
    report = yield
    report.sections = [(title, text.encode("utf-8", "backslashreplace").decode()) for title, text in report.sections]
    return report


def _imported(path: Path) -> ModuleType:
    return importlib.import_module(".".join(path.relative_to(HERE.parent).with_suffix("").parts))


def _name(path: Path) -> str:
    return f"tests/{path.relative_to(HERE).as_posix()}"


def _place(path: Path, folders: tuple[str, ...]) -> int:
    inside = path.relative_to(HERE).as_posix()
    return next((n for n, folder in enumerate(folders) if inside.startswith(f"{folder}/")), len(folders))
