"""A prefill of a running deployment becomes a decode and comes back, while clients ask."""

from __future__ import annotations

import json
from functools import partial

from tests import plain_http
from tests.e2e.conftest import Deployment, wait_for
from tests.switch.load import PROMPTS, Load


def more(load: Load, than: int) -> bool:
    return len(load.answers) > than


def mode(url: str) -> str:
    return str(plain_http.get(f"{url}/model_info").json()["disaggregation_mode"])


def status(deployment: Deployment) -> dict[str, tuple[str, str]]:
    """Name → role and what is missing."""
    rows = json.loads(deployment.pdctl("status", "e2e", "-o", "json").stdout)["instances"]
    return {row["name"]: (row["role"], row["missing"]) for row in rows}


def test_there_and_back_while_clients_ask(two_prefills: Deployment) -> None:
    """Nobody loses a request, every answer to a prompt is the same, and no page stays behind."""
    turning = two_prefills.prefills[1]
    with Load([two_prefills.router], clients=2) as load:
        for to in ("decode", "prefill"):
            wait_for("an answer", partial(more, load, len(load.answers)), 60)
            done = two_prefills.pdctl("role-switch", "prefill-1", "--to", to, "--run", "e2e")
            assert f"prefill-1 is a {to} now" in done.stdout
            assert mode(turning) == to
            assert status(two_prefills)["prefill-1"] == (to, "")
    assert load.lost == []
    assert set(load.texts) <= set(PROMPTS)
    assert all(len(texts) == 1 for texts in load.texts.values()), load.texts
    wait_for("every page free", two_prefills.all_pages_free)


def test_the_only_decode_stays_one(two_prefills: Deployment) -> None:
    done = two_prefills.pdctl("role-switch", "decode-0", "--to", "prefill", "--run", "e2e", check=False)
    assert done.returncode == 1
    assert "decode-0 is needed as a decode: without it 0 would be ready (none)" in done.stderr
    assert mode(two_prefills.decodes[0]) == "decode"


def test_no_such_instance(two_prefills: Deployment) -> None:
    done = two_prefills.pdctl("role-switch", "decode-7", "--to", "prefill", "--run", "e2e", check=False)
    assert done.returncode == 5
    assert "run `e2e` has no instance `decode-7`" in done.stderr
    assert "prefill-0, prefill-1, decode-0" in done.stderr
