"""Who may ask what of an engine: a real server process over echo ranks, with a key and a deployment secret."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest

from pdctl.deployment_secret import ENV, DeploymentSecret
from pdctl.http_auth import SIGNATURE, TOKEN, sign
from tests.engine.frontend.conftest import READY, running, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.engine.frontend.conftest import Engine

KEY = {"Authorization": "Bearer clients-key"}


@pytest.fixture(scope="module")
def guarded(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, DeploymentSecret]]:
    directory = tmp_path_factory.mktemp("secrets")
    secret = DeploymentSecret.mint()
    secret.write(directory / "secret")
    (directory / "key").write_text("clients-key\n")
    env = {ENV: str(directory / "secret"), "PDCTL_API_KEY": "not this one"}
    with running(model, "--api-key-file", str(directory / "key"), env=env) as engine:
        engine.wait_for(READY)
        yield engine, secret


def test_health_and_metrics_are_open_and_the_rest_needs_the_key(guarded: tuple[Engine, DeploymentSecret]) -> None:
    client = guarded[0].client
    assert [client.get(path).status_code for path in ("/health", "/ready", "/metrics")] == [200, 200, 200]
    for path in ("/server_info", "/v1/models", "/v1/loads"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert client.get(path, headers=KEY).status_code == 200
    refused = client.post("/generate", json={"text": "a"})
    assert refused.status_code == 401
    assert refused.json()["error"]["type"] == "authentication_error"
    assert client.post("/generate", json={"text": "a"}, headers=KEY).status_code == 200
    assert "clients-key" not in client.get("/server_info", headers=KEY).text


@pytest.mark.parametrize("path", ["/flush_cache", "/pd_role_switch"])
def test_a_clients_key_changes_nothing(guarded: tuple[Engine, DeploymentSecret], path: str) -> None:
    engine, secret = guarded
    body = json.dumps({"new_role": "decode"}).encode()
    assert engine.client.post(path, content=body, headers=KEY).status_code == 401
    other = sign(DeploymentSecret.mint(), "POST", path, body)
    assert engine.client.post(path, content=body, headers={SIGNATURE: other}).status_code == 401
    signed = {SIGNATURE: sign(secret, "POST", path, body)}
    assert engine.client.post(path, content=body, headers=signed).status_code in (200, 400)
    assert engine.client.post(path, content=body, headers=signed).status_code == 401
    token = {"Authorization": f"Bearer {secret.token(TOKEN)}"}
    assert engine.client.post(path, content=body, headers=token).status_code in (200, 400)


def test_a_client_aborts_only_the_request_it_names(guarded: tuple[Engine, DeploymentSecret]) -> None:
    engine, secret = guarded
    client = engine.client
    rows = [{"text": "!mute", "rid": rid} for rid in ("mine", "mine_0x", "other")]
    threads = [
        threading.Thread(target=client.post, args=("/generate",), kwargs={"json": row, "headers": KEY}) for row in rows
    ]
    for thread in threads:
        thread.start()

    def count() -> int:
        loads = client.get("/v1/loads", headers=KEY).json()["loads"]
        return sum(load["num_running_reqs"] for load in loads)

    until(lambda: count() == 3, "three requests to run")
    assert client.post("/abort_request", json={"abort_all": True}, headers=KEY).status_code == 401
    assert client.post("/abort_request", json={"rid": ""}, headers=KEY).status_code == 200
    assert client.post("/abort_request", json={"rid": "mine"}, headers=KEY).status_code == 200
    until(lambda: count() == 2, "one request to end")
    body = json.dumps({"abort_all": True}).encode()
    signed = {**KEY, SIGNATURE: sign(secret, "POST", "/abort_request", body)}
    assert client.post("/abort_request", content=body, headers=signed).status_code == 200
    until(lambda: count() == 0, "all requests to end")
    for thread in threads:
        thread.join(30)
