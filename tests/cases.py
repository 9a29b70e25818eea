"""Many small cases in one test: `@for_each` takes what `pytest.mark.parametrize` takes.

As a test of its own a case costs milliseconds in each test process before it runs, and there are thousands of them. All
are tried, and the failure names those that failed. `PDCTL_CASES=1 pytest tests/PLACE` makes each a test of its own.
For functions of values: a fixture is made once, for all cases together. Cases with marks stay tests of their own.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

SEPARATE = bool(os.environ.get("PDCTL_CASES"))
SHOWN = 20  # failures told in full; more are named

Test = Callable[..., None]
Ids = Callable[[Any], object] | Sequence[str] | None


def for_each(names: str | Sequence[str], values: Iterable[Any], ids: Ids = None) -> Callable[[Test], Test]:
    """Run the test for every case, stacked ones for every combination; raise AssertionError with each that failed."""
    words = [word.strip() for word in names.split(",")] if isinstance(names, str) else list(names)
    given = list(values)
    if SEPARATE or any(getattr(one, "marks", ()) for one in given):
        return pytest.mark.parametrize(names, given, ids=ids)
    cases = list(_cases(words, given, ids))

    def decorate(test: Test) -> Test:
        def every(*args: object, **fixtures: object) -> None:
            assert cases, "there is no case"
            failed = []
            for name, case in cases:
                try:
                    test(*args, **fixtures, **case)
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  # whatever it is, with its case
                    failed.append((name, error))
            if failed:
                raise AssertionError(_told(failed, len(cases))) from failed[0][1]

        functools.update_wrapper(every, test)
        own = inspect.signature(test)
        rest = [parameter for name, parameter in own.parameters.items() if name not in words]
        assert len(own.parameters) - len(rest) == len(words), f"{test.__name__} does not take {', '.join(words)}"
        every.__signature__ = own.replace(parameters=rest)  # type: ignore[attr-defined]  # pytest reads fixtures from it
        return every

    return decorate


def _cases(words: list[str], given: list[Any], ids: Ids) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, one in enumerate(given):
        name = None
        if isinstance(one, type(pytest.param())):
            row, name = one.values, one.id
        else:
            row = (one,) if len(words) == 1 else tuple(one)
        assert len(row) == len(words), f"case {number} has {len(row)} values for {', '.join(words)}"
        if name is None:
            called = ids is None or callable(ids)
            name = "-".join(_label(value, ids) for value in row) if called else str(ids[number])
        yield f"{number}: {name}", dict(zip(words, row, strict=True))


def _label(value: Any, ids: Callable[[Any], object] | None) -> str:
    said = None if ids is None else ids(value)
    text = repr(value) if said is None else str(said)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _told(failed: list[tuple[str, BaseException]], of: int) -> str:
    lines = [f"{len(failed)} of {of} cases failed"]
    for name, error in failed[:SHOWN]:
        text = str(error).replace("\n", "\n    ")
        lines.append(f"  [{name}] {type(error).__name__}: {text}")
    lines += [f"  [{name}]" for name, _ in failed[SHOWN:]]
    return "\n".join(lines)
