"""The house's dependency rule (docs/architecture.md), read from every import statement of the package."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cases import for_each
from tests.project.source_files import PACKAGE, package

# A room may import the rooms listed for it, itself, and the ground floor (GROUND: the modules directly in pdctl/).
ALLOWED = {
    "cli": {
        "render", "launch", "doctor", "trace", "imports", "switch", "manifests", "fleet", "logs", "catalogue",
        "topology", "layout", "engines", "policy", "simulation", "autoscale",
    },
    "render": {
        "launch", "doctor", "trace", "imports", "switch", "manifests", "fleet", "logs", "catalogue", "topology",
        "layout", "engines", "policy", "simulation", "replica", "autoscale",
    },
    "autoscale": {"fleet", "policy", "replica", "engines"},
    "launch": {"manifests", "fleet", "topology", "layout", "engines"},
    "doctor": {"manifests", "fleet", "logs", "catalogue", "topology", "layout", "engines"},
    "imports": {"manifests", "topology", "layout", "engines"},
    "switch": {"fleet", "topology", "layout", "engines"},
    "trace": {"logs", "catalogue", "topology", "layout", "engines"},
    "logs": {"catalogue", "engines"},
    "fleet": {"topology", "layout", "engines"},
    "manifests": {"topology", "layout", "engines"},
    "catalogue": set(),
    "simulation": {"policy", "replica", "fleet", "topology", "layout", "engines"},
    "policy": {"replica"},
    "replica": set(),
    "layout": {"topology", "engines"},
    "topology": {"engines"},
    "engines": set(),
    "router": {"replica", "layout", "engines"},
    "engine": {"replica", "layout", "engines"},
    "checkpoints": {"engine"},
}  # fmt: skip
GROUND = {
    "errors", "lifeline", "deployment_secret", "http_auth", "json_records", "large_json", "log_lines", "loopback",
    "name_lookup", "open_files", "package_data", "program", "quick_definitions", "shell_quoting", "suggestions",
    "thread_death", "units", "user_files", "__init__",
}  # fmt: skip
HEAVY = {
    "torch",
    "nixl",
    "nixl_cu12",
    "nixl_cu13",
    "fastapi",
    "uvicorn",
    "pydantic",
    "zmq",
    "msgspec",
    "numpy",
    "transformers",
}


def rooms() -> list[str]:
    return sorted({path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE})


def modules(room: str) -> list[Path]:
    return sorted((PACKAGE / room).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Full dotted names of everything `path` imports, wherever in the file, type-checking blocks included."""
    names: set[str] = set()
    for one in package()[path].imports:
        assert one.level == 0, f"{path}: relative import"
        names.add(one.module)
        if one.module == "pdctl" and one.name:
            names.add(f"pdctl.{one.name}")
    return names


@for_each("room", rooms())
def test_every_arrow_points_down(room: str) -> None:
    upward: dict[str, list[str]] = {}
    for path in modules(room):
        targets = {name.split(".")[1] for name in imports(path) if name.startswith("pdctl.")} - {room}
        if wrong := targets - GROUND - {"__version__"} - ALLOWED[room]:
            upward[str(path.relative_to(PACKAGE))] = sorted(wrong)
    assert not upward, f"{room} may not import these rooms: {upward}"


@for_each("room", sorted(set(rooms()) - {"engine", "router", "checkpoints"}))
def test_only_engine_and_router_name_the_heavy_libraries(room: str) -> None:
    found = {str(path.relative_to(PACKAGE)): heavy for path in modules(room) if (heavy := _packages(path) & HEAVY)}
    assert not found, f"{room} is to load without {found}"


def _packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def test_torch_stays_in_the_rank_process() -> None:
    """The engine's HTTP process answers without torch: only what a rank runs may import it at module level."""
    ranks_only = ("scheduler", "model", "kvcache", "transfer", "prefill", "decode", "kv_link")
    for path in (PACKAGE / "engine").rglob("*.py"):
        parts = path.relative_to(PACKAGE / "engine").parts
        if parts[0] not in ranks_only:
            assert "torch" not in _packages(path), path


def test_the_page_names_every_module_of_the_ground_floor_and_every_room() -> None:
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    ground = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert ground == GROUND - {"__init__"}
    assert {name for name in ground if f"| `{name}.py`" not in page and f"`{name}.py` |" not in page} == set()
    assert {room for room in rooms() if not re.search(rf"\b{room}/", page)} == set()


def test_every_file_the_page_names_is_there() -> None:
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)[` ]", page)
    assert len(named) > 40
    assert [name for name in named if not ((PACKAGE / name).exists() or (PACKAGE.parent / name).exists())] == []
