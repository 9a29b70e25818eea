"""A host whose clock is set by an hour: no deadline, latency or report of the engine moves."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest

from pdctl.engine.ipc import messages
from pdctl.engine.ipc.messages import steady_time

ENGINE = Path(messages.__file__).parents[1]
# Where the time of day itself is what is asked for.
TIME_OF_DAY = {
    "ipc/messages.py", "frontend/instance_routes.py", "frontend/openai.py", "frontend/responses.py",
    "frontend/tokenizer.py",
}  # fmt: skip


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_now_goes_on_when_the_clock_is_set(step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    real, before = time.time, steady_time()
    monkeypatch.setattr(time, "time", lambda: real() + step)
    assert 0 <= steady_time() - before < 60


def test_the_engine_asks_nothing_else_for_the_time() -> None:
    asking = set()
    for path in ENGINE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in (
                "time.time",
                "datetime.now",
                "datetime.utcnow",
            ):
                asking.add(str(path.relative_to(ENGINE)))
    assert asking == TIME_OF_DAY
