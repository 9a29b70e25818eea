"""What a step, a transfer and a load cost on one kind of instance: measured figures, read from a file or shipped.

    a prefill step of n prompts:  a + b·Σ computed tokens + c·Σ (computed tokens × (cached tokens + computed tokens))
    a decode step of n rooms:     d + e·n + f·Σ tokens of their KV cache

The keys of a profile's file are the fields, which say what each means and takes. Shipped ones are in profiles/.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pdctl.errors import TopologyError, UsageError
from pdctl.json_records import JsonPlace, number, read_record, whole
from pdctl.package_data import data
from pdctl.quick_definitions import NamedTuple
from pdctl.suggestions import hint
from pdctl.topology.diagnostic import Diagnostic, ProblemReport
from pdctl.topology.resolve import read_file
from pdctl.topology.yaml_parser import SUFFIXES, List, Map, Node, Scalar, YamlText, parse, shape

PROFILES = ("gpu-8b", "laptop")  # by their names in profiles/
ATTO = 10**18  # attoseconds of a second
ATTO_PER_NS = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class CostProfile:
    """One kind of instance. Times are seconds, sizes bytes, rates bytes per second and direction of one replica."""

    prefill_step_s: float = number("a: fixed cost of a prefill step", above=False)
    prefill_token_s: float = number("b: each prompt token computed", above=False)
    prefill_square_s: float = number("c: each pair of a computed token and a token it attends to", 0.0, above=False)
    decode_step_s: float = number("d: fixed cost of a decode step")
    decode_room_s: float = number("e: each room of a decode step", above=False)
    decode_token_s: float = number("f: each token of KV cache of the rooms of a step", 0.0, above=False)
    layers: int = whole("layers of the model", least=1, most=10_000)
    kv_bytes_per_token: int = whole("KV cache of one token on one replica, all layers", least=1)
    weight_bytes: int = whole("weights of one replica", least=1)
    block_tokens: int = whole("tokens of one KV block", 64, 1, 10**6)
    kv_blocks: int = whole("KV blocks of one replica", least=1)
    prefill_batch_tokens: int = whole("prompt tokens of one prefill step; a longer prompt takes several", 8192, 1)
    prefill_batch_rooms: int = whole("prompts of one prefill step", 64, 1)
    decode_batch_rooms: int = whole("rooms of one decode step", 256, 1)
    gpus: int = whole("GPUs of one replica", 1, 1, 10**5)
    request_s: float = number("each request outside of steps: router, tokens, HTTP", 0.0, above=False)
    handover_s: float = number("each hand-over of KV cache, beside the bytes", 0.0, above=False)
    nic_bytes_per_s: float = number("network, each direction of a replica")
    nvlink_bytes_per_s: float = number("between replicas of one machine; 0: over the network", 0.0, above=False)
    disk_bytes_per_s: float = number("weights from a machine's disk, shared by its replicas that load at once")
    host_bytes_per_s: float = number("weights from host memory to the device")
    start_s: float = number("from the order of a replica until its weights begin to arrive", 0.0, above=False)
    flip_s: float = number("a change of role, after the replica is empty", 0.0, above=False)


class PrefillCosts(NamedTuple):
    """Of one pass, in attoseconds: the fixed cost, that of each token, of each pair of a token and one it attends to.

    `batch_tokens` and `batch_rooms` are the most a pass takes.
    """

    step: int
    token: int
    square: int
    batch_tokens: int
    batch_rooms: int
    block_tokens: int

    @staticmethod
    def of(profile: CostProfile) -> PrefillCosts:
        return PrefillCosts(
            attoseconds(profile.prefill_step_s),
            attoseconds(profile.prefill_token_s),
            attoseconds(profile.prefill_square_s),
            profile.prefill_batch_tokens,
            profile.prefill_batch_rooms,
            profile.block_tokens,
        )

    def of_passes(self, passes: int, tokens: int, pairs: int) -> int:
        """`pairs`: of each prompt in a pass, the tokens computed × the tokens these attend to."""
        return self.step * passes + self.token * tokens + self.square * pairs


class DecodeCosts(NamedTuple):
    """Of one step, in attoseconds: the fixed cost, that of each room, that of each token of KV cache."""

    step: int
    room: int
    token: int

    @staticmethod
    def of(profile: CostProfile) -> DecodeCosts:
        return DecodeCosts(*map(attoseconds, (profile.decode_step_s, profile.decode_room_s, profile.decode_token_s)))

    def of_step(self, rooms: int, tokens: int) -> int:
        return self.step + self.room * rooms + self.token * tokens


def attoseconds(seconds: float) -> int:
    """Whole numbers make the sum of any number of steps exact."""
    return round(seconds * ATTO)


def read_profile(name: str) -> CostProfile:
    """The profile that ships under a name, or that of a file. Raise UsageError; TopologyError where it is no YAML."""
    report = ProblemReport("profile")
    path = Path(name)
    if name in PROFILES:
        text: YamlText | None = YamlText.of(name, (data("layout/profiles") / f"{name}.yaml").read_text("utf-8"))
    elif path.suffix in SUFFIXES or len(path.parts) > 1 or path.exists():
        text = read_file(path, report)
    else:
        fix = hint(name, PROFILES) or f"known are {', '.join(PROFILES)}; the path of a file works as well"
        raise UsageError(f"there is no profile {name!r}", fix)
    root = parse(text, report) if text is not None else None
    if report:
        raise report.refusal(name)
    if not isinstance(root, Map):
        found = "empty" if root is None or (isinstance(root, Scalar) and root.blank) else shape(root)
        raise UsageError(f"{name} is {found}, not a map of figures", "write each figure as `name: number`")
    return read_costs({key: _value(entry.value) for key, entry in root.entries.items()}, JsonPlace(name))


def read_costs(figures: object, place: JsonPlace) -> CostProfile:
    """The profile of an object of figures. Raise UsageError, also where passes cost nothing."""
    found = read_record(CostProfile, figures, place)
    tokens = found.prefill_batch_tokens
    if PrefillCosts.of(found).of_passes(1, tokens, tokens**2) < ATTO_PER_NS:
        raise UsageError(
            f"{place}: a pass of {tokens:,} tokens takes less than a nanosecond, by `prefill_step_s`, "
            "`prefill_token_s` and `prefill_square_s`",
            "give at least one of them, such as prefill_token_s: 1e-4",
        )
    return found


def profile_problem(name: str) -> str:
    """Why no profile can be read under that name or from that file, with the fix, in one line; empty if it can."""
    try:
        read_profile(name)
    except TopologyError as error:
        told = [each for each in error.diagnostics if isinstance(each, Diagnostic)]
        return f"{name}: {'; '.join(each.message for each in told) or error.message}"
    except UsageError as error:
        return "; ".join(filter(None, (error.message, error.fix)))
    return ""


def _value(node: Node) -> object:
    """A number where the text is one, also as 2e9 and 2_000, which YAML takes for texts."""
    if isinstance(node, List | Map):
        return [_value(one) for one in node.items] if isinstance(node, List) else dict(node.entries)
    if node.blank or node.null:
        return None
    if node.plain:
        with suppress(ValueError):
            return int(node.text)
        with suppress(ValueError):
            return float(node.text)
    return node.text
