"""docs/codes.md is what the catalogue says. `PDCTL_UPDATE=1 pytest tests/catalogue/test_page.py` writes it anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pdctl.catalogue import book
from pdctl.render.explain import anchor, markdown

PAGE = Path(__file__).resolve().parents[2] / "docs" / "codes.md"


def test_the_page_is_current() -> None:
    said = markdown(book.ENTRIES)
    if os.environ.get("PDCTL_UPDATE"):
        PAGE.write_text(said, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == said, "write it anew: PDCTL_UPDATE=1 pytest tests/catalogue/test_page.py"


def test_every_link_to_a_code_leads_to_its_heading() -> None:
    text = PAGE.read_text(encoding="utf-8")
    links = set(re.findall(r"\]\(#([\w-]+)\)", text))
    headings = {heading.lower().replace(" ", "-") for heading in re.findall(r"^### (.+)$", text, re.MULTILINE)}
    assert links == headings == {anchor(entry) for entry in book.ENTRIES}
