"""Log lines with the name of the process in front: fixed width, hue by role, shade by instance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.launch.deployment import Role

if TYPE_CHECKING:
    from pdctl.launch.deployment import Deployment
    from pdctl.launch.relay import Line
    from pdctl.render.term import Term

HUES = {Role.PREFILL: "blue", Role.DECODE: "green", Role.ROUTER: "magenta"}


class Prefix:
    """The width follows from the deployment, so that the column never jumps."""

    def __init__(self, deployment: Deployment, term: Term) -> None:
        self._term = term
        self.width = max(len(spec.name) for spec in deployment.specs)
        self._bar = term.symbol("│", "|")
        self._styles: dict[str, tuple[str, ...]] = {}
        for spec in deployment.specs:
            same = sum(1 for name in self._styles if name.startswith(spec.role.value))
            # Neighbours of one role differ in weight: sixteen base colours hold only one usable shade of each hue.
            self._styles[spec.name] = (HUES[spec.role], "bold") if same % 2 else (HUES[spec.role],)

    def name(self, name: str) -> str:
        """The coloured, padded name."""
        return self._term.style(f"{name:{self.width}}", *self._styles.get(name, ()))

    def style(self, name: str) -> str:
        """The style of the name, in rich's words."""
        return " ".join(self._styles.get(name, ()))

    def line(self, line: Line) -> str:
        return f"{self.name(line.source)} {self._term.style(self._bar, 'dim')} {line.text}"
