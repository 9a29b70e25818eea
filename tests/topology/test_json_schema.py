"""The exported JSON Schema, judged by an independent validator: it must agree with pdctl about structure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pdctl.topology.diagnostic import Code
from pdctl.topology.export import json_schema
from tests.cases import for_each

from .conftest import Write

jsonschema = pytest.importorskip("jsonschema", reason="comes with pdctl[test]")

STRUCTURAL = {
    Code.UNKNOWN_KEY,
    Code.MISSING_KEY,
    Code.WRONG_TYPE,
    Code.OUT_OF_RANGE,
    Code.BAD_CHOICE,
    Code.BAD_UNIT,
    Code.BAD_NAME,
    Code.OWNED_FLAG,
    Code.BAD_FLAG,
}
BROKEN = Path(__file__).parent / "broken"


def verdict(document: Any) -> list[str]:
    validator = jsonschema.Draft202012Validator(json_schema())
    return [error.message for error in validator.iter_errors(document)]


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())


def test_shipped_topologies_are_valid(shipped: Path) -> None:
    assert verdict(yaml.safe_load(shipped.read_text("utf-8"))) == []


def alone(path: Path) -> bool:
    """The schema sees one file as YAML 1.1, without overlays, `--set` and variables."""
    text = path.read_text("utf-8")
    said = path.with_suffix(".txt").read_text("utf-8")
    codes = {line.partition(":")[0] for line in said.splitlines()}
    semantic = any(words in said for words in ("needs the key `pool`", "needs the key `model.path`", "takes no pace"))
    return "#:" not in text and bool(codes & {code.value for code in STRUCTURAL}) and not semantic


STRUCTURALLY_BROKEN = [path for path in sorted(BROKEN.glob("[0-9]*.yaml")) if b"\0" not in path.read_bytes()]
STRUCTURALLY_BROKEN = [path for path in STRUCTURALLY_BROKEN if b"\xe9" not in path.read_bytes() and alone(path)]


@for_each("path", STRUCTURALLY_BROKEN, ids=lambda path: path.stem)
def test_structurally_broken_topologies_are_invalid(path: Path) -> None:
    assert verdict(yaml.safe_load(path.read_text("utf-8"))) != []


def test_enough_cases_reach_the_schema() -> None:
    assert len(STRUCTURALLY_BROKEN) >= 40


def test_the_schema_allows_what_files_may_do(write: Write) -> None:
    text = """
        x-anything: {a: [1]}
        router: {port: "${PORT:-8000}", host: "${HOST}"}
        readiness: {restart: all, timeout: "${T:-5m}"}
        roles: {prefill: , decode: {args: {some-flag: [1, a], x-why: because}}}
        targets: {local: {gpus: [0, 1]}}
        """
    assert verdict(yaml.safe_load(write(text).read_text())) == []
