from __future__ import annotations

from pdctl.topology import scalars
from pdctl.topology.model import SourceSpan
from pdctl.topology.scalars import ScalarSort, expand
from pdctl.topology.yaml_parser import Scalar
from tests.cases import for_each

HERE = SourceSpan("t.yaml", 1, 1, 2)


@for_each(
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


@for_each(
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


@for_each("text", ["9" * 200_000, "1:" * 100_000, "1_" * 100_000, "0" * 200_000 + "x"])
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


ENVIRON = {"HOST": "gpu1", "EMPTY": "", "BRACE": "{}"}


@for_each(
    ("text", "expanded"),
    [
        ("plain", "plain"),
        ("${HOST}", "gpu1"),
        ("http://${HOST}:80", "http://gpu1:80"),
        ("${HOST}${HOST}", "gpu1gpu1"),
        ("${NONE:-a b}", "a b"),
        ("${NONE:-}", ""),
        ("${EMPTY:-set}", "set"),
        ("${EMPTY}", ""),
        ("${NONE:-${HOST}/x}", "gpu1/x"),
        ("${NONE:-${OTHER:-deep}}", "deep"),
        ("${NONE:-{}}", "{}"),
        ("$$HOME", "$HOME"),
        ("$$${HOST}", "$gpu1"),
        ("${BRACE}", "{}"),
    ],
)
def test_expand(text: str, expanded: str) -> None:
    found = expand(text, ENVIRON)
    assert (found.text, found.faults) == (expanded, ())


@for_each(
    ("text", "fragment"),
    [
        ("a ${NONE} b", "${NONE}"),
        ("${NONE:-${ALSO}}", "${ALSO}"),
        ("${HOST", "${HOST"),
        ("${1X}", "${1X}"),
        ("${HOST-x}", "${HOST-x}"),
        ("${}", "${}"),
        ("5$", "$"),
        ("$HOST/x", "$HOST"),
    ],
)
def test_faults_name_the_stretch_they_are_about(text: str, fragment: str) -> None:
    assert [fault.fragment for fault in expand(text, ENVIRON).faults] == [fragment]


def test_defaults_within_defaults_end() -> None:
    assert expand("${A:-" * 8 + "x" + "}" * 8, {}).text == "x"
    found = expand("${A:-" * 5000 + "x" + "}" * 5000, {}).faults
    assert len(found) == 1


def test_all_faults_of_a_value_are_found() -> None:
    assert len(expand("${A} $B ${C:?}", {}).faults) == 3
