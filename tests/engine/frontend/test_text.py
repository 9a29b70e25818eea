"""Tokens to text and back: nothing here needs a process."""

from __future__ import annotations

import json
import random
import time
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteFallback, Fuse, Replace, Sequence
from tokenizers.models import BPE

from pdctl.engine.frontend.request_bodies import HttpRefusal
from pdctl.engine.frontend.tokenizer import ChatTemplate, CheckpointTexts, Detokenizer, StopStrings, Tokenizer
from pdctl.errors import PdctlError
from pdctl.package_data import location
from tests.cases import for_each
from tests.engine.frontend import checkpoint
from tests.engine.frontend.byte_tokens import ids_of


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(checkpoint.tokenizer(), checkpoint.VOCAB)


@for_each("seed", range(20))
def test_any_tokens_in_any_portions_give_the_text_of_all_at_once(tokenizer: Tokenizer, seed: int) -> None:
    """Invalid bytes, cut characters and special tokens included."""
    draw = random.Random(seed)
    alphabet = [*ids_of("aé€🙂 "), *range(3), *(draw.randrange(259) for _ in range(5))]
    ids = [draw.choice(alphabet) for _ in range(60)]
    growing = Detokenizer(tokenizer, skip_special=True)
    shown = ""
    at = 0
    while at < len(ids):
        step = draw.randint(1, 4)
        growing.push(ids[at : at + step])
        at += step
        assert growing.text.startswith(shown)
        shown = growing.text
    growing.flush()
    assert growing.text == tokenizer.decode(ids)


def test_bytes_that_are_no_text_end_no_answer() -> None:
    """Of a byte-fallback tokenizer (Llama 2); `tokenizers.DecodeStream` raises there for good."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁a", "b"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    backend = Backend(BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    backend.decoder = Sequence([Replace("▁", " "), ByteFallback(), Fuse()])
    tokenizer = Tokenizer(backend, len(vocabulary))
    growing = Detokenizer(tokenizer, skip_special=True)
    for piece in ("<0x00>", "<0x80>", "▁a", "<0xC3>", "<0xA9>", "b"):
        growing.push([vocabulary[piece]])
    growing.flush()
    assert growing.text == "\0� aéb"


@for_each("name", ["tiny", "tiny-moe"])
def test_the_shipped_checkpoints_stream_what_they_decode(name: str) -> None:
    """Any of their tokens, in any portions: cut characters, invalid bytes, emoji of several code points."""
    loaded = CheckpointTexts.load(location("checkpoints") / name).tokenizer
    words = loaded.encode("aé€🙂 👩‍👩‍👧 naïve 日本語 the é", special=False)
    for seed in range(100):
        draw = random.Random(seed)
        likely = [*words, *(draw.randrange(loaded.vocab_size) for _ in range(6)), *range(5)]
        ids = [draw.choice(likely) if seed % 2 else draw.randrange(loaded.vocab_size) for _ in range(60)]
        growing, at = Detokenizer(loaded, skip_special=True), 0
        while at < len(ids):
            step = draw.randint(1, 4)
            growing.push(ids[at : at + step])
            at += step
        growing.flush()
        assert growing.text == loaded.decode(ids), f"seed {seed}"


def test_a_character_appears_when_its_last_byte_has_come(tokenizer: Tokenizer) -> None:
    growing = Detokenizer(tokenizer, skip_special=True)
    seen = []
    for token in ids_of("é🙂"):
        growing.push([token])
        seen.append(growing.text)
    assert seen == ["", "é", "é", "é", "é", "é🙂"]


@pytest.mark.parametrize(
    ("stops", "text", "hit"),
    [
        (("b",), "abc", (1, "b")),
        (("cd", "b"), "abcd", (1, "b")),
        (("x",), "abc", None),
        (("aaab",), "aaaaab", (2, "aaab")),
    ],
)
def test_stop_strings_are_found_however_the_text_arrives(stops: tuple[str, ...], text: str, hit: object) -> None:
    assert StopStrings(stops).find(text) == hit
    search = StopStrings(stops)
    found = [answer for end in range(1, len(text) + 1) if (answer := search.find(text[:end]))]
    assert (found[0] if found else None) == hit


def test_what_may_become_a_stop_string_is_held_back() -> None:
    stops = StopStrings(("</end>", "stop"))
    assert [stops.held(text) for text in ("a<", "a</en", "sto", "a", "", "<<", "</end")] == [1, 4, 3, 0, 0, 1, 5]


def test_token_bytes(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_bytes(token) for token in ids_of("é")] == [b"\xc3", b"\xa9"]
    assert tokenizer.token_bytes(1) == b"<|end|>"
    assert tokenizer.token_bytes(299) == b""


def test_ids_beyond_the_tokenizer_but_within_the_model_are_words(tokenizer: Tokenizer) -> None:
    tokenizer.check_ids([0, 299])
    with pytest.raises(HttpRefusal, match=r"contains 300, which is not in the vocabulary: valid range is \[0, 300\)"):
        tokenizer.check_ids([0, 300])


def test_a_template_sees_special_tokens_tools_and_its_own_variables() -> None:
    source = (
        "{{ bos_token }}{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
        "{% for m in messages %}{% if loop.index0 > 1 %}{% break %}{% endif %}{{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}>{% endif %}{{ mood }}{{ strftime_now('%Y')[:2] }}"
    )
    template = ChatTemplate(source, {"bos_token": "<s>"})
    messages = [{"role": "user", "content": text} for text in "abc"]
    text = template.render(messages, {"add_generation_prompt": True, "tools": [{"name": "<x>"}], "mood": "!"})
    assert text == '<s>{"name": "<x>"}ab>!20'


@pytest.mark.parametrize("zone", ["UTC-25", "UTC+24", ":/nonexistent", "NoSuch/Zone"])
def test_a_template_tells_the_time_in_a_zone_that_cannot_be(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        text = ChatTemplate("{{ strftime_now('%Y-%m-%d') }}", {}).render([], {})
    finally:
        monkeypatch.undo()
        time.tzset()
    assert abs(date.fromisoformat(text) - datetime.now(timezone.utc).date()) <= timedelta(days=3)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        ("{% if %}", "Expected an expression"),
    ],
)
def test_a_template_that_objects_is_the_clients_error(source: str, said: str) -> None:
    with pytest.raises(HttpRefusal, match="chat template of this model does not accept these messages") as caught:
        ChatTemplate(source, {}).render([{"role": "user", "content": "a"}], {})
    assert said in caught.value.message
    assert caught.value.status == 400


def test_where_a_template_is_found(tmp_path: Path) -> None:
    def rendered() -> str | None:
        template = ChatTemplate.load(tmp_path)
        return template and template.render([], {})

    assert rendered() is None
    config = tmp_path / "tokenizer_config.json"
    config.write_text(
        json.dumps({"chat_template": [{"name": "tool", "template": "T"}, {"name": "default", "template": "D"}]})
    )
    assert rendered() == "D"
    config.write_text(json.dumps({"chat_template": "C"}))
    assert rendered() == "C"
    (tmp_path / "chat_template.jinja").write_text("J")
    assert rendered() == "J"


def test_a_checkpoint_is_read_without_its_weights(tmp_path: Path) -> None:
    loaded = CheckpointTexts.load(checkpoint.write(tmp_path))
    assert (loaded.model_type, loaded.tokenizer.vocab_size) == ("llama", 300)
    assert (loaded.defaults.temperature, loaded.defaults.top_k, loaded.defaults.top_p) == (0.25, 7, 1.0)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(PdctlError, match=r"config\.json: not a JSON object"):
        CheckpointTexts.load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(PdctlError, match=r"config\.json: "):
        CheckpointTexts.load(tmp_path)
