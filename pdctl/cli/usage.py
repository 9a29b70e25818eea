"""Turn Typer's errors about a command line into pdctl's own form: what is wrong, and what to type instead.

Typer contains a copy of click from 0.26 on and imports click before that, so errors are told apart by their attributes
and not by their classes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

from pdctl.errors import UsageError
from pdctl.suggestions import similar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Sub-verbs that do not exist, and the command that does the job.
ELSEWHERE = {
    "pdctl render slurm": "pdctl launch FILE -t slurm --dry-run prints the batch script and every step",
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


class ClickCommand(Protocol):
    help: str | None

    @property
    def params(self) -> Sequence[Param]: ...


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
    if hasattr(refused, "param_type") and param is not None:
        return UsageError(f"{path} needs {_name(param)}", _example(path, command))
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
    tail = f"--{option.lstrip('-').partition('-')[2]}"  # `--prefill-tp`: the prefill's option is plain `--tp`
    near = tail if option.startswith("--prefill-") and tail in forms else _similar_word(option, forms)
    return UsageError(f"{path} has no option `{option}`", f"did you mean `{forms[near]}`?" if near else _help(path))


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


def _help(path: str) -> str:
    return f"{path} --help"
