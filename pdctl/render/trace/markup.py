"""Text for an HTML page."""

from __future__ import annotations

import html

from pdctl.render.trace.lanes import ORDER
from pdctl.render.visible import visible


def safe(text: str) -> str:
    """As text and as the value of a quoted attribute; control and bidirectional characters are shown as escapes."""
    return html.escape(visible(text), quote=True)


def role_class(role: str) -> str:
    """The colour of a role; a role nobody knows has none."""
    return f"role-{role if role in ORDER else ''}"
