"""The table of states: complete, and what its columns say of each other."""

from __future__ import annotations

from pdctl.replica.states import STATES, CountsAs, IngressLock, ReplicaState, Weights
from tests.cases import for_each

# The states of BlitzScale's controller, as its manual writes them but for two slips of the pen in it.
SEED = [
    *("inactive", "loadingprefill", "loadingdecode", "prefill", "newprefill", "refractoryprefill", "oldprefill"),
    *("decode", "mutatingtodecode", "ausprefill", "ausdecode", "shuttingprefill", "shuttingdecode", "shuttingnull"),
]
OURS = ["mutatingtoprefill", "failed"]


def test_the_states_have_the_names_of_the_manual() -> None:
    assert sorted(ReplicaState) == sorted(SEED + OURS)
    assert list(STATES) == list(ReplicaState), "one row per state, in the same order"


@for_each("state", STATES)
def test_a_name_that_tells_a_role_counts_as_it(state: ReplicaState) -> None:
    counted = STATES[state].counts_as
    if state.startswith("shutting") or state in (ReplicaState.INACTIVE, ReplicaState.FAILED):
        assert counted is CountsAs.NEITHER, "what drains or is empty must not keep a planner from ordering more"
    else:
        assert state.endswith(counted), "what loads or changes counts already, or the planner would order it twice"


@for_each("state", STATES)
def test_columns_agree(state: ReplicaState) -> None:
    facts = STATES[state]
    assert facts.takes_kv == (state is ReplicaState.DECODE), "KV cache is pushed into decodes only"
    assert not facts.takes_requests or (facts.computes and facts.counts_as is CountsAs.PREFILL)
    assert not facts.computes or facts.weights is not Weights.NONE
    assert not facts.serves or facts.weights is Weights.RESIDENT
    assert not (facts.takes_requests and facts.takes_kv), "a replica has one role at a time"
    if facts.weights is not Weights.RESIDENT and state is not ReplicaState.FAILED:
        assert facts.ingress_lock is IngressLock.HELD, "nobody pushes KV cache into a model that is not there"


@for_each("state", STATES)
def test_a_meaning_is_one_sentence(state: ReplicaState) -> None:
    meaning = STATES[state].meaning
    assert meaning[0].isupper()
    assert meaning.index(".") == len(meaning) - 1


def test_what_serves() -> None:
    serving = {state.value for state, facts in STATES.items() if facts.serves}
    assert serving == {"prefill", "refractoryprefill", "oldprefill", "decode"}
