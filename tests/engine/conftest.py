"""What a test leaves in the process that runs the next one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def variables_of_one_process() -> Iterator[None]:
    """UCX reads its variables here, once per rank: the next rank of this process may pretend to be on another host."""
    before = {name: value for name, value in os.environ.items() if name.startswith("UCX_")}
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("UCX_")]:
            del os.environ[name]
        os.environ.update(before)


@pytest.fixture(autouse=True)
def _variables_of_one_test() -> Iterator[None]:
    with variables_of_one_process():
        yield
