"""Profiles: those that ship, and what is said of a file that is none."""

from __future__ import annotations

import dataclasses
import random
from contextlib import suppress
from pathlib import Path

import pytest

from pdctl.errors import TopologyError, UsageError
from pdctl.json_records import figures
from pdctl.layout import cost_profile
from pdctl.layout.cost_profile import PROFILES, CostProfile, read_profile
from tests.cases import for_each

FOLDER = Path(cost_profile.__file__).parent / "profiles"
SHORTEST = {
    "prefill_step_s": "0", "prefill_token_s": "1e-4", "decode_step_s": "0.01", "decode_room_s": "0",
    "layers": "32", "kv_bytes_per_token": "131_072", "weight_bytes": "16_000_000_000", "kv_blocks": "1000",
    "nic_bytes_per_s": "12.5e9", "disk_bytes_per_s": "5e9", "host_bytes_per_s": "2e10",
}  # fmt: skip


def written(place: Path, **changed: str | None) -> str:
    lines = {**SHORTEST, **changed}
    file = place / "mine.yaml"
    file.write_text("".join(f"{name}: {text}\n" for name, text in lines.items() if text is not None))
    return str(file)


def test_every_profile_that_ships_is_known_by_its_name_and_read() -> None:
    assert sorted(file.stem for file in FOLDER.iterdir()) == sorted(PROFILES)
    for name in PROFILES:
        assert read_profile(name) == read_profile(str(FOLDER / f"{name}.yaml"))


def test_what_a_gpu_of_the_8b_class_does_is_what_its_sources_say() -> None:
    profile = read_profile("gpu-8b")
    assert profile.kv_blocks * profile.block_tokens * profile.kv_bytes_per_token < 80e9 - profile.weight_bytes
    tokens = 1024
    step = profile.prefill_step_s + tokens * profile.prefill_token_s + tokens**2 * profile.prefill_square_s
    assert 12_000 < tokens / step < 15_000
    assert 60_000 < profile.nic_bytes_per_s / profile.kv_bytes_per_token < 96_000


def test_figures_left_out_have_their_defaults(tmp_path: Path) -> None:
    profile = read_profile(written(tmp_path))
    assert profile.kv_bytes_per_token == 131_072
    assert profile.nic_bytes_per_s == 12.5e9
    assert profile.prefill_batch_tokens == 8192
    assert profile.nvlink_bytes_per_s == 0


WRONG: list[tuple[dict[str, str | None], str]] = [
    ({"layers": None}, "`layers` is missing"),
    ({"layers": "0"}, "`layers` is 0, not a whole number from 1 to 10,000"),
    ({"layers": "3.5"}, "`layers` is 3.5, not a whole number from 1 to 10,000"),
    ({"layers": '"32"'}, "`layers` is the text '32', not a whole number from 1 to 10,000"),
    ({"layers": ""}, "`layers` is null, not a whole number from 1 to 10,000"),
    ({"layers": "~"}, "`layers` is null, not a whole number from 1 to 10,000"),
    ({"layers": "[1, 2]"}, "`layers` is a list of 2, not a whole number from 1 to 10,000"),
    ({"layers": "{a: 1}"}, "`layers` is an object, not a whole number from 1 to 10,000"),
    ({"decode_step_s": "0"}, "`decode_step_s` is 0, not a number from 0.000001 to 1,000,000,000,000,000"),
    ({"decode_step_s": "-1"}, "`decode_step_s` is -1, not a number from 0.000001 to 1,000,000,000,000,000"),
    ({"decode_step_s": "nan"}, "`decode_step_s` is NaN, not a number from 0.000001 to 1,000,000,000,000,000"),
    ({"decode_step_s": "1e999"}, "is a number above 1.79e308, not a number from"),
    ({"nic_bytes_per_s": "25 GB/s"}, "`nic_bytes_per_s` is the text '25 GB/s', not a number from"),
    ({"decode_steps": "1"}, "there is no member `decode_steps`"),
    ({"prefill_token_s": "0"}, "a pass of 8,192 tokens takes less than a nanosecond"),
    ({"prefill_token_s": "1e-20", "prefill_square_s": "1e-19"}, "a pass of 8,192 tokens takes less than a nanosecond"),
]


@for_each("changed, words", WRONG, ids=str)
def test_a_wrong_figure_is_named_with_what_it_takes(
    changed: dict[str, str | None], words: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = written(tmp_path_factory.mktemp("profile"), **changed)
    with pytest.raises(UsageError) as caught:
        read_profile(file)
    assert str(caught.value).startswith(file)
    assert words in str(caught.value)
    assert caught.value.fix


def test_a_file_that_is_no_map_says_so(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    for text, words in (("", "is empty"), ("- 1\n", "is a list"), ("7\n", "is a single value")):
        file.write_text(text)
        with pytest.raises(UsageError, match=words):
            read_profile(str(file))


BROKEN = ["a: 1\n---\nb: 2\n", "a: " + "[" * 40 + "]" * 40, "a: [" + "1," * 21_000 + "]", "a: 1\n" * 200_000, "\0"]


@for_each("text", BROKEN, ids=lambda text: repr(text[:9]))
def test_a_profile_that_cannot_be_read_is_called_no_topology(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("profile") / "2p1d.yaml"
    file.write_text(text)
    for name in (file, file.parent, file.parent / "no" / "2p1d.yaml"):
        with pytest.raises(TopologyError) as caught:
            read_profile(str(name))
        assert "topology" not in f"{caught.value} {caught.value.fix} {caught.value.diagnostics}"


@for_each("text", ["layers: 1\nlayers: 2\n", "a: [1\n", "a: b: c\n", "\x07"], ids=repr)
def test_broken_yaml_is_told_with_its_place(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("profile") / "mine.yaml"
    file.write_text(text)
    with pytest.raises(TopologyError) as caught:
        read_profile(str(file))
    assert str(file) in str(caught.value)
    assert caught.value.diagnostics


def test_an_unknown_name_gets_the_near_one_and_a_missing_file_is_missing() -> None:
    with pytest.raises(UsageError, match="there is no profile 'gpu8b'") as caught:
        read_profile("gpu8b")
    assert "gpu-8b" in caught.value.fix
    with pytest.raises(TopologyError):
        read_profile("no/such/file.yaml")


def test_whatever_a_file_says_it_is_read_or_refused(tmp_path: Path) -> None:
    dice = random.Random("profiles")
    words = ("", "1", "0", "-3", "1e-9", "1e9", "x", "[]", "{}", "null", "1_0", "0x1F", "!!int 5", "&a 3", "٣")
    read = 0
    for _ in range(300):
        changed = {name: dice.choice(words) for name in dice.sample(sorted(figures(CostProfile)), 2)}
        with suppress(UsageError, TopologyError):
            assert dataclasses.astuple(read_profile(written(tmp_path, **changed)))
            read += 1
    assert 0 < read < 300
