"""What is rendered is valid for every release of Kubernetes, and the schemas are what their sources say."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from pdctl.errors import UsageError
from pdctl.manifests import kubernetes_validation
from pdctl.manifests.kubernetes_validation import VERSIONS, schema_version, validate
from tests.kubernetes import upstream_schemas
from tests.kubernetes.conftest import FLAVOURS, NAMES, Render


@pytest.mark.parametrize("version", VERSIONS)
def test_three_flavours_of_three_topologies(rendered: Render, version: str) -> None:
    for name in NAMES:
        for flavour in FLAVOURS:
            made = rendered(name, flavour=flavour, versions=(version,))
            assert validate(made.objects, (version,)) == ()
            assert len(made.objects) >= 5


def test_the_versions() -> None:
    assert VERSIONS == upstream_schemas.VERSIONS == tuple(f"1.{minor}" for minor in range(27, 38))
    assert schema_version("v1.30.4") == schema_version("1.30") == "1.30"
    with pytest.raises(UsageError, match=r"no schemas of Kubernetes 1\.26"):
        schema_version("1.26")


def test_a_definition_reads_as_in_its_release() -> None:
    """Containers can be resized in place since 1.27; pods as a whole have resources since 1.32."""
    assert "resizePolicy" in kubernetes_validation._definitions("1.27")["Container"]["properties"]
    assert "resources" not in kubernetes_validation._definitions("1.31")["PodSpec"]["properties"]
    assert "resources" in kubernetes_validation._definitions("1.32")["PodSpec"]["properties"]


def test_every_reference_leads_somewhere() -> None:
    for version in VERSIONS:
        definitions = kubernetes_validation._definitions(version)
        text = json.dumps(definitions)
        for file in kubernetes_validation.CUSTOM.values():
            text += (kubernetes_validation.SCHEMAS / file).read_text(encoding="utf-8")
        named = {part.partition('"')[0] for part in text.split('"#/$defs/')[1:]}
        assert named <= definitions.keys()


def test_crds_say_which_release_they_are_of() -> None:
    for _, (file, _, source) in upstream_schemas.CRDS.items():
        assert json.loads((kubernetes_validation.SCHEMAS / file).read_text(encoding="utf-8"))["source"] == source


@pytest.mark.heavy
def test_the_built_in_schemas_are_those_of_kubernetes_validate() -> None:
    package = find_spec("kubernetes_validate")
    if package is None or package.origin is None:
        pytest.skip("kubernetes-validate is not installed: pip install kubernetes-validate==1.37.0")
    fresh = upstream_schemas.built_in(Path(package.origin).parent / "kubernetes-json-schema")
    kept = json.loads((kubernetes_validation.SCHEMAS / "core.json").read_text(encoding="utf-8"))
    assert json.loads(json.dumps(fresh)) == kept
