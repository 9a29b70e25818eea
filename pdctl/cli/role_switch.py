"""`pdctl role-switch`: a prefill becomes a decode, or the other way round, while the fleet serves."""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING, Annotated

from pdctl.cli.parameters import argument, option
from pdctl.deployment_secret import DeploymentSecret
from pdctl.errors import ExitCode, NotFoundError, UsageError
from pdctl.fleet.observations import Endpoint
from pdctl.http_auth import key_of
from pdctl.launch import credentials, run_health, turned_instances
from pdctl.launch.deployment import ServerRole
from pdctl.launch.run_choice import find_run
from pdctl.launch.run_directory import RunDir, home
from pdctl.render import role_changes as view
from pdctl.render import term
from pdctl.suggestions import one_of
from pdctl.switch import switch_order, switch_refusals
from pdctl.switch.perform import Interrupted, Switch, steps
from pdctl.switch.switch_order import Standing, SwitchOrder, lease
from pdctl.switch.switch_refusals import refusals
from pdctl.units import flag_seconds

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.launch.run_record import Run
    from pdctl.switch.switch_order import Result, StepNote


class To(str, Enum):
    PREFILL = "prefill"
    DECODE = "decode"


class Form(str, Enum):
    TEXT = "text"
    JSON = "json"


def command(
    instance: Annotated[str, argument(metavar="INSTANCE", help="Its name in a run, or its URL.")],
    to: Annotated[To, option("--to", help="Target role.")],
    run: Annotated[
        str | None, option("--run", metavar="RUN", help="Run of `pdctl launch` that the instance belongs to.")
    ] = None,
    router: Annotated[
        list[str] | None, option("--router", metavar="URL", help="A router that lists the instance; repeatable.")
    ] = None,
    bootstrap_port: Annotated[
        int | None,
        option(
            min=1, max=65535, metavar="PORT", help="Bootstrap port of the new prefill; default: what it reports itself."
        ),
    ] = None,
    graph_memory: Annotated[
        float | None,
        option(min=0, metavar="GB", help="Memory for the CUDA graphs of a new decode; default: what its peers use."),
    ] = None,
    min_ready: Annotated[int, option(min=1, metavar="N", help="Ready instances that its old role must keep.")] = 1,
    drain_timeout: Annotated[str, option(metavar="TIME", help="Time limit for the instance to become idle.")] = "330s",
    switch_timeout: Annotated[str, option(metavar="TIME", help="Time limit for the switch itself.")] = "180s",
    canary_timeout: Annotated[
        str | None,
        option(
            metavar="TIME",
            help="Time limit for a request with every peer; default: 60s, for a new prefill of SGLang 400s.",
        ),
    ] = None,
    key_env: Annotated[str, option(metavar="VARIABLE", help="Variable that holds the servers' API key.")] = "",
    dry_run: Annotated[bool, option("--dry-run", help="Print the steps, and do nothing.")] = False,
    output: Annotated[Form, option("--output", "-o", help="Form of the answer.")] = Form.TEXT,
) -> ExitCode:
    """Switch the role of a running instance: drain, switch, verify, put back.

    \b
    pdctl role-switch prefill-1 --to decode
    pdctl role-switch decode-0 --to prefill --run blue --dry-run
    pdctl role-switch http://10.0.0.7:30000 --to prefill --router http://10.0.0.1:8000
    """
    found, name, url = _where(instance, run, bool(router))
    if found is not None:
        run_health.refuse_to_ask(found)
    routers = tuple(one.rstrip("/") for one in router or ()) or _routers(found)
    order = SwitchOrder(
        name=name,
        url=url,
        to=to.value,
        routers=routers,
        known=_endpoints_of_run(found),
        bootstrap_port=bootstrap_port,
        graph_memory=graph_memory,
        min_ready=min_ready,
        drain=flag_seconds("--drain-timeout", drain_timeout),
        turn=flag_seconds("--switch-timeout", switch_timeout),
        canary=flag_seconds("--canary-timeout", canary_timeout) if canary_timeout is not None else None,
        key=key_of(key_env) or (credentials.api_key(found.deployment) if found is not None else ""),
        secret=credentials.read(RunDir.of(home(os.environ), found.name).path)
        if found is not None
        else DeploymentSecret.from_environment(os.environ),
    )
    root = home(os.environ)
    with lease(root / "switches", (*routers, url)):
        return _switch(order, output, dry_run, root, RunDir.of(root, found.name) if found is not None else None)


def _switch(order: SwitchOrder, output: Form, dry_run: bool, root: Path, directory: RunDir | None) -> ExitCode:
    seen = switch_refusals.probe_fleet(order)
    obstacles = refusals(order, seen)
    if obstacles:
        if output is Form.JSON:
            term.out().write(view.refused_json(order, obstacles))
        else:
            view.refused(order, obstacles, term.err())
        return ExitCode.FINDINGS if seen.target.engine.reached else ExitCode.NOT_PROBED
    planned = tuple(steps(order, seen))
    if dry_run:
        if output is Form.JSON:
            term.out().write(view.plan_json(order, seen.target.role, planned))
        else:
            view.plan(order, seen.target.role, planned, term.out())
        return ExitCode.OK
    if output is Form.TEXT:
        view.head(order, seen.target.role, term.err())

    def told(note: StepNote) -> None:
        if output is Form.TEXT:
            view.note(note, term.err())

    try:
        result = Switch(order, seen, told).run()
    except Interrupted as interrupted:
        _record_result(order, interrupted.result, root, directory)
        _show(order, interrupted.result, output)
        raise
    _record_result(order, result, root, directory)
    _show(order, result, output)
    return ExitCode.OK if result.standing is Standing.SWITCHED else ExitCode.FINDINGS


def _show(order: SwitchOrder, result: Result, output: Form) -> None:
    if output is Form.JSON:
        term.out().write(view.result_json(order, result))
    else:
        view.result(result, term.out() if result.standing is Standing.SWITCHED else term.err())


def _record_result(order: SwitchOrder, result: Result, root: Path, directory: RunDir | None) -> None:
    switch_order.append(directory.path if directory is not None else root, order, result)
    if directory is not None and result.standing is Standing.SWITCHED:
        ranks = result.ranks if result.new_role == ServerRole.PREFILL.value else 0
        turned_instances.note_role(
            directory.path, result.name, turned_instances.TurnedInstance(ServerRole(result.new_role), ranks)
        )


def _where(instance: str, run: str | None, routed: bool) -> tuple[Run | None, str, str]:
    """The run, the instance's name and its URL. An instance given by URL belongs to a run only if --run is given.

    Raise UsageError for a URL without --run and --router, NotFoundError for an unknown instance.
    """
    root = home(os.environ)
    if "://" in instance:
        url = instance.rstrip("/")
        if run is None:
            if not routed:
                raise UsageError(f"{url}: who routes to it?", "--router URL, or --run NAME for an instance of a run")
            return None, url, url
        found = find_run(root, run)
        known = next((spec.name for spec in found.deployment.servers if spec.url == url), url)
        return found, known, url
    found = find_run(root, run)
    servers = found.deployment.servers
    spec = next((one for one in servers if one.name == instance), None)
    if spec is None:
        fix = one_of(instance, [one.name for one in servers])
        raise NotFoundError(f"run `{found.name}` has no instance `{instance}`", fix)
    return found, spec.name, spec.url


def _routers(found: Run | None) -> tuple[str, ...]:
    router = found.deployment.router if found is not None else None
    return (router.url,) if router is not None else ()


def _endpoints_of_run(found: Run | None) -> tuple[Endpoint, ...]:
    servers = found.deployment.servers if found is not None else ()
    return tuple(Endpoint(spec.name, spec.role.value, spec.url, spec.bootstrap_port) for spec in servers)
