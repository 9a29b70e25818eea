"""`python -m tests.snapshots`: write what every verb prints now as what it shall print. Review the diff."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.snapshots.cases import CASES
from tests.snapshots.said import FOLDER, outputs

FOLDER.mkdir(exist_ok=True)
with tempfile.TemporaryDirectory(prefix="pdctl-snapshots-") as home:
    texts = outputs(CASES, Path(home))
names = {f"{case.name}.txt" for case in CASES}
for stale in FOLDER.glob("*.txt"):
    if stale.name not in names:
        stale.unlink()
for case, text in zip(CASES, texts, strict=True):
    path = FOLDER / f"{case.name}.txt"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8", newline="")
        print(path.relative_to(FOLDER.parent))
