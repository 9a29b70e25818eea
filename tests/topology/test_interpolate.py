from __future__ import annotations

import pytest

from pdctl.topology.scalars import expand

ENVIRON = {"HOST": "gpu1", "EMPTY": "", "BRACE": "{}"}


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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
