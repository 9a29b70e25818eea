"""What a simulation is driven by: requests with their arrival, prompt and answer, from a file or made from a seed."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, overload

from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_TOKENS = 10**7  # of a prompt or an answer


class TraceRequest(NamedTuple):
    """One request. `arrival_ns` counts from the start of the trace.

    `output_tokens` is at least 1, the first token included. `prefix_blocks` names the blocks of its prompt in their
    order: what two prompts have in common at their begin may be found in a prefix cache. Empty where a trace does not
    say it.
    """

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    prefix_blocks: tuple[int, ...] = ()


class RequestTrace(NamedTuple):
    """`requests` by arrival. `prefix_block_tokens`: tokens of one prefix block, 0 if the trace has none.

    `skipped` counts the rows of a file that could not be read, where these are left out.
    """

    name: str
    requests: Sequence[TraceRequest]
    prefix_block_tokens: int = 0
    skipped: int = 0


class RequestTable(Sequence[TraceRequest]):
    """Many requests, kept in columns: 24 bytes of each and 8 of each prefix block, and no object to be collected.

    It is filled by `append` and then handed out as the requests of a trace, which do not change.
    """

    __slots__ = ("_block_ends", "_blocks", "arrival_ns", "output_tokens", "prompt_tokens")

    def __init__(self) -> None:
        self.arrival_ns = array("q")
        self.prompt_tokens = array("q")
        self.output_tokens = array("q")
        self._blocks = array("Q")
        self._block_ends = array("q")  # as long as the columns, or empty: no request has blocks yet

    def append(self, arrival_ns: int, prompt_tokens: int, output_tokens: int, blocks: Sequence[int] = ()) -> None:
        if blocks:
            if not self._block_ends:
                self._block_ends.extend(repeat(0, len(self)))
            self._blocks.extend(blocks)
        if self._blocks:
            self._block_ends.append(len(self._blocks))
        self.arrival_ns.append(arrival_ns)
        self.prompt_tokens.append(prompt_tokens)
        self.output_tokens.append(output_tokens)

    @property
    def block_count(self) -> int:
        return len(self._blocks)

    def sorted_from_zero(self) -> RequestTable:
        """The same requests by arrival, the first at 0; those that arrive together keep their order."""
        times, first = self.arrival_ns, min(self.arrival_ns, default=0)
        if first == 0 and all(map(int.__le__, times, times[1:])):
            return self
        made = RequestTable()
        for at in sorted(range(len(self)), key=times.__getitem__):
            one = self[at]
            made.append(one.arrival_ns - first, one.prompt_tokens, one.output_tokens, one.prefix_blocks)
        return made

    def __len__(self) -> int:
        return len(self.arrival_ns)

    @overload
    def __getitem__(self, at: int) -> TraceRequest: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[TraceRequest]: ...
    def __getitem__(self, at: int | slice) -> TraceRequest | Sequence[TraceRequest]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        at %= len(self)
        return TraceRequest(self.arrival_ns[at], self.prompt_tokens[at], self.output_tokens[at], self._prefix(at))

    def __iter__(self) -> Iterator[TraceRequest]:
        prefixes = map(self._prefix, range(len(self))) if self._blocks else repeat(())
        return map(TraceRequest, self.arrival_ns, self.prompt_tokens, self.output_tokens, prefixes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RequestTable):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment] # it is filled after it is made

    def _prefix(self, at: int) -> tuple[int, ...]:
        if not self._blocks:
            return ()
        return tuple(self._blocks[self._block_ends[at - 1] if at else 0 : self._block_ends[at]])
