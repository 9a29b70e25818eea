"""Values of others in commands that users paste into a shell."""

from __future__ import annotations

import re

# A word that is not wholly of these characters is quoted in a command. Spaces may stand between them, in lists of
# names, but not before what a program would read as an option.
_PLAIN = r"(?:[\w@%+=:,./\[\]{}~^-]| (?!-))*"


def pasteable(value: object, quote: str = "") -> str:
    """`value` as it stands in a command that users paste into a shell, inside `quote` where one is open there."""
    text = " ".join(str(value).splitlines())  # also in a comment
    if quote == "'":
        return text.replace("'", "'\\''")
    if quote:
        return re.sub(r'[\\"$`]', r"\\\g<0>", text)
    return text if re.fullmatch(_PLAIN, text) else "'" + text.replace("'", "'\\''") + "'"
