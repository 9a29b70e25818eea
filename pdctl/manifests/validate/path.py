"""Places inside an object, as people and API servers write them."""

from __future__ import annotations

import re

Path = tuple[str | int, ...]

PLAIN = re.compile(r"[A-Za-z_$][\w$-]*")


def spelt(path: Path) -> str:
    """`spec.roles[0].name`; a key with dots or slashes in brackets: `metadata.labels["a.b/c"]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif PLAIN.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f'["{step}"]'
    return text or "(the object)"
