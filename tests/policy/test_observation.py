"""Observation files: what is read, and the exact message for each that is broken."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from pdctl.errors import UsageError
from pdctl.policy import ScalingPolicyName, read_input
from pdctl.policy.blitz import BlitzBounds
from pdctl.policy.constraints import Limits
from pdctl.policy.reactive import KpaSettings
from pdctl.replica.states import ReplicaState
from tests.cases import for_each

GOOD: dict[str, Any] = {
    "prefills": 2,
    "decodes": 2,
    "waiting_prompt_tokens": 21_000,
    "kv_blocks_used": 20_000,
    "kv_blocks_used_on_prefill": 3_000,
    "block_tokens": 64,
    "kv_blocks_per_replica": 30_000,
    "prefill_tokens_per_s": 15_000,
    "kv_ingress_tokens_per_s": 96_000,
    "bounds": {"prefill": [0.5, 0.7], "decode": [0.75, 0.95], "migration": [0.4, 0.8]},
}
REPLICAS = [
    {"name": "p0", "state": "prefill"},
    {"name": "p1", "state": "loadingprefill", "ready": False},
    {"name": "d0", "state": "decode", "queues": {"prealloc": 3}, "kv_blocks_used": 7},
    {"name": "d1", "state": "ausdecode"},
    {"name": "x", "state": "shuttingnull"},
]


def read(document: object, policy: str = "blitz") -> Any:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    return read_input(data, "f.json", ScalingPolicyName(policy))


def test_what_is_left_out_has_its_default_and_what_is_given_is_read() -> None:
    given = read(GOOD)
    assert (given.settings, given.limits, len(given.history)) == (BlitzBounds(), None, 1)
    assert (given.history[0].pending_prefills, given.history[0].measured.requests_per_s) == (0, None)
    whole = {
        **GOOD,
        "time_s": 12.5,
        "replicas": REPLICAS,
        "measured": {"requests_per_s": 4, "cached_share": 0.5},
        "limits": {"prefill": [1, 4], "gpus": 8},
        "settings": {"drain_s": 2},
        "history": [{**{name: GOOD[name] for name in list(GOOD)[:7]}, "time_s": 2}],
    }
    given = read(whole, "kpa")
    assert given.settings == KpaSettings(drain_s=2)
    assert given.limits == Limits(prefill=(1, 4), gpus=8)
    earlier, now = given.history
    assert (earlier.time_s, now.time_s, now.measured.requests_per_s) == (2, 12.5, 4)
    assert (now.pending_prefills, now.pending_decodes) == (1, 0), "the list says who loads"
    assert [pool.ready for pool in now.pools] == [1, 1], "ausdecode is on its way back"
    assert now.replicas[2].queues.prealloc == 3
    assert now.replicas[4].state is ReplicaState.SHUTTING_NULL


def test_any_object_of_limits_switches_them_on() -> None:
    assert read({**GOOD, "limits": {}}).limits == Limits()


def changed(path: str, value: object) -> dict[str, Any]:
    """The good file with one member set, or removed if the value is `...`."""
    document = copy.deepcopy(GOOD)
    place: Any = document
    *above, last = path.split(".")
    for name in above:
        place = place.setdefault(name, {})
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return document


def listed(**members: object) -> dict[str, Any]:
    return changed("replicas", [{**REPLICAS[0], **members}, *REPLICAS[1:]])


REPLICAS_FROM_0 = "a whole number from 0 to 1,000,000"
COUNT = "a whole number from 0 to 1,000,000,000,000,000"
POSITIVE = "a number from 0.000001 to 1,000,000,000,000,000"
MANY_DIGITS = json.dumps(GOOD).replace("20000", "1" + "0" * 5000).encode()  # more than int() takes
BROKEN: list[tuple[object, str, str]] = [
    (b"", "f.json is empty", "an observation is a JSON object: docs/autoscale.md"),
    (b'{"prefills": 2', "f.json:1:15: not JSON: expecting ',' delimiter", "mend the file there"),
    (b'{\n "prefills" 2}', "f.json:2:13: not JSON: expecting ':' delimiter", "mend the file there"),
    (b"[" * 100_000, "f.json: nested too deep to be read", "an observation is a JSON object: docs/autoscale.md"),
    (b'{"a": "\xff"}', "f.json: byte 8 is not UTF-8", "save the file as UTF-8"),
    ([GOOD], "f.json is a list of 1, not an object", "an observation is a JSON object: docs/autoscale.md"),
    (b'{"decodes": 1, "decodes": 2}', "f.json: `decodes` stands twice in one object", "keep one of them"),
    (changed("prefils", 2), "f.json: there is no member `prefils`", "did you mean `prefills`?"),
    (changed("limit", {}), "f.json: there is no member `limit`", "did you mean `limits`?"),
    (
        changed("decodes", ...),
        "f.json: `decodes` is missing",
        f"add it: decode replicas, those that load included, {REPLICAS_FROM_0}",
    ),
    (changed("prefills", -1), f"f.json: `prefills` is -1, not {REPLICAS_FROM_0}", f"give {REPLICAS_FROM_0}"),
    (changed("prefills", 2.0), f"f.json: `prefills` is 2.0, not {REPLICAS_FROM_0}", f"give {REPLICAS_FROM_0}"),
    (changed("prefills", True), f"f.json: `prefills` is true, not {REPLICAS_FROM_0}", f"give {REPLICAS_FROM_0}"),
    (changed("prefills", 2.5), f"f.json: `prefills` is 2.5, not {REPLICAS_FROM_0}", f"give {REPLICAS_FROM_0}"),
    (changed("decodes", "2"), f"f.json: `decodes` is the text '2', not {REPLICAS_FROM_0}", f"give {REPLICAS_FROM_0}"),
    (changed("decodes", None), f"f.json: `decodes` is null, not {REPLICAS_FROM_0}", f"give {REPLICAS_FROM_0}"),
    (
        changed("waiting_prompt_tokens", 10**16),
        f"f.json: `waiting_prompt_tokens` is 10,000,000,000,000,000, not {COUNT}",
        f"give {COUNT}",
    ),
    (MANY_DIGITS, f"f.json: `kv_blocks_used` is a number above 1.79e308, not {COUNT}", f"give {COUNT}"),
    (changed("kv_blocks_used", float("nan")), f"f.json: `kv_blocks_used` is NaN, not {COUNT}", f"give {COUNT}"),
    (
        changed("block_tokens", 0),
        "f.json: `block_tokens` is 0, not a whole number from 1 to 1,000,000",
        "give a whole number from 1 to 1,000,000",
    ),
    (
        changed("prefill_tokens_per_s", 0),
        f"f.json: `prefill_tokens_per_s` is 0, not {POSITIVE}",
        f"give {POSITIVE}",
    ),
    (
        changed("kv_ingress_tokens_per_s", float("inf")),
        f"f.json: `kv_ingress_tokens_per_s` is a number above 1.79e308, not {POSITIVE}",
        f"give {POSITIVE}",
    ),
    (
        changed("kv_blocks_used_on_prefill", 20_001),
        "f.json: `kv_blocks_used_on_prefill` is more than `kv_blocks_used`: 20,001 of 20,000",
        "count them in `kv_blocks_used` too",
    ),
    (
        changed("pending_decodes", 3),
        "f.json: `pending_decodes` is more than `decodes`: 3 of 2",
        "count them in `decodes` too",
    ),
    (
        changed("bounds.decode", [0.95, 0.75]),
        "f.json: `bounds.decode` begins above its end: 0.95 > 0.75",
        "write the lower number first",
    ),
    (
        changed("bounds.decode", [0.75, 1.5]),
        "f.json: `bounds.decode` is a list of 2, not a list of two numbers from 0.000001 to 1, the lower one first",
        "give a list of two numbers from 0.000001 to 1, the lower one first",
    ),
    (
        changed("bounds.prefil", [1, 2]),
        "f.json: `bounds`: there is no member `prefil`",
        "did you mean `prefill`?; allowed: prefill, decode, migration",
    ),
    (changed("bounds", None), "f.json: `bounds` is null, not an object", "give an object"),
    (
        changed("limits.prefill", [0, 4]),
        "f.json: `limits.prefill` is a list of 2, not a list of two whole numbers from 1 to 1,000,000, the lower one "
        "first",
        "give a list of two whole numbers from 1 to 1,000,000, the lower one first",
    ),
    (changed("limits.gpu", 4), "f.json: `limits`: there is no member `gpu`", "did you mean `gpus`?"),
    (
        changed("settings", {}),
        "f.json: the settings of blitz are the member `bounds`",
        "leave `settings` out",
    ),
    (changed("history", {}), "f.json: `history` is no list", "give a list of observations, the oldest first"),
    (
        changed("history", [{name: GOOD[name] for name in list(GOOD)[:7]}]),
        "f.json: `history[0].time_s` is 0, and the observation after it has 0",
        "give the oldest first, each with its `time_s`",
    ),
    (
        changed("history", [GOOD]),
        "f.json: `history[0]`: there is no member `bounds`",
        "its members are prefills, decodes, waiting_prompt_tokens, kv_blocks_used, kv_blocks_used_on_prefill, "
        "block_tokens, kv_blocks_per_replica, prefill_tokens_per_s, kv_ingress_tokens_per_s, time_s, pending_prefills, "
        "pending_decodes, measured, replicas, arrivals_ahead",
    ),
    (listed(ready=1), "f.json: `replicas[0].ready` is 1, not true or false", "give true or false"),
    (listed(name=""), "f.json: `replicas[0].name` is the text '', not a non-empty text", "give a non-empty text"),
    (listed(name="p1"), "f.json: `replicas` has two named 'p1'", "give each a name of its own"),
    (listed(state="prefil"), "f.json: `replicas[0].state` is 'prefil', which is no state", "did you mean `prefill`?"),
    (
        listed(state="decode"),
        "f.json: `prefills` is 2, but 1 of `replicas` are in a state that counts as prefill",
        "set it to 1, or complete the list",
    ),
    (
        {**listed(), "pending_prefills": 2},
        "f.json: `pending_prefills` is 2, but 1 of `replicas` are loading",
        "leave it out: the list says it",
    ),
    (changed("replicas", {}), "f.json: `replicas` is an object, not a list of objects", "give a list of objects"),
    (
        changed("measured.cached_share", 1.2),
        "f.json: `measured.cached_share` is 1.2, not a number from 0 to 1",
        "give a number from 0 to 1",
    ),
    (
        changed("arrivals_ahead", [{"in_s": 1, "prompt_tokens": 5}]),
        "f.json: `arrivals_ahead[0].output_tokens` is missing",
        f"add it: its answer, {COUNT}",
    ),
]  # fmt: skip


@for_each(("document", "message", "fix"), BROKEN, ids=lambda value: str(value)[:60])
def test_a_broken_file_gets_its_place_and_what_to_do(document: object, message: str, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(document)
    assert (caught.value.message, caught.value.fix) == (message, fix)


def test_a_wrong_value_is_never_repeated_at_length() -> None:
    long = "x" * 100_000
    for member, value in (("prefills", long), (long, 1), ("replicas", [{"name": "a", "state": long}])):
        with pytest.raises(UsageError) as caught:
            read({**GOOD, member: value})
        assert len(caught.value.message) + len(caught.value.fix) < 1_000
