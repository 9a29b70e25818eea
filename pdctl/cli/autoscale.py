"""`pdctl autoscale`: what a scaling policy would do about a fleet, and why. Nothing is done to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, Annotated

from pdctl import user_files
from pdctl.cli.exits import reraise
from pdctl.cli.parameters import argument, option
from pdctl.errors import ExitCode, NotProbedError, StorageError, UsageError
from pdctl.policy import ScalingPolicyName, decide, read_input
from pdctl.render import role_changes as view
from pdctl.render import term
from pdctl.render.term import as_json
from pdctl.units import flag_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pdctl.autoscale.advice import AdviceSettings, RecordedLook
    from pdctl.autoscale.fleet_watch import FleetWatch

LARGEST = 64 << 20  # bytes of an observation and its history
LARGEST_SETTINGS = 1 << 20  # bytes
SHORTEST = 0.1  # seconds between two looks
STDIN = "-"


class DecisionForm(str, Enum):
    TEXT = "text"
    JSON = "json"


class AdviceForm(str, Enum):
    TEXT = "text"
    JSONL = "jsonl"


Output = Annotated[DecisionForm, option("--output", "-o", help="Form of the answer.")]


def explain(
    policy: Annotated[ScalingPolicyName, option("--policy", help="The policy that decides.")],
    observation: Annotated[
        str, option("--observation", metavar="FILE", help="The fleet as JSON: docs/autoscale.md; - is stdin.")
    ],
    output: Output = DecisionForm.TEXT,
) -> None:
    """Say how many replicas a policy would add or take away, and by which numbers. Contacts nobody.

    \b
    pdctl autoscale explain --policy blitz --observation fleet.json
    pdctl autoscale explain --policy kpa --observation fleet.json -o json
    """
    name = "<stdin>" if observation == STDIN else observation
    given = read_input(_bytes(observation, name, "--observation", LARGEST), name, policy)
    decision = decide(policy, given)
    if output is DecisionForm.JSON:
        term.out().write(as_json(decision.document()))
    else:
        view.decision(decision, given.history[-1], term.out())


Topologies = argument(metavar="[TOPOLOGY]...", help="Topology file or name, whose deployment runs.")


def advise(
    topologies: Annotated[list[str] | None, Topologies] = None,
    run: Annotated[str | None, option("--run", metavar="RUN", help="A run of `pdctl launch`.")] = None,
    router: Annotated[str | None, option(metavar="URL", help="A router; its workers are the fleet.")] = None,
    prefills: Annotated[
        list[str] | None, option("--prefill", metavar="URL[,PORT]", help="A prefill server; repeatable.")
    ] = None,
    decodes: Annotated[list[str] | None, option("--decode", metavar="URL", help="A decode server; repeatable.")] = None,
    policy: Annotated[str, option("--policy", metavar="NAME,…", help="Policies to ask; all if not given.")] = "",
    settings: Annotated[
        str | None, option("--settings", metavar="FILE", help="Limits, and settings of policies, as JSON.")
    ] = None,
    interval: Annotated[str, option(metavar="TIME", help="Time between two looks.")] = "5s",
    count: Annotated[
        int | None, option("--count", min=1, metavar="N", help="Number of looks; until Ctrl-C if not given.")
    ] = None,
    timeout: Annotated[
        str, option(metavar="TIME", help="Time limit for one look; an instance that has not answered is named.")
    ] = "4s",
    record: Annotated[str | None, option(metavar="FILE", help="Keep what was observed in a new file.")] = None,
    replay: Annotated[str | None, option(metavar="FILE", help="Decide again by a record; contact nobody.")] = None,
    key_env: Annotated[str, option(metavar="VARIABLE", help="Variable that holds the servers' API key.")] = "",
    verbose: Annotated[bool, option("--verbose", "-v", help="Every term of a decision, and what it costs.")] = False,
    output: Annotated[AdviceForm, option("--output", "-o", help="Form of the answer.")] = AdviceForm.TEXT,
) -> ExitCode:
    """Watch a running deployment and say what each policy would do about it. Nothing is done.

    \b
    pdctl autoscale advise                                  # the run that is alive
    pdctl autoscale advise --router http://10.0.0.5:8000 --policy blitz,kpa --interval 10s
    pdctl autoscale advise --router http://10.0.0.5:8000 --record fleet.jsonl --count 60
    pdctl autoscale advise --replay fleet.jsonl --policy wva -o jsonl

    Exit code 4: nothing could be observed.
    """
    from pdctl.autoscale import advice

    asked = advice.choose_policies(policy) if policy or replay is None else None
    servers = {"--run": run, "--router": router, "--prefill": prefills, "--decode": decodes, "TOPOLOGY": topologies}
    given = [flag for flag, value in servers.items() if value]
    if replay is not None and (given or record is not None):
        other = (*given, "--record")[0]
        raise UsageError(f"--replay contacts nobody, {other} is for a running deployment", "give one of them")
    try:
        if replay is not None:
            chosen, looks = _recorded(replay, asked, settings)
        else:
            chosen = _settings(settings, asked or ())
            period = flag_seconds("--interval", interval, positive=True)
            if period < SHORTEST:
                raise UsageError(f"--interval {interval} is shorter than {SHORTEST:g} s", "give a longer one")
            watch, watched = _watch(
                topologies, run, router, prefills, decodes, key_env, flag_seconds("--timeout", timeout, positive=True)
            )
            looks = _observed(watch, period, count, watched)
        with _recorder(record, chosen) as keep:
            return _advise(chosen, looks, keep, output, verbose)
    except KeyboardInterrupt:
        reraise(signal.SIGINT)
    return ExitCode.OK


def policies(output: Output = DecisionForm.TEXT) -> None:
    """List the policies with their settings and the defaults of these.

    \b
    pdctl autoscale policies
    pdctl autoscale policies -o json
    """
    if output is DecisionForm.JSON:
        term.out().write(view.policies_json())
    else:
        view.policies(term.out())


def _bytes(file: str, name: str, flag: str, largest: int) -> bytes:
    """The content of a file or of standard input. Raise UsageError if it cannot be read or is too large."""
    hint = f"give {'the file of an observation' if flag == '--observation' else 'a file'}, or - for standard input"
    if file == STDIN and sys.stdin is None:  # closed by our parent
        raise UsageError(f"{flag} -: there is no standard input", hint)
    try:
        data = sys.stdin.buffer.read(largest + 1) if file == STDIN else user_files.read(file, largest)
    except OSError as error:
        raise UsageError(f"{flag} {file}: {(error.strerror or str(error)).lower()}", hint) from None
    if len(data) > largest:
        fix = "leave older observations out of `history`" if flag == "--observation" else "leave out what is not needed"
        raise UsageError(f"{name} is larger than {largest >> 20} MiB", fix)
    return data


def _advise(
    chosen: AdviceSettings,
    looks: Iterator[RecordedLook],
    keep: Callable[[RecordedLook], None],
    form: AdviceForm,
    verbose: bool,
) -> ExitCode:
    from pdctl.autoscale.advice import Adviser

    adviser, stream, seen = Adviser(chosen), term.out(follows=True), False
    for look in looks:
        keep(look)
        told = adviser.advise(look)
        seen = seen or look.observation is not None
        if form is AdviceForm.JSONL:
            stream.write(as_json(told.document(), indent=None))
        else:
            view.advice(told, verbose, stream)
        stream.flush()
    if not seen:
        term.err().write("nothing could be observed")
    return ExitCode.OK if seen else ExitCode.NOT_PROBED


def _observed(watch: FleetWatch, interval: float, count: int | None, run: str) -> Iterator[RecordedLook]:
    """A look every `interval` seconds, the next at once where one took longer.

    `run`: the one that is watched, if it is one: who of it has died is noted. Raise NotProbedError when it is over.
    """
    from pdctl.autoscale.advice import RecordedLook
    from pdctl.launch import run_health
    from pdctl.launch.run_directory import RunDir, home

    began, due, done = time.monotonic(), 0.0, 0
    while count is None or done < count:
        term.out(follows=True).sleep(max(0.0, due - (time.monotonic() - began)))
        now = round(time.monotonic() - began, 3)
        due = now + interval
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        directory = RunDir.of(home(os.environ), run) if run else None
        if directory is not None:
            run_health.refuse_to_ask(directory.load())
        found = watch.look(now)
        done += 1
        recorded = directory.load() if directory is not None else None
        deaths = run_health.describe_deaths(recorded, directory) if recorded is not None and directory else ()
        yield RecordedLook(at, found.observation, (*found.notes, *deaths))
        if recorded is not None and (end := run_health.describe_end(recorded)):
            raise NotProbedError(f"{end}: nothing of it can be asked", f"pdctl diagnose --run {run}")


def _watch(
    topologies: list[str] | None,
    run: str | None,
    router: str | None,
    prefills: list[str] | None,
    decodes: list[str] | None,
    key_env: str,
    timeout: float,
) -> tuple[FleetWatch, str]:
    """The fleet that doctor's words name, and the run if they name one.

    Raise NotProbedError for a run that is over, UsageError or NotFoundError if they name nothing that runs.
    """
    from pdctl.autoscale.fleet_watch import FleetWatch
    from pdctl.cli import doctor
    from pdctl.doctor import request as asking
    from pdctl.http_auth import key_of

    words = asking.Words(
        tuple(topologies or ()), run=run, router=router, prefills=tuple(prefills or ()), decodes=tuple(decodes or ())
    )
    subject = asking.subject(words, os.environ, doctor.of_run)
    request = subject.request
    planned = asking.planned(request.plan) if request.plan is not None and not request.endpoints else ()
    endpoints = request.endpoints or planned
    if subject.over:
        raise NotProbedError(f"{subject.title}: nothing of it can be asked", f"pdctl diagnose --run {subject.run}")
    if not (endpoints or request.router):
        raise UsageError(f"{subject.title} has nothing that runs", "name a run, or give --router URL")
    key = key_of(key_env) or request.key
    return FleetWatch(endpoints, request.router, asking.listed_endpoints, timeout=timeout, key=key), subject.run


def _settings(file: str | None, asked: tuple[ScalingPolicyName, ...]) -> AdviceSettings:
    from pdctl.autoscale import advice

    if file is None:
        return advice.read_settings(b"{}", "", asked)
    return advice.read_settings(_bytes(file, file, "--settings", LARGEST_SETTINGS), file, asked)


def _recorded(
    file: str, asked: tuple[ScalingPolicyName, ...] | None, settings: str | None
) -> tuple[AdviceSettings, Iterator[RecordedLook]]:
    """What decides and the looks of a record; `asked` and `settings` take the place of the record's own."""
    from pdctl.autoscale import advice

    cut = "was not written to its end, as when the disk is full, and is left out"
    lines = advice.split_lines(_chunks(file), file, lambda line: term.err().write(f"note: {file}:{line} {cut}"))
    number, first = next(lines, (1, b""))
    chosen = advice.read_settings(first, f"{file}:{number}", None)
    if asked is not None:
        chosen = chosen._replace(policies=asked)
    if settings is not None:
        chosen = _settings(settings, chosen.policies)
    return chosen, advice.read_looks(lines, file)


def _chunks(file: str) -> Iterator[bytes]:
    try:
        yield from user_files.chunks(file)
    except OSError as error:
        words = (error.strerror or str(error)).lower()
        raise UsageError(f"--replay {file}: {words}", "give a file of --record") from None


@contextlib.contextmanager
def _recorder(file: str | None, chosen: AdviceSettings) -> Iterator[Callable[[RecordedLook], None]]:
    """What keeps each look in a new file, line by line, so that all but the last are there whatever happens."""
    if file is None:
        yield lambda _: None
        return
    try:
        stream = user_files.expanded(file).open("x", encoding="utf-8")
    except FileExistsError:
        raise UsageError(f"--record {file}: it exists already", "name a new file") from None
    except OSError as error:
        raise UsageError(
            f"--record {file}: {(error.strerror or '').lower()}", "name a file that can be written"
        ) from None

    def write(document: dict[str, object]) -> None:
        try:
            stream.write(json.dumps(document) + "\n")
            stream.flush()
        except OSError as error:
            term.silence(stream)  # closing it would write again, and fail without the name
            raise StorageError(f"--record {file}: {(error.strerror or '').lower()}", "free space there") from None

    with stream:
        write(chosen.document())
        yield lambda look: write(look.document())


SUBVERBS = (explain, advise, policies)
