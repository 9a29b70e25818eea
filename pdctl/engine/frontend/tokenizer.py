"""What the HTTP process reads from a checkpoint: tokenizer, chat template, sampling defaults. No torch here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from tokenizers import Tokenizer as Backend

from pdctl.engine.frontend.request_bodies import HttpRefusal
from pdctl.errors import PdctlError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from jinja2 import Template

UNFINISHED = "\ufffd"  # what the tokenizer returns for a character whose last bytes are missing


@dataclass(frozen=True, slots=True)
class CheckpointTexts:
    model_type: str
    architectures: tuple[str, ...]
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    defaults: SamplingDefaults

    @classmethod
    def load(cls, directory: Path) -> CheckpointTexts:
        """Read the checkpoint's files. Raise PdctlError naming the one that is missing or malformed."""
        config = _read(directory / "config.json")
        generation = _read(directory / "generation_config.json", optional=True)
        known = SamplingDefaults.__dataclass_fields__
        defaults = {name: value for name, value in generation.items() if name in known and value is not None}
        try:
            template = ChatTemplate.load(directory)
        except (ValueError, KeyError) as error:
            raise PdctlError(f"{directory}/tokenizer_config.json: {error}", "the file is not valid JSON") from None
        return cls(
            model_type=str(config.get("model_type", "")),
            architectures=tuple(config.get("architectures") or ()),
            tokenizer=Tokenizer.load(directory, int(config.get("vocab_size") or 0)),
            chat_template=template,
            defaults=SamplingDefaults(**defaults),
        )


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """generation_config.json: values for fields that a chat request leaves out (sglang: --sampling-defaults model)."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0


def _read(path: Path, optional: bool = False) -> dict[str, Any]:
    if optional and not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PdctlError(f"{path}: {error}", "give --model-path the directory of a Hugging Face checkpoint") from None
    if not isinstance(content, dict):
        raise PdctlError(f"{path}: not a JSON object", "give --model-path the directory of a Hugging Face checkpoint")
    return content


class Tokenizer:
    """Thread-safe: long texts are encoded on another thread."""

    def __init__(self, backend: Backend, vocab_size: int) -> None:
        self._backend = backend
        self._backend.no_padding()
        self._backend.no_truncation()
        # A checkpoint may pad its embedding beyond the tokenizer's vocabulary: those ids are valid input.
        self.vocab_size = max(vocab_size, backend.get_vocab_size())
        self.longest_token = max(map(len, backend.get_vocab()), default=1)
        # A decoder's pickled state is its JSON, which is far smaller than that of the whole tokenizer.
        self._byte_level = backend.decoder is not None and _uses_byte_level(json.loads(backend.decoder.__getstate__()))

    @classmethod
    def load(cls, directory: Path, vocab_size: int) -> Tokenizer:
        """Read tokenizer.json. Raise PdctlError if the checkpoint has no fast tokenizer."""
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise PdctlError(
                f"{directory}: no tokenizer.json",
                "save the tokenizer in the fast format (transformers: save_pretrained)",
            )
        try:
            return cls(Backend.from_file(str(path)), vocab_size)
        # The library raises plain Exception for every malformed file.
        except Exception as error:  # noqa: BLE001
            raise PdctlError(f"{path}: {error}", "the file is not a tokenizer of the `tokenizers` library") from None

    def encode(self, text: str, special: bool = True) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        text: str = self._backend.decode(ids, skip_special_tokens=skip_special)
        return text

    def check_ids(self, ids: Sequence[int]) -> None:
        """Raise HttpRefusal (400) if an id is not in the vocabulary."""
        if ids and not (min(ids) >= 0 and max(ids) < self.vocab_size):
            bad = next(token for token in ids if not 0 <= token < self.vocab_size)
            words = f"input_ids contains {bad}, which is not in the vocabulary: valid range is [0, {self.vocab_size})."
            raise HttpRefusal(400, words)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token: it may be half a character, and text cannot show which half."""
        word = self._backend.id_to_token(token)
        if word is None:
            return b""
        if self._byte_level and all(char in BYTE_OF for char in word):
            return bytes(BYTE_OF[char] for char in word)
        return self.decode([token], skip_special=False).encode()

    def token_text(self, token: int) -> str:
        return self.token_bytes(token).decode(errors="replace")


def _uses_byte_level(decoder: Mapping[str, Any]) -> bool:
    return decoder.get("type") == "ByteLevel" or any(map(_uses_byte_level, decoder.get("decoders", ())))


def _byte_characters() -> dict[str, int]:
    """Return GPT-2's alphabet: printable Latin-1 bytes are written as such, the others as characters from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + index): byte for index, byte in enumerate(rest)}


BYTE_OF = _byte_characters()


class ChatTemplate:
    """Renders messages with the checkpoint's Jinja template, in a sandbox; compiles it on first use."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._source = source
        self._special_tokens = dict(special_tokens)
        self._template: Template | None = None

    @classmethod
    def load(cls, directory: Path) -> ChatTemplate | None:
        """Read chat_template.jinja, or the template in tokenizer_config.json; None if the checkpoint has neither."""
        config_path = directory / "tokenizer_config.json"
        config = json.loads(config_path.read_text(encoding="utf-8")) if config_path.is_file() else {}
        source = config.get("chat_template")
        if isinstance(source, list):  # several named templates
            source = next((entry["template"] for entry in source if entry.get("name") == "default"), None)
        file = directory / "chat_template.jinja"
        if file.is_file():
            source = file.read_text(encoding="utf-8")
        if not source:
            return None
        names = ("bos_token", "eos_token", "unk_token", "pad_token")
        tokens = {name: _content(config[name]) for name in names if config.get(name)}
        return cls(source, tokens)

    def render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """Return the prompt. Raise HttpRefusal (400) in the template's own words if it rejects the messages."""
        from jinja2 import TemplateError

        try:
            if self._template is None:
                self._template = _compile(self._source)
            return self._template.render(**{**self._special_tokens, **variables, "messages": messages})
        # A template can raise these on a client's messages: its own complaint, or an operation on the wrong type.
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise HttpRefusal(400, f"the chat template of this model does not accept these messages: {error}") from None


def _content(token: object) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _compile(source: str) -> Template:
    """Compile as transformers does: with trimmed blocks, loop controls, `tojson` and two functions.

    The time is without a zone, as there: TZ may name one that no date can have (UTC-25).
    """
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(value: object, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)


class Detokenizer:
    """For each new token, decodes a window and not the whole answer; shows whole characters only.

    `tokenizers.DecodeStream` (0.23.3) will not do: with a byte-fallback tokenizer it raises on bytes that are not UTF-8
    ("Invalid prefix encountered" at <0x00> <0x80> ▁a), which a model may sample, and then decodes no further token.

    The tokens before `_done` are in `text`. Those from `_context` on are decoded again with each new token, because a
    tokenizer may join a word to the one before it (leading spaces).
    """

    __slots__ = ("_context", "_done", "_ids", "_skip_special", "_tokenizer", "text")

    def __init__(self, tokenizer: Tokenizer, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._ids: list[int] = []
        self._context = 0
        self._done = 0
        self.text = ""

    def push(self, ids: Sequence[int]) -> None:
        """Add tokens; `text` grows by every character they complete."""
        self._ids.extend(ids)
        fresh = self._fresh()
        if fresh and not fresh.endswith(UNFINISHED):
            self._show(fresh)

    def flush(self) -> None:
        """Decode the rest. No more tokens will come, so an unfinished character is shown as U+FFFD."""
        self._show(self._fresh())

    def _fresh(self) -> str:
        window = self._tokenizer.decode(self._ids[self._context :], self._skip_special)
        known = self._tokenizer.decode(self._ids[self._context : self._done], self._skip_special)
        return window[len(known) :]

    def _show(self, fresh: str) -> None:
        self.text += fresh
        self._context = self._done
        self._done = len(self._ids)


class StopStrings:
    """Finds the first of several strings in a growing text, searching each part of it once."""

    __slots__ = ("_longest", "_searched", "_stops")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._searched = 0

    def find(self, text: str) -> tuple[int, str] | None:
        """Return where the earliest stop string begins and which one it is; None if there is none."""
        start = max(0, self._searched - self._longest + 1)
        self._searched = len(text)
        found = [(at, stop) for stop in self._stops if (at := text.find(stop, start)) >= 0]
        return min(found, key=lambda hit: hit[0]) if found else None

    def held(self, text: str) -> int:
        """Return how many characters at the end might begin a stop string and must not be sent yet."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
