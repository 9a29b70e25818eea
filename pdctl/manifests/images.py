"""Container images by name."""

from __future__ import annotations

import re

PINNED = re.compile(r"@sha256:[0-9a-f]+$|:[\w][\w.-]{0,127}$")


def pinned(image: str) -> bool:
    """Whether the name says which image it is: a tag other than latest, or a digest."""
    return bool(PINNED.search(image)) and not image.endswith(":latest")
