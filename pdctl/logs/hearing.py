"""A dialect that remembers the lines it was asked about without a speaker, so that no line is read twice for nothing.

The first look at a log, which tells who speaks, reads the lines that start and end it; they are wanted again at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.engines.adapters import speaks
from pdctl.engines.speech import Said, Speech

if TYPE_CHECKING:
    from pdctl.engines.row import Speaker

MOST = 8192  # lines


class Hearing(Speech):
    def __init__(self, speech: Speech) -> None:
        vars(self).update(vars(speech))  # its tables, which take longer to make than most questions to answer
        self._heard: dict[bytes, Said | None] = {}

    def match(self, raw: bytes, speakers: frozenset[Speaker] | None = None) -> Said | None:
        """As Speech.match: the row that wins among all wins among those of a speaker whose row it is."""
        if raw in self._heard:
            said = self._heard[raw]
            if said is None or speakers is None or _says(speakers, said.row.speaker):
                return said
        found = super().match(raw, speakers)
        if speakers is None and len(self._heard) < MOST:
            self._heard[raw] = found
        return found


def _says(speakers: frozenset[Speaker], speaker: Speaker) -> bool:
    return speaker in speakers or any(speaks(one, speaker) for one in speakers)
