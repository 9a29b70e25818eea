"""The verb table. Only the chosen verb's module is imported, so no verb pays for the imports of another."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, NamedTuple, cast

import typer

from pdctl.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

WITH_OVERLAYS = ("plan", "launch", "render", "doctor", "topology")
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
EPILOG = (
    "Exit codes: 0 fine, 1 findings or infeasible, 2 usage or bad topology, 3 a bug of pdctl, 4 could not probe, "
    "5 not found, 8 still starting at the timeout, 130/143 the signal."
)


class Verb(NamedTuple):
    """`module` holds `app` (a Typer with sub-verbs) or `command` (one function), which MODULE:NAME calls otherwise."""

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


def build(argv: Sequence[str]) -> typer.Typer:
    """The Typer application for this command line: the chosen verb in full, or a one-line entry for every verb."""
    app = typer.Typer(
        name="pdctl",
        help="Plan, launch and diagnose prefill/decode disaggregated LLM serving.",
        epilog=EPILOG,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        no_args_is_help=True,
        context_settings=SETTINGS,
    )

    @app.callback()
    def main(
        version: bool = typer.Option(False, "--version", "-V", help="Print the version and leave."),
    ) -> None:
        del version  # answered before Typer is imported (pdctl.__main__)

    chosen = next((word for word in argv if not word.startswith("-")), None)
    known = {verb.name: verb for verb in VERBS}
    if chosen is None:
        for verb in VERBS:
            app.command(verb.name, help=verb.help, short_help=verb.help)(_stub)
        return app
    if chosen not in known:
        import shlex  # imported late: needed only for an error

        from pdctl.suggestions import similar

        verb_at = next((at for at, word in enumerate(argv) if word in known), None)
        if verb_at is not None and argv[0].startswith("-"):  # `-o json status`
            words = [argv[verb_at], *argv[:verb_at], *argv[verb_at + 1 :]]
            raise UsageError(f"`{argv[0]}` stands before the verb", f"pdctl {shlex.join(words)}")

        near = similar(chosen, known)
        hint = f"did you mean `pdctl {near[0]}`?" if near else "`pdctl --help` lists them."
        raise UsageError(f"no verb `{chosen}`", hint)
    verb = known[chosen]
    place, _, name = verb.module.partition(":")
    module = importlib.import_module(place)
    if hasattr(module, "app"):
        for sub in module.app.registered_commands:  # the whole first line for the list: Typer would cut it
            sub.short_help = sub.short_help or _first_line(sub.callback.__doc__)
        app.add_typer(module.app, name=verb.name, help=verb.help)
    else:
        command = getattr(module, name or "command")
        app.command(verb.name, help=command.__doc__ or verb.help, epilog=EPILOG)(command)
    return app


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


def call(app: typer.Typer, argv: Sequence[str]) -> int:
    """Run the command line and return its exit code. Raise UsageError if Typer refuses the words."""
    argv = respelt(argv)
    command = typer.main.get_command(app)
    refusal = cast(
        "type[Exception]", typer.BadParameter.__bases__[0]
    )  # click's UsageError, which Typer does not name itself
    try:
        code = command.main(args=list(argv), prog_name="pdctl", standalone_mode=False)
    except refusal as error:
        from pdctl.cli import usage  # imported late: needed only for an error

        if type(error).__name__ == "NoArgsIsHelpError":
            sys.stderr.write(f"{error}\n")
            return int(ExitCode.USAGE)
        raise usage.error_of(error, command, argv) from None
    except SystemExit as left:  # Typer's own handling of a closed pipe; exits.py handles it for all verbs
        if isinstance(left.__context__, BrokenPipeError):
            raise BrokenPipeError from left
        raise
    return code if isinstance(code, int) else int(ExitCode.OK)


def _first_line(text: str | None) -> str:
    return " ".join((text or "").strip().partition("\n\n")[0].split())


def _stub() -> None:
    """Placeholder for a verb in `pdctl --help`; never runs, because the module of a named verb is imported."""
