"""`pdctl autoscale`: what a scaling policy would do about a fleet, and why. Nothing is done to it."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Annotated

from pdctl import user_files
from pdctl.cli.parameters import option
from pdctl.errors import UsageError
from pdctl.policy import ScalingPolicyName, decide, read_input
from pdctl.render import role_changes as view
from pdctl.render import term
from pdctl.render.term import as_json

LARGEST = 64 << 20  # bytes of an observation and its history
STDIN = "-"


class DecisionForm(str, Enum):
    TEXT = "text"
    JSON = "json"


Output = Annotated[DecisionForm, option("--output", "-o", help="Form of the answer.")]


def explain(
    policy: Annotated[ScalingPolicyName, option("--policy", help="The policy that decides.")],
    observation: Annotated[
        str, option("--observation", metavar="FILE", help="The fleet as JSON: docs/autoscale.md; - is stdin.")
    ],
    output: Output = DecisionForm.TEXT,
) -> None:
    """Say how many replicas a policy would add or take away, and by which numbers. Contacts nobody.

    \b
    pdctl autoscale explain --policy blitz --observation fleet.json
    pdctl autoscale explain --policy kpa --observation fleet.json -o json
    """
    name = "<stdin>" if observation == STDIN else observation
    given = read_input(_bytes(observation, name), name, policy)
    decision = decide(policy, given)
    if output is DecisionForm.JSON:
        term.out().write(as_json(decision.document()))
    else:
        view.decision(decision, given.history[-1], term.out())


def policies(output: Output = DecisionForm.TEXT) -> None:
    """List the policies with their settings and the defaults of these.

    \b
    pdctl autoscale policies
    pdctl autoscale policies -o json
    """
    if output is DecisionForm.JSON:
        term.out().write(view.policies_json())
    else:
        view.policies(term.out())


def _bytes(file: str, name: str) -> bytes:
    """The content of a file or of standard input. Raise UsageError if it cannot be read or is too large."""
    hint = "give the file of an observation, or - for standard input"
    if file == STDIN and sys.stdin is None:  # closed by our parent
        raise UsageError("--observation -: there is no standard input", hint)
    try:
        data = sys.stdin.buffer.read(LARGEST + 1) if file == STDIN else user_files.read(file, LARGEST)
    except OSError as error:
        raise UsageError(f"--observation {file}: {(error.strerror or str(error)).lower()}", hint) from None
    if len(data) > LARGEST:
        raise UsageError(f"{name} is larger than {LARGEST >> 20} MiB", "leave older observations out of `history`")
    return data


SUBVERBS = (explain, policies)
