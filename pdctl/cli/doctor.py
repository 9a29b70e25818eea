"""`pdctl doctor`: prove before rollout that every prefill can feed every decode."""

from __future__ import annotations

import signal
from enum import Enum
from pathlib import Path  # noqa: TC003 - Typer evaluates the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.cli import doctor_conflicts
from pdctl.cli.exits import reraise
from pdctl.doctor import selection
from pdctl.errors import UsageError
from pdctl.render.findings.report_forms import ReportForm

if TYPE_CHECKING:
    from pdctl.doctor.selection import Selection

STDIN = "-"


class Bar(str, Enum):
    ERROR = "error"
    WARNING = "warning"
    WARN = "warn"
    INFO = "info"
    NEVER = "never"


What = typer.Argument(
    metavar="[TOPOLOGY|MANIFEST]...", help="Topology file or name, Kubernetes manifests, start scripts."
)
Prefill = typer.Option("--prefill", metavar="URL[,PORT]", help="A prefill server and its bootstrap port; repeatable.")
Decode = typer.Option("--decode", metavar="URL", help="A decode server; repeatable.")
Overlay = typer.Option("--file", "-F", metavar="FILE", help="Overlay merged over the topology; repeatable.")
Setting = typer.Option("--set", metavar="PATH=VALUE", help="One value of the topology; repeatable.")
Select = typer.Option("--select", metavar="CODES", help="Only these codes, beginnings (PD2) or slugs; repeatable.")
Ignore = typer.Option("--ignore", metavar="CODES", help="Not these; repeatable.")
Metrics = typer.Option(metavar="URL", help="Where the router's metrics are, if not on its port or 29000.")
Watch = typer.Option(metavar="TIME", help="Look again every TIME and print what changed, until Ctrl-C.")
Bundle = typer.Option(metavar="FILE.tgz", help="Pack report, facts and matched log lines, secrets taken out.")
FromHost = typer.Option("--from-host", help="Print one command that dials everything from another host.")
Reached = typer.Option(metavar="FILE", help="What that command printed there (`-`: stdin), judged here.")


def command(
    what: Annotated[list[str] | None, What] = None,
    overlays: Annotated[list[str] | None, Overlay] = None,
    sets: Annotated[list[str] | None, Setting] = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="A run of `pdctl launch`.")] = None,
    router: Annotated[str | None, typer.Option(metavar="URL", help="A router; its workers are looked at.")] = None,
    prefills: Annotated[list[str] | None, Prefill] = None,
    decodes: Annotated[list[str] | None, Decode] = None,
    static: Annotated[bool, typer.Option("--static", help="Ask nobody: what is written alone.")] = False,
    canary: Annotated[bool, typer.Option("--canary", help="Also send real requests through every pair.")] = False,
    extras: Annotated[bool, typer.Option(help="With --canary: over-length, cancelled, n=2 and a burst too.")] = True,
    select: Annotated[list[str] | None, Select] = None,
    ignore: Annotated[list[str] | None, Ignore] = None,
    fail_on: Annotated[Bar, typer.Option(help="Exit 1 from this severity on.")] = Bar.ERROR,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="For looking at everything.")] = "8s",
    canary_timeout: Annotated[str, typer.Option(metavar="TIME", help="For one canary request.")] = "30s",
    router_metrics: Annotated[str, Metrics] = "",
    key_env: Annotated[str, typer.Option(metavar="VARIABLE", help="Variable that holds the servers' API key.")] = "",
    watch: Annotated[str | None, Watch] = None,
    bundle: Annotated[Path | None, Bundle] = None,
    from_host: Annotated[bool, FromHost] = False,
    reached: Annotated[str | None, Reached] = None,
    list_checks: Annotated[
        bool, typer.Option("--list-checks", help="Every code, and what it needs to be seen.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Name every check, and why some were skipped.")
    ] = False,
    output: Annotated[ReportForm, typer.Option("--output", "-o", help="Form of the report.")] = ReportForm.TEXT,
    output_file: Annotated[
        Path | None, typer.Option("--output-file", metavar="FILE", help="Write the report there.")
    ] = None,
) -> None:
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
        return
    flags = {
        "--static": static, "--canary": canary, "--watch": watch, "--bundle": bundle, "--reached": reached,
        "--output-file": output_file, "--from-host": from_host, f"-o {output.value}": True,
        "--reached -": reached == STDIN, STDIN: STDIN in (what or ()),
    }  # fmt: skip
    doctor_conflicts.check([flag for flag, value in flags.items() if value not in (None, False)])
    from pdctl.cli import doctor_look, doctor_request  # late: what asks nobody pays for none of it

    words = doctor_request.Words(
        tuple(what or ()), tuple(overlays or ()), tuple(sets or ()), run, router, tuple(prefills or ()),
        tuple(decodes or ()), static, canary,
    )  # fmt: skip
    asked = doctor_look.Asked(timeout, canary_timeout, router_metrics, key_env, extras)
    shown = doctor_look.Shown(output, output_file, verbose, bundle, reached)
    try:
        subject = doctor_look.subject(words, asked)
        if from_host:
            doctor_look.print_command(subject, shown)
        elif watch is not None:
            doctor_look.watch(subject, chosen, watch, output)
        else:
            raise typer.Exit(int(doctor_look.once(subject, chosen, shown)))
    except KeyboardInterrupt:
        reraise(signal.SIGINT)


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
