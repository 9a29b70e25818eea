"""The model of a topology or manifest, as far as its config.json can be read from here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pdctl.doctor.families import Family, family, recurrent

if TYPE_CHECKING:
    from pdctl.doctor.static.servers import Servers

NO_CONFIG = "the model's config.json is not at hand (set model.config)"


class Model(NamedTuple):
    architecture: str
    family: Family
    longest: int | None  # max_position_embeddings

    @property
    def recurrent(self) -> bool:
        return recurrent(self.architecture)


def model(servers: Servers) -> Model | None:
    """None where there is no config.json, or one that names no architecture."""
    path = _path(servers)
    if path is None:
        return None
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    names = config.get("architectures") if isinstance(config, dict) else None
    if not isinstance(names, list) or not names:
        return None
    inner = config.get("text_config")
    said = {**inner, **config} if isinstance(inner, dict) else config
    found = family(str(names[0]))
    if found is Family.GQA and said.get("kv_lora_rank"):
        found = Family.MLA
    longest = said.get("max_position_embeddings")
    return Model(str(names[0]), found, longest if isinstance(longest, int) else None)


def _path(servers: Servers) -> Path | None:
    """model.config, else the checkpoint's own where it is a directory here."""
    topology = servers.topology
    said = [topology.model.config, topology.model.path] if topology is not None else []
    said += [side.flags.text("model-path") for side in servers.sides]
    for each in filter(None, said):
        path = Path(each)
        path = path / "config.json" if path.is_dir() else path
        if path.is_file():
            return path
    return None
