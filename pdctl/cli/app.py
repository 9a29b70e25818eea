"""The verb table. Only the chosen verb's module is imported, so no verb pays for the imports of another.

A plain command line is read by `parameters`; what it leaves to Typer, by `usage`.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import TYPE_CHECKING

from pdctl.cli.parameters import read_plain
from pdctl.errors import UsageError
from pdctl.quick_definitions import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pdctl.cli.parameters import Command

WITH_OVERLAYS = ("plan", "launch", "render", "doctor", "topology")


class Verb(NamedTuple):
    """`module`: one with `SUBVERBS` (a function each), with `command` (a function) or both, else MODULE:FUNCTION."""

    name: str
    module: str
    help: str


VERBS: tuple[Verb, ...] = (
    Verb("plan", "pdctl.cli.plan", "Say what will run where: ranks, ports, links, memory, commands."),
    Verb("launch", "pdctl.cli.launch", "Start a topology and keep it running."),
    Verb("render", "pdctl.cli.render", "Write a topology as Kubernetes manifests."),
    Verb("doctor", "pdctl.cli.doctor", "Find what would break: in files, at rest, or by real requests."),
    Verb("diagnose", "pdctl.cli.diagnose", "Say from logs alone who died, and what broke which rooms."),
    Verb("trace-room", "pdctl.cli.trace_room", "Tell the story of one room from plain logs, and the cause."),
    Verb("rooms", "pdctl.cli.rooms", "List the rooms in the logs: pair, duration, outcome, cause."),
    Verb("ask", "pdctl.cli.ask", "Send one request to a running deployment, stream the answer."),
    Verb("status", "pdctl.cli.runs:status", "Show the state of a run, instance by instance."),
    Verb("role-switch", "pdctl.cli.role_switch", "Turn a prefill into a decode, or back, while it runs."),
    Verb("autoscale", "pdctl.cli.autoscale", "Say what a scaling policy would do, and why."),
    Verb("simulate", "pdctl.cli.simulate", "Say what scaling policies would do under a trace."),
    Verb("logs", "pdctl.cli.logs", "Show or follow the logs of a run."),
    Verb("down", "pdctl.cli.runs:down", "Stop a run and everything it started."),
    Verb("ls", "pdctl.cli.runs:ls", "List runs."),
    Verb("explain", "pdctl.cli.explain", "Explain a finding's code."),
    Verb("dialect", "pdctl.cli.dialect", "Show what an engine writes; check which dialect a log speaks."),
    Verb("import", "pdctl.cli.import_", "Turn scripts, compose files or manifests into a topology."),
    Verb("topology", "pdctl.cli.topology", "Check a topology file, show it resolved, export its schema."),
    Verb("self", "pdctl.cli.self_", "Say what this pdctl is, and what it can do here."),
    Verb("completion", "pdctl.cli.completion", "Print the shell completion script."),
)


def prepare(words: Sequence[str]) -> Callable[[], object] | None:
    """Import what this command line needs; what is returned runs it and returns its exit code, None for 0.

    None if the line is not plain: `usage.prepare` does the same for any line.
    """
    verb = find_verb(words)
    if verb is None or words[0] != verb.name:
        return None
    commands, name, rest = functions(verb), "", words[1:]
    if rest and ("" not in commands or (rest[0] and rest[0] in commands)):
        name, rest = rest[0], rest[1:]
    values = read_plain(commands[name], rest) if name in commands else None
    return None if values is None else functools.partial(commands[name], **values)


def functions(verb: Verb) -> Mapping[str, Command]:
    """The functions of a verb's sub-verbs by their names, and its own, if it has one, by ""."""
    place, _, name = verb.module.partition(":")
    module = importlib.import_module(place)
    commands: Sequence[Command] = getattr(module, "SUBVERBS", ())
    own: Command | None = getattr(module, name or "command", None)
    found = {} if own is None else {"": own}
    return found | {command.__name__.replace("_", "-"): command for command in commands}


def find_verb(argv: Sequence[str]) -> Verb | None:
    """The verb that the command line names, None if it names none. Raise UsageError for an unknown one."""
    chosen = next((word for word in argv if not word.startswith("-")), None)
    if chosen is None:
        return None
    known = {verb.name: verb for verb in VERBS}
    if chosen in known:
        return known[chosen]
    import shlex  # imported late: needed only for an error

    from pdctl.suggestions import similar

    verb_at = next((at for at, word in enumerate(argv) if word in known), None)
    if verb_at is not None and argv[0].startswith("-"):  # `-o json status`
        words = [argv[verb_at], *argv[:verb_at], *argv[verb_at + 1 :]]
        raise UsageError(f"`{argv[0]}` stands before the verb", f"pdctl {shlex.join(words)}")

    near = similar(chosen, known)
    hint = f"did you mean `pdctl {near[0]}`?" if near else "`pdctl --help` lists them."
    raise UsageError(f"no verb `{chosen}`", hint)


def respelt(argv: Sequence[str]) -> list[str]:
    """`argv` with the old `-f FILE` for an overlay replaced by `-F`, with a note, for verbs without --follow."""
    verb = next((word for word in argv if not word.startswith("-")), None)
    words = list(argv)
    if verb not in WITH_OVERLAYS or not any(_is_old_overlay(word) for word in words):
        return words
    sys.stderr.write("note: -f is --follow of logs and trace-room; an overlay is -F FILE or --file FILE\n")
    return [f"-F{word[2:]}" if _is_old_overlay(word) else word for word in words]


def _is_old_overlay(word: str) -> bool:
    return word.startswith("-f")
