"""`pdctl ask`: send one request to the running deployment and stream its answer."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Annotated

from pdctl import user_files
from pdctl.cli import log_sources
from pdctl.cli.exits import reraise
from pdctl.cli.parameters import argument, option
from pdctl.errors import NotProbedError, PdctlError, UsageError
from pdctl.fleet import completion_stream
from pdctl.http_auth import key_of
from pdctl.launch import credentials, launched, run_health
from pdctl.launch.run_choice import find_run
from pdctl.launch.run_directory import RunDir, home
from pdctl.render import answer, term
from pdctl.units import flag_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdctl.fleet.completion_stream import Part
    from pdctl.render.answer import AnswerSource

SILENCE = 5.0  # seconds without a byte after which it is said what is waited for
LARGEST_PROMPT = 32 << 20  # bytes; what the engines take as a body (docs/security.md)
LOOK = 1.0  # seconds between two looks at the run while nothing comes


class _Waiting:
    """Says after SILENCE seconds what is waited for, and ends the wait if the run's own process cannot answer."""

    def __init__(self, url: str, look: str, directory: RunDir | None) -> None:
        self._url, self._look, self._directory = url, look, directory
        self._began = time.monotonic()
        self._next_look = self._began + LOOK
        self._said = False

    def __call__(self) -> None:
        now = time.monotonic()
        if self._directory is not None and now >= self._next_look:
            self._next_look = now + LOOK
            trouble, fix = run_health.front_trouble(self._directory.look())
            if trouble:
                raise NotProbedError(f"{self._url}: no answer: {trouble}", fix)
        if not self._said and now >= self._began + SILENCE:
            self._said = True
            term.err().write(f"waiting for the first byte from {self._url}; {self._look}")

    def watch(self, parts: Iterator[Part]) -> Iterator[Part]:
        """`parts`; from the first of them on, the first byte is no longer waited for."""
        for part in parts:
            self._said = True
            yield part


def command(
    prompt: Annotated[
        list[str] | None,
        argument(metavar="[PROMPT]...", help="What to ask; `-` or nothing reads it from stdin."),
    ] = None,
    run: Annotated[
        str | None, option("--run", metavar="RUN", help="Name of the run; not needed for a single one.")
    ] = None,
    url: Annotated[
        str | None, option("--url", metavar="URL", help="A router or engine that pdctl did not start.")
    ] = None,
    chat: Annotated[bool, option("--chat/--raw", help="As a chat message, or as bare text to continue.")] = True,
    max_tokens: Annotated[int, option(min=1, metavar="N", help="Tokens to generate at most.")] = 128,
    as_json: Annotated[bool, option("--json", help="One document at the end instead of a stream.")] = False,
    key_env: Annotated[str, option(metavar="VARIABLE", help="Variable that holds the server's API key.")] = "",
    timeout: Annotated[str, option(metavar="TIME", help="How long to wait without a single byte.")] = "10m",
    verbose: Annotated[bool, option("--verbose", "-v", help="Say who served it and how fast.")] = False,
) -> None:
    """Send one request to the running deployment and stream the answer.

    \b
    pdctl ask "Repeat: the red fox"
    echo "The capital of France" | pdctl ask --raw --max-tokens 8
    pdctl ask --url http://127.0.0.1:8000 Hello -v
    """
    text = _of_stdin() if prompt in (None, [], ["-"]) else _of_words(prompt or ())
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UsageError("the prompt is not UTF-8", "type it in a UTF-8 locale (LC_ALL=C.UTF-8), or pipe UTF-8 text in")
    if not text:
        raise UsageError("the prompt is empty", 'pdctl ask "Repeat: the red fox"')
    patience = flag_seconds("--timeout", timeout, positive=True)
    source, key = _source(run, url, key_env)
    look = f"pdctl status {source.run}" if source.run else completion_stream.curl_command(source.url)
    waiting = _Waiting(source.url, look, RunDir.of(home(os.environ), source.run) if source.run else None)
    parts = waiting.watch(
        completion_stream.stream(
            source.url,
            text,
            model=source.model,
            chat=chat,
            max_tokens=max_tokens,
            timeout=patience,
            key=key,
            waiting=waiting,
            look=look,
        )
    )
    try:
        if as_json:
            term.out().write(answer.to_json(source, parts))
        else:
            answer.show(parts, term.out(follows=True), term.err() if verbose else None)
    except PdctlError as error:
        raise completion_stream.with_role(error, source.url) if url is not None else error from None
    except KeyboardInterrupt:
        term.out().write()
        reraise(signal.SIGINT)


def _of_stdin() -> str:
    """Standard input decoded as UTF-8, whatever the locale. Raise UsageError if it is more than any server takes."""
    text = user_files.standard_input().read(LARGEST_PROMPT + 1)
    if len(text) > LARGEST_PROMPT:
        raise UsageError(f"standard input has more than {LARGEST_PROMPT >> 20} MiB", "give a shorter prompt")
    return text.decode("utf-8", "surrogateescape")


def _of_words(words: Sequence[str]) -> str:
    """The words as one sentence, which needs no quotes; their bytes decoded as UTF-8, whatever the locale."""
    return os.fsencode(" ".join(words)).decode("utf-8", "surrogateescape")


def _source(name: str | None, url: str | None, key_env: str) -> tuple[AnswerSource, str]:
    key = key_of(key_env)
    if url is not None:
        if name is not None:
            raise UsageError("--run and --url name two places", "give one of them")
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"--url {url}: not an address", "write it as http://127.0.0.1:8000")
        server, path, _ = (url + "/").partition("/v1/")
        if path:
            raise UsageError(
                f"--url {url}: the path of a request is too much", f"give the server alone: --url {server}"
            )
        base = url.rstrip("/")
        return answer.AnswerSource("", base, completion_stream.first_model(base, key=key)), key
    root = home(os.environ)
    run = find_run(root, name)
    if name is None:
        log_sources.tell_choice(launched.LaunchedRun(root, run))
    run_health.refuse_to_ask(run, ((run.deployment.router or run.deployment.roles[0]).name,))
    source = answer.AnswerSource(run.name, run.deployment.url, run.deployment.served_name)
    return source, key or credentials.api_key(run.deployment)
