"""Engine and router flags that pdctl writes itself, each with the topology key that decides it.

Spellings of sglang 0.5.3 to 0.5.23 (srt/server_args.py) and of sglang_router 0.3.2 and smg 1.13.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.kinds import MINI_LB_FLAG
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

# {role} becomes prefill or decode; a value with spaces says in words who decides.
ENGINE_OWNED: Mapping[str, str] = {
    "model-path": "model.path",
    "model": "model.path",
    "served-model-name": "model.served-name",
    "dtype": "model.dtype",
    "kv-cache-dtype": "model.kv-dtype",
    "context-length": "model.context-length",
    "tp-size": "roles.{role}.tp",
    "tensor-parallel-size": "roles.{role}.tp",
    "tp": "roles.{role}.tp",
    "dp-size": "roles.{role}.dp",
    "data-parallel-size": "roles.{role}.dp",
    "dp": "roles.{role}.dp",
    "attn-dp-size": "roles.{role}.dp",
    "attention-data-parallel-size": "roles.{role}.dp",
    "enable-dp-attention": "roles.{role}.dp",
    "ep-size": "roles.{role}.ep",
    "expert-parallel-size": "roles.{role}.ep",
    "ep": "roles.{role}.ep",
    "pp-size": "roles.{role}.pp",
    "pipeline-parallel-size": "roles.{role}.pp",
    "pp": "roles.{role}.pp",
    "page-size": "roles.{role}.page-size",
    "mem-fraction-static": "roles.{role}.mem-fraction",
    "host": "engine.host",
    "pace": "engine.pace",
    "port": "ports.http",
    "nnodes": "the shape and the pool's gpus-per-host",
    "node-rank": "the place of the node in its instance",
    "dist-init-addr": "ports.dist-init",
    "nccl-init-addr": "ports.dist-init",
    "nccl-port": "ports.dist-init",
    "base-gpu-id": "the place of the instance on its host",
    "gpu-id-step": "the place of the instance on its host",
    "disaggregation-mode": "the role it stands in",
    "disaggregation-bootstrap-port": "ports.bootstrap",
    "disaggregation-transfer-backend": "transfer.backend",
    "disaggregation-ib-device": "transfer.ib-devices",
    "disaggregation-decode-tp": "roles.decode.tp",
    "disaggregation-decode-dp": "roles.decode.dp",
    "disaggregation-prefill-pp": "roles.prefill.pp",
}
ROUTER_OWNED: Mapping[str, str] = {
    "host": "router.host",
    "port": "router.port",
    "policy": "router.policy",
    "prefill-policy": "router.prefill-policy",
    "decode-policy": "router.decode-policy",
    "pd-disaggregation": "the topology having two roles",
    MINI_LB_FLAG: "router.kind",
    "prefill": "the instances of roles.prefill",
    "decode": "the instances of roles.decode",
    "worker-urls": "the instances of both roles",
}


class FlagOwner(NamedTuple):
    """Who decides a flag: topology keys, or words where no single key does."""

    keys: tuple[str, ...]
    words: str = ""


def owner(flag: str, path: str) -> FlagOwner | None:
    """Who decides `flag` where it stands in the args at `path` ("engine.args"); None when nobody but the user does."""
    section, _, rest = path.partition(".")
    decider = (ROUTER_OWNED if section == "router" else ENGINE_OWNED).get(flag)
    if decider is None:
        return None
    if " " in decider:
        return FlagOwner((), decider)
    roles = (rest.partition(".")[0],) if section == "roles" else ("prefill", "decode")
    return FlagOwner(tuple(dict.fromkeys(decider.format(role=role) for role in roles)))
