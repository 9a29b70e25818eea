"""`pdctl doctor`: prove before rollout that every prefill can feed every decode."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import replace
from enum import Enum
from io import StringIO
from pathlib import Path  # noqa: TC003 - Typer evaluates the annotations
from typing import TYPE_CHECKING, Annotated

from pdctl import user_files
from pdctl.cli.exits import reraise
from pdctl.cli.parameters import argument, option
from pdctl.doctor import selection
from pdctl.errors import ExitCode, NotFoundError, PdctlError, TopologyError, UsageError
from pdctl.quick_definitions import NamedTuple
from pdctl.render.findings.report_forms import ReportForm
from pdctl.topology.diagnostic import Code, Diagnostic

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pdctl.doctor.check import Facts, Report
    from pdctl.doctor.request import Subject
    from pdctl.doctor.selection import Selection

STDIN = "-"
LARGEST = 16 * 1024 * 1024  # bytes; 512 instances with 64 ranks each print less than half of it


class Bar(str, Enum):
    ERROR = "error"
    WARNING = "warning"
    WARN = "warn"
    INFO = "info"
    NEVER = "never"


DOCUMENTS = ("-o json", "-o sarif", "-o github", "-o junit")


class Conflict(NamedTuple):
    """Flags that exclude each other: refused, because one would be ignored. `{}` in `why` is the other flag."""

    flag: str
    others: tuple[str, ...]
    why: str
    fix: str = "give one of them"


CONFLICTS = (
    Conflict("--static", ("--canary",), "--static contacts nothing, {} sends requests"),
    Conflict("--static", ("--watch",), "files alone do not change: --static leaves {} nothing to see"),
    Conflict("--static", ("--reached",), "{} judges addresses, and --static checks none", "leave --static out"),
    Conflict(
        "--watch",
        ("--bundle", "--reached", "--output-file"),
        "--watch prints changes until Ctrl-C, {} is for one look",
    ),
    Conflict("--watch", DOCUMENTS, "--watch prints changes, {} is one document", "use -o text or -o jsonl"),
    Conflict(
        "--from-host",
        ("--static", "--canary", "--watch", "--bundle", "--reached", "-o jsonl", *DOCUMENTS),
        "--from-host prints one command and no report: it does not go with {}",
    ),
    Conflict("--reached -", ("-",), "--reached - and the manifest {} are one standard input", "put one into a file"),
)


What = argument(metavar="[TOPOLOGY|MANIFEST]...", help="Topology file or name, Kubernetes manifests, start scripts.")
Prefill = option("--prefill", metavar="URL[,PORT]", help="A prefill server and its bootstrap port; repeatable.")
Decode = option("--decode", metavar="URL", help="A decode server; repeatable.")
Overlay = option("--file", "-F", metavar="FILE", help="Overlay merged over the topology; repeatable.")
Setting = option("--set", metavar="PATH=VALUE", help="One value of the topology; repeatable.")
Select = option("--select", metavar="CODES", help="Only these codes, beginnings (PD2) or slugs; repeatable.")
Ignore = option("--ignore", metavar="CODES", help="Not these; repeatable.")
Metrics = option(metavar="URL", help="Where the router's metrics are, if not on its port or 29000.")
Watch = option(metavar="TIME", help="Check again every TIME and print what changed, until Ctrl-C.")
Bundle = option(metavar="FILE.tgz", help="Pack report, facts and matched log lines, secrets taken out.")
FromHost = option("--from-host", help="Print one command that dials everything from another host.")
Reached = option(metavar="FILE", help="What that command printed there (`-`: stdin), judged here.")


def command(
    what: Annotated[list[str] | None, What] = None,
    overlays: Annotated[list[str] | None, Overlay] = None,
    sets: Annotated[list[str] | None, Setting] = None,
    run: Annotated[str | None, option("--run", metavar="RUN", help="A run of `pdctl launch`.")] = None,
    router: Annotated[str | None, option(metavar="URL", help="A router; its workers are checked.")] = None,
    prefills: Annotated[list[str] | None, Prefill] = None,
    decodes: Annotated[list[str] | None, Decode] = None,
    static: Annotated[bool, option("--static", help="Offline: read files, contact nothing.")] = False,
    canary: Annotated[bool, option("--canary", help="Also send real requests through every pair.")] = False,
    extras: Annotated[bool, option(help="With --canary: over-length, cancelled, n=2 and a burst too.")] = True,
    select: Annotated[list[str] | None, Select] = None,
    ignore: Annotated[list[str] | None, Ignore] = None,
    fail_on: Annotated[Bar, option(help="Exit 1 from this severity on.")] = Bar.ERROR,
    timeout: Annotated[
        str, option(metavar="TIME", help="Time limit for all probes together, canary requests aside.")
    ] = "8s",
    canary_timeout: Annotated[str, option(metavar="TIME", help="Time limit for one canary request.")] = "30s",
    router_metrics: Annotated[str, Metrics] = "",
    key_env: Annotated[str, option(metavar="VARIABLE", help="Variable that holds the servers' API key.")] = "",
    watch: Annotated[str | None, Watch] = None,
    bundle: Annotated[Path | None, Bundle] = None,
    from_host: Annotated[bool, FromHost] = False,
    reached: Annotated[str | None, Reached] = None,
    list_checks: Annotated[bool, option("--list-checks", help="Every code, and what it needs to be seen.")] = False,
    verbose: Annotated[bool, option("--verbose", "-v", help="Name every check, and why some were skipped.")] = False,
    output: Annotated[ReportForm, option("--output", "-o", help="Form of the report.")] = ReportForm.TEXT,
    output_file: Annotated[Path | None, option("--output-file", metavar="FILE", help="Write the report there.")] = None,
) -> ExitCode:
    """Find before rollout what would break: ports, roles, versions, reachability, and every pair by a real request.

    \b
    pdctl doctor topologies/2p1d.yaml --static             # before anything runs; also Kubernetes manifests, run.sh
    pdctl doctor                                           # the run that is alive: everything but real requests
    pdctl doctor --router http://10.0.0.5:8000 --canary    # any SGLang deployment: its workers, and every pair
    pdctl doctor --prefill http://10.0.0.1:30000,8998 --decode http://10.0.0.2:30000
    pdctl doctor 2p1d --select PD2,PD3 -o sarif --output-file doctor.sarif
    pdctl doctor --watch 5s

    Exit code 0: nothing at or above --fail-on; 1: findings; 4: too little could be reached to tell.
    """
    chosen = selection.read(select or (), ignore or (), fail_on.value)
    if list_checks:
        _list(chosen, output, output_file)
        return ExitCode.OK
    flags = {
        "--static": static, "--canary": canary, "--watch": watch, "--bundle": bundle, "--reached": reached,
        "--output-file": output_file, "--from-host": from_host, f"-o {output.value}": True,
        "--reached -": reached == STDIN, STDIN: STDIN in (what or ()),
    }  # fmt: skip
    _refuse([flag for flag, value in flags.items() if value not in (None, False)])
    from pdctl.doctor import request as asking
    from pdctl.http_auth import key_of  # imported late, as below: not needed for offline uses
    from pdctl.units import flag_seconds

    interval = None if watch is None else flag_seconds("--watch", watch, positive=True)
    words = asking.Words(
        tuple(what or ()), tuple(overlays or ()), tuple(sets or ()), run, router, tuple(prefills or ()),
        tuple(decodes or ()), static, canary,
    )  # fmt: skip
    try:
        try:
            subject = asking.subject(words, os.environ, of_run)
        except TopologyError as error:
            _refuse_run_as_topology(words.files, error)
            raise
        request = replace(
            subject.request,
            router_metrics=asking.url(router_metrics) if router_metrics else "",
            key=key_of(key_env) or subject.request.key,
            extras=extras,
            deadline=flag_seconds("--timeout", timeout, positive=True),
            canary_deadline=flag_seconds("--canary-timeout", canary_timeout, positive=True),
        )
        subject = subject._replace(request=request)
        known = replace(chosen, suppressions=subject.suppressions)
        if from_host:
            _print_command(subject, output_file)
        elif interval is not None:
            _watch(subject, known, interval, output)
        else:
            return _report(subject, known, output, output_file, verbose, bundle, reached)
    except KeyboardInterrupt:
        reraise(signal.SIGINT)
    return ExitCode.OK


def _refuse(given: Collection[str]) -> None:
    """Raise UsageError if two of the given flags conflict. `given`: with `-o FORM`, and `-` for standard input."""
    for each in CONFLICTS:
        clash = next((other for other in each.others if each.flag in given and other in given), None)
        if clash is not None:
            raise UsageError(each.why.format(clash), each.fix)


def _refuse_run_as_topology(files: Sequence[str], error: TopologyError) -> None:
    """Raise UsageError if the one word, which is no topology, is the name of a run."""
    from pdctl.launch.run_directory import RunDir, home

    missing = [found.code for found in error.diagnostics if isinstance(found, Diagnostic)] == [Code.MISSING_FILE]
    if len(files) != 1 or not missing or "/" in files[0]:
        return
    try:
        run = RunDir.of(home(os.environ), files[0]).load()
    except PdctlError:
        return
    fix = f"pdctl doctor --run {run.name}"
    raise UsageError(f"there is no topology `{run.name}`, but a run of that name", fix) from None


def of_run(name: str | None, static: bool) -> Subject:
    """A run of `pdctl launch` as doctor's subject: its processes at their actual addresses, its topology and logs.

    Raise UsageError for a run on Kubernetes, NotFoundError without a run, NotProbedError for one that was stopped.
    """
    from pdctl.cli import log_sources
    from pdctl.doctor import request as asking
    from pdctl.launch import clusters, credentials, launched, run_health
    from pdctl.launch.run_choice import find_run
    from pdctl.launch.run_directory import RunDir, home
    from pdctl.launch.run_record import State
    from pdctl.render import term

    root = home(os.environ)
    cluster = clusters.meant(root, name)
    if cluster is not None:
        forward = f"kubectl --namespace {cluster.namespace} port-forward service/{cluster.name}-router {cluster.port}"
        fix = f"{forward}, and then pdctl doctor --router http://127.0.0.1:{cluster.port} --canary"
        raise UsageError(f"{cluster.name} runs in Kubernetes, whose network is not this machine's", fix)
    try:
        run = find_run(root, name, (State.FAILED, State.STALE))
    except NotFoundError as error:
        if name is not None:
            raise
        raise NotFoundError(error.message, "name a topology, --router URL, or --prefill URL and --decode URL") from None
    if name is None:
        log_sources.tell_choice(launched.LaunchedRun(root, run))
    if run.state is State.STOPPED and not static:
        run_health.refuse_to_ask(run)
    directory, ended = RunDir.of(root, run.name), run_health.describe_end(run)
    foreign = {} if static or ended else run_health.foreign_listeners(run)
    endpoints = () if static or ended else run_health.endpoints(run.deployment)
    left = tuple(endpoint for endpoint in endpoints if endpoint.name not in foreign)
    logs, router = run_health.logs(run, directory), run.deployment.router
    if foreign and (not left or (router is not None and router.name in foreign)):  # the plan's would be asked instead
        run_health.refuse_to_ask(run)
    for words in foreign.values():
        term.err().write(f"note: {words}: nothing is sent there")
    written = run_health.planned(run, directory)
    found = asking.of_plan(*written) if written is not None else asking.Subject(asking.Request(), run.name)
    request = replace(
        found.request,
        topology=run_health.as_running(written[0], run) if written is not None else None,
        endpoints=left,
        router=router.url if router is not None else "",
        model=run.deployment.served_name,
        logs=tuple(logs),
        names=logs,
        run=run.name,
        own={} if static or ended else run_health.own(run),
        folders={} if static or ended else run_health.folders(directory),
        ended=() if static else run_health.ended(run, directory),
        key=credentials.api_key(run.deployment),
        since=run.created,  # an earlier run of the same name may have written to the same files
    )
    return asking.Subject(request, ended or f"run {run.name}", found.suppressions, run.name, bool(ended))


def _look(subject: Subject, chosen: Selection) -> tuple[Facts, Report]:
    """Gather the facts that the chosen checks need, once, and report what the checks find."""
    from pdctl.doctor import check_run
    from pdctl.doctor.gather import gather
    from pdctl.render import term
    from pdctl.render.findings.report_text import Looking

    progress = Looking(term.err())
    began = time.monotonic()
    try:
        request = replace(subject.request, progress=progress)
        facts = gather(request, check_run.needed(chosen, request.depth))
    finally:
        progress.close()
    return facts, check_run.run(facts, chosen, title=subject.title, seconds=time.monotonic() - began)


def _report(
    subject: Subject,
    chosen: Selection,
    form: ReportForm,
    file: Path | None,
    verbose: bool,
    bundle: Path | None,
    reached: str | None,
) -> ExitCode:
    from pdctl.doctor import check_run
    from pdctl.render.findings.report_forms import write
    from pdctl.render.term import to_file

    facts, report = _look(subject, chosen)
    if reached is not None:
        from pdctl.doctor import other_host

        report = other_host.judged(report, facts, other_host.read(_reached(reached)), chosen)
    if bundle is not None:
        _pack(bundle, subject, facts, report)
    with to_file(file) as stream:
        write(form, report, stream, verbose, chosen.fail_on)
    return check_run.exit_code(report, chosen.fail_on)


def _print_command(subject: Subject, file: Path | None) -> None:
    from pdctl.doctor import other_host
    from pdctl.render.term import to_file

    facts, _ = _look(subject, selection.EVERYTHING)
    with to_file(file) as stream:
        stream.write(other_host.command(facts))


def _reached(file: str) -> str:
    """The output of the command that `--from-host` prints. Raise UsageError if it cannot be read."""
    hint = "give the file that holds the command's output"
    try:
        data = user_files.standard_input().read(LARGEST) if file == STDIN else user_files.read(file, LARGEST)
    except OSError as error:
        raise UsageError(f"--reached {file}: {error.strerror}", hint) from None
    return data.decode("utf-8", errors="replace")


def _pack(path: Path, subject: Subject, facts: Facts, report: Report) -> None:
    """Write the archive of `--bundle`; say where it is and which secrets were removed."""
    from pdctl.deployment_secret import DeploymentSecret
    from pdctl.doctor import bundle
    from pdctl.launch import credentials
    from pdctl.launch.run_directory import RunDir, home
    from pdctl.render import term
    from pdctl.render.findings import report_forms, report_text

    shown = StringIO()
    report_text.show(report, term.Term(shown), verbose=True)
    reports = {"report.json": report_forms.to_json(report), "report.txt": shown.getvalue()}
    run = RunDir.of(home(os.environ), subject.run).path if subject.run else None
    known = [subject.request.key] if subject.request.key else []
    if run is not None:
        with contextlib.suppress(OSError, UsageError):
            known.append(DeploymentSecret.read(run / credentials.FILE).key.decode("ascii", "replace"))
    taken = bundle.pack(path, facts, reports, run, known)
    gone = ", ".join(f"{count} × {name}" for name, count in sorted(taken.items())) or "nothing"
    term.err().write(f"wrote {path} ({path.stat().st_size} bytes; taken out: {gone})")


def _watch(subject: Subject, chosen: Selection, interval: float, form: ReportForm) -> None:
    """Check again and again until a signal, with `interval` seconds between checks, however long each takes."""
    from pdctl.doctor.check import Depth, advance, begin
    from pdctl.render import term
    from pdctl.render.findings import report_forms

    if subject.request.depth is Depth.STATIC:  # a manifest without a server to ask
        raise UsageError("there is nothing to watch in what is written alone", "add --router URL")
    watched = begin()
    stream = term.out(follows=True)
    while True:
        _, report = _look(subject, chosen)
        watched = advance(watched, report, time.monotonic())
        if form is ReportForm.TEXT:
            report_forms.show_changes(watched, stream)
        elif lines := report_forms.change_lines(watched):
            stream.write(lines)
        stream.flush()
        stream.sleep(interval)


def _list(chosen: Selection, form: ReportForm, file: Path | None) -> None:
    from pdctl.catalogue import book
    from pdctl.render.explain import checks_json, show_checks
    from pdctl.render.term import to_file

    if form not in (ReportForm.TEXT, ReportForm.JSON):
        raise UsageError(f"--list-checks has no form {form.value}", "use -o text or -o json")
    entries = [entry for entry in book.ENTRIES if chosen.wants(entry.code)]
    with to_file(file) as stream:
        if form is ReportForm.JSON:
            stream.write(checks_json(entries))
        else:
            show_checks(entries, stream)
