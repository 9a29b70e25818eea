from __future__ import annotations

import pytest

from pdctl.topology import scalars
from pdctl.topology.model import Span
from pdctl.topology.scalars import ScalarSort
from pdctl.topology.yaml_tree import Scalar

HERE = Span("t.yaml", 1, 1, 2)


@pytest.mark.parametrize(
    ("text", "sort"),
    [
        ("8", ScalarSort.INTEGER),
        ("-1", ScalarSort.INTEGER),
        ("0", ScalarSort.INTEGER),
        ("0.8", ScalarSort.NUMBER),
        ("1e5", ScalarSort.NUMBER),
        ("true", ScalarSort.BOOLEAN),
        ("False", ScalarSort.BOOLEAN),
        ("null", ScalarSort.NULL),
        ("", ScalarSort.NULL),
        ("lmsysorg/sglang:v0.5.18", ScalarSort.TEXT),
        ("0.5.23", ScalarSort.TEXT),
        ("80GiB", ScalarSort.TEXT),
        ("0x1F", ScalarSort.TEXT),
        ("tRUE", ScalarSort.TEXT),
        ("٣", ScalarSort.TEXT),
    ],
)
def test_plain_values_mean_what_yaml_1_2_says(text: str, sort: ScalarSort) -> None:
    assert scalars.sort(Scalar(HERE, text)) is sort
    assert scalars.sort(Scalar(HERE, text, plain=False)) is ScalarSort.TEXT


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        ("yes", "true"),
        ("Off", "false"),
        ("n", "false"),
        ("010", "10"),
        ("00", "0"),
        ("08998", "8998"),
        ("0o17", "15"),
        ("30_000", "30000"),
        ("1:30:00", "1h30m"),
        ("2:30", "2m30s"),
    ],
)
def test_values_that_yaml_1_1_reads_otherwise_are_doubtful(text: str, rewritten: str) -> None:
    assert scalars.sort(Scalar(HERE, text)) is ScalarSort.DOUBTFUL
    doubt = scalars.doubt(text)
    assert doubt is not None
    assert scalars.rewritten(doubt, text) == rewritten


@pytest.mark.parametrize("text", ["9" * 200_000, "1:" * 100_000, "1_" * 100_000, "0" * 200_000 + "x"])
def test_a_value_of_any_length_is_judged_at_once(text: str) -> None:
    assert scalars.sort(Scalar(HERE, text)) is ScalarSort.TEXT


def test_what_yaml_1_1_makes_of_it_is_said() -> None:
    said = [scalars.explain_doubt(doubt, text) for text in ("010", "2:30:00") if (doubt := scalars.doubt(text))]
    assert said == [
        "is octal in YAML 1.1 (8) and decimal in YAML 1.2",
        "is 9,000 in YAML 1.1 and text in YAML 1.2",
    ]


def test_a_variable_is_read_by_what_it_became_even_in_quotes() -> None:
    assert scalars.sort(Scalar(HERE, "8000", plain=False, note="this became `8000`")) is ScalarSort.INTEGER
    assert scalars.sort(Scalar(HERE, "", plain=True, note="this became empty")) is ScalarSort.TEXT
