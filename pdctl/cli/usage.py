"""The verbs as a Typer application: help, every unusual command line, and what is wrong with one in pdctl's own form.

Typer contains a copy of click from 0.26 on and imports click before that, so errors are told apart by their attributes
and not by their classes.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any, Protocol, cast

import typer

from pdctl.cli.app import VERBS, Verb, find_verb, functions
from pdctl.cli.parameters import (
    PLAIN_ARGUMENT,
    TypedLine,
    declared_types,
    first_spelling,
    line_name,
    refuse_number,
    slots,
    typed_spelling,
)
from pdctl.errors import ExitCode, UsageError
from pdctl.shell_quoting import pasteable
from pdctl.suggestions import similar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pdctl.cli.parameters import Command, Parameter, Slot

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
EPILOG = (
    "Exit codes: 0 fine, 1 findings or infeasible, 2 usage or bad topology, 3 a bug of pdctl, 4 not enough was "
    "seen to decide, 5 not found, 8 still starting at the timeout, 130/143 the signal."
)

# Sub-verbs that do not exist, and the command that does the job.
ELSEWHERE = {
    "pdctl render slurm": "pdctl launch FILE -t slurm --dry-run prints the batch script and every step",
    "pdctl render k8s": "did you mean `pdctl render kubernetes`?",
    "pdctl render shell": "pdctl plan FILE -o shell prints every command",
}
QUOTED = re.compile(r"'(.*?)'")
EXTRA = re.compile(r"unexpected extra argument\S* \((.*)\)", re.DOTALL)


class ParamKind(Protocol):
    @property
    def name(self) -> str: ...


class Param(Protocol):
    """The attributes that click has for an option or argument."""

    opts: list[str]
    secondary_opts: list[str]

    @property
    def name(self) -> str | None: ...
    @property
    def param_type_name(self) -> str: ...
    @property
    def type(self) -> ParamKind: ...


class ClickParser(Protocol):
    def parse_args(self, args: list[str]) -> tuple[object, list[str], object]:
        """The values, the words left over, and the order of the parameters."""
        ...


class ClickCommand(Protocol):
    help: str | None

    @property
    def params(self) -> Sequence[Param]: ...
    def make_parser(self, ctx: Any) -> ClickParser: ...  # noqa: ANN401 - click's context


def prepare(words: Sequence[str]) -> Callable[[], int]:
    """Import what this command line needs; what is returned runs it and returns its exit code."""
    return functools.partial(call, build(find_verb(words), words), words)


def build(verb: Verb | None, words: Sequence[str] = ()) -> typer.Typer:
    """The Typer application for this verb: it in full, or a one-line entry for every verb.

    `words`: the command line, for a verb that does something itself and has sub-verbs too.
    """
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

    if verb is None:
        for each in VERBS:
            app.command(each.name, help=each.help, short_help=each.help)(_stub)
        return app
    below = dict(functions(verb))
    command = below.pop("", None)
    if command is not None and not (len(words) > 1 and words[1] in below):
        app.command(verb.name, help=command.__doc__ or verb.help, epilog=EPILOG)(_for_typer(command))
        return app
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, context_settings=SETTINGS)
    for name, command in below.items():  # the whole first line for the list: Typer would cut it
        group.command(name, short_help=_first_line(command.__doc__), epilog=EPILOG)(_for_typer(command))
    app.add_typer(group, name=verb.name, help=verb.help)
    return app


def call(app: typer.Typer, argv: Sequence[str]) -> int:
    """Run the command line and return its exit code. Raise UsageError if Typer refuses the words."""
    command = typer.main.get_command(app)
    refusal = cast(
        "type[Exception]", typer.BadParameter.__bases__[0]
    )  # click's UsageError, which Typer does not name itself
    try:
        code = command.main(args=list(argv), prog_name="pdctl", standalone_mode=False)
    except refusal as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.stderr.write(f"{error}\n")
            return int(ExitCode.USAGE)
        raise error_of(error, command, argv) from None
    except SystemExit as left:  # Typer's own handling of a closed pipe; exits.py handles it for all verbs
        if isinstance(left.__context__, BrokenPipeError):
            raise BrokenPipeError from left
        raise
    return code if isinstance(code, int) else int(ExitCode.OK)


def _for_typer(command: Command) -> Callable[..., object]:
    """`command` with its parameters declared as Typer wants them."""
    line, known = line_name(command), {slot.name: slot for slot in slots(command)}
    flags = {name: first_spelling(slot) for name, slot in known.items()}
    hints = declared_types(command)
    for name, slot in known.items():
        if slot.parameter is not PLAIN_ARGUMENT:
            hints[name] = Annotated[hints[name].__origin__, _declaration(slot.parameter)]

    @functools.wraps(command)
    def run(**values: Any) -> object:  # noqa: ANN401 - what the verb takes
        for name, slot in known.items():
            refuse_number(slot, values[name])
        if line is not None:
            values[line] = TypedLine(_given(values[line], known.values()), flags)
        return command(**values)

    if line is not None:
        hints[line] = typer.Context
    signature = inspect.signature(command)
    parameters = [one.replace(annotation=hints[name]) for name, one in signature.parameters.items()]
    run.__annotations__ = hints
    vars(run)["__signature__"] = signature.replace(parameters=parameters)
    return run


def _declaration(one: Parameter) -> object:
    if one.names is None:
        return typer.Argument(metavar=one.metavar, help=one.help)
    least, most = (one.min, one.max) if one.above is None else (None, None)  # Typer has no bound that is left out
    return typer.Option(
        *one.names, help=one.help, metavar=one.metavar, min=least, max=most, envvar=one.variable, show_envvar=False
    )


def _given(context: typer.Context, known: Iterable[Slot]) -> dict[str, str]:
    sources = ((slot, context.get_parameter_source(slot.name)) for slot in known)
    typed = (slot for slot, source in sources if source is not None and source.name == "COMMANDLINE")
    return {slot.name: typed_spelling(slot, context.params[slot.name]) for slot in typed}


def _first_line(text: str | None) -> str:
    return " ".join((text or "").strip().partition("\n\n")[0].split())


def _stub() -> None:
    """Placeholder for a verb in `pdctl --help`; never runs, because the module of a named verb is imported."""


def error_of(refused: Exception, root: ClickCommand, argv: Sequence[str]) -> UsageError:
    """pdctl's error for click's UsageError `refused`, except NoArgsIsHelpError, which is a help page.

    `root`: the top-level command.
    """
    path, command = _command(root, argv)
    context = getattr(refused, "ctx", None)
    if context is not None:
        path, command = context.command_path, context.command
    told = _message_of(refused)
    option, param = getattr(refused, "option_name", None), getattr(refused, "param", None)
    if hasattr(refused, "possibilities") and option is not None:
        return _no_option(path, command, option)
    if option is not None:
        return _option_alone(command, option, told)
    if hasattr(refused, "param_type") and param is not None and context is not None:
        return UsageError(f"{path} needs {_name(param)}", _completed(path, command, param, context, argv))
    if param is not None:
        return _no_value(param, getattr(refused, "message", told))
    if _below(command) and (word := QUOTED.search(told)):
        return _no_verb(path, list(_below(command)), word[1])
    if extra := EXTRA.search(told):
        arguments = [_name(each) for each in command.params if each.param_type_name == "argument"]
        takes = f"takes {' '.join(arguments)} and no more" if arguments else "takes no arguments"
        return UsageError(f"{path} {takes}: what is `{extra[1]}`?", _help(path))
    return UsageError(f"{path}: {told.rstrip('.')}", _help(path))


def _command(root: ClickCommand, argv: Sequence[str]) -> tuple[str, ClickCommand]:
    """The command that `argv` names, for an error that does not say where it was raised."""
    path, command = "pdctl", root
    for word in argv:
        below = _below(command)
        if word in below:
            path, command = f"{path} {word}", below[word]
        elif not word.startswith("-"):
            break
    return path, command


def _below(command: ClickCommand) -> Mapping[str, ClickCommand]:
    found: Mapping[str, ClickCommand] = getattr(command, "commands", {})
    return found


def _message_of(refused: Exception) -> str:
    words = getattr(refused, "format_message", None)
    return str(words()) if words is not None else str(refused)


def _no_option(path: str, command: ClickCommand, option: str) -> UsageError:
    """The error for an unknown option, which suggests the nearest option or value: `--output json` for `--json`."""
    options = [each for each in command.params if each.param_type_name == "option"]
    forms = {f"--{choice}": f"{each.opts[0]} {choice}" for each in options for choice in _choices(each)}
    forms.update({name: name for each in options for name in (*each.opts, *each.secondary_opts)})
    if path == "pdctl import" and option == "-m":
        fix = "a command line goes to standard input: echo 'python3 -m sglang.launch_server ...' | pdctl import -"
        return UsageError(f"{path} takes files, not a command line", fix)
    if option in ("--version", "-V"):
        return UsageError(f"{path} has no option `{option}`", "pdctl --version")
    if path == "pdctl trace-room" and option[1:2].isdigit():
        return UsageError(f"`{option}…` is not a room: no room is negative", "`pdctl rooms` lists them")
    tail = f"--{option.lstrip('-').partition('-')[2]}"  # `--prefill-tp`: the prefill's option is plain `--tp`
    near = tail if option.startswith("--prefill-") and tail in forms else _similar_word(option, forms)
    fix = f"did you mean `{forms[near]}`?" if near else _help(path)
    if not near and (option[1:2] != "-" or " " in option) and len(options) < len(command.params):
        fix = f"a word that begins with `-` and is no option goes behind `--`: {path} -- '{option} …'; {fix}"
    return UsageError(f"{path} has no option `{option}`", fix)


def _option_alone(command: ClickCommand, option: str, message: str) -> UsageError:
    """The error for an option without its value, or with a value that it does not take."""
    param = next((each for each in command.params if option in (*each.opts, *each.secondary_opts)), None)
    if "does not take" in message:
        return UsageError(f"{option} takes no value", f"write {option} alone")
    return UsageError(f"{option} needs a value", f"{option} {_metavar(param)}" if param is not None else "give it one")


def _no_value(param: Param, message: str) -> UsageError:
    """The error for an invalid value of an option or argument."""
    name, kind = _name(param), param.type.name
    quoted = QUOTED.match(message)
    value = quoted[1] if quoted else message.split(" ")[0]
    if choices := _choices(param):
        near = _similar_word(value, choices)
        hint = f"did you mean `{near}`? " if near else ""
        return UsageError(f"{name} `{value}`: there is no such choice", f"{hint}choose one of {', '.join(choices)}")
    if not kind.startswith(("int", "float")):
        return UsageError(f"{name}: {message.rstrip('.')}", "give another value")
    bounds = (("at least", getattr(param.type, "min", None)), ("at most", getattr(param.type, "max", None)))
    limits = " and ".join(f"{word} {bound}" for word, bound in bounds if bound is not None)
    wanted = "a whole number" if kind.startswith("int") else "a number"
    wanted = f"{wanted} of {limits}" if limits else wanted
    return UsageError(f"{name} `{value}`: not {wanted}", f"give {wanted}")


def _no_verb(path: str, known: list[str], word: str) -> UsageError:
    if elsewhere := ELSEWHERE.get(f"{path} {word}"):
        return UsageError(f"{path} has no verb `{word}`", elsewhere)
    near = _similar_word(word, known)
    return UsageError(f"{path} has no verb `{word}`", f"did you mean `{path} {near}`?" if near else _help(path))


def _similar_word(word: str, known: Iterable[str]) -> str | None:
    folded = {each.lower(): each for each in known}
    folded.update({each: each for each in known})
    near = similar(word.lower(), folded)
    return folded[near[0]] if near else None


def _choices(param: Param) -> list[str]:
    return [str(getattr(each, "value", each)) for each in getattr(param.type, "choices", ())]


def _name(param: Param) -> str:
    return str(_metavar(param) if param.param_type_name == "argument" else param.opts[0])


def _metavar(param: Param) -> str:
    return str(getattr(param, "metavar", None) or "|".join(_choices(param)) or (param.name or "value").upper())


def _example(path: str, command: ClickCommand) -> str:
    """The first example in the verb's help; without one, its --help command."""
    lines = (line.strip() for line in (command.help or "").splitlines())
    found = next((line.partition("  #")[0].strip() for line in lines if line.startswith(f"{path} ")), None)
    return found or _help(path)


class _Typed(str):
    """A word of the command line, which `is` no equal word elsewhere on it."""

    __slots__ = ()


def _completed(path: str, command: ClickCommand, param: Param, context: object, argv: Sequence[str]) -> str:
    """What was typed, with what it lacks; the example if nothing but the verb was typed.

    Surplus words are left out, or taken for the value that is missing: `role-switch prefill-1 decode`.
    """
    verb = path.split()[1:]
    typed = [_Typed(word) for word in argv[len(verb) :]]
    if list(argv[: len(verb)]) != verb or not typed:
        return _example(path, command)
    surplus = command.make_parser(context).parse_args([*typed])[1]
    rest = [pasteable(word) for word in typed if not any(word is each for each in surplus)]
    if not rest and not set(surplus).intersection(_choices(param)):
        return _example(path, command)
    if param.param_type_name == "argument":
        return " ".join([path, _name(param), *rest])
    words = _example(path, command).split()
    at = words.index(param.opts[0]) if param.opts[0] in words else len(words)
    meant = next((word for word in surplus if word in _choices(param)), None)
    value = [meant] if meant else words[at + 1 : at + 2] or [_metavar(param)]
    return " ".join([path, *rest, param.opts[0], *value])


def _help(path: str) -> str:
    return f"{path} --help"
