"""`pdctl launch -t slurm`: hand a topology in as one batch job, wait for its turn, then until it serves."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from typing import TYPE_CHECKING, NamedTuple

from pdctl.cli.exits import leave_unheard, reraise
from pdctl.launch import deployment_plan, remote
from pdctl.launch.preflight import refuse
from pdctl.launch.run_opening import open_run
from pdctl.launch.slurm import host_placement, script, submission
from pdctl.launch.state import RunDir, check_name, home
from pdctl.render import launch_view, plan_document, term
from pdctl.render.foreground import Foreground, LaunchProgress, choose

if TYPE_CHECKING:
    from pathlib import Path

    from pdctl.cli.launch import WrittenSource
    from pdctl.launch.deployment import Deployment, LaunchOptions, Spec
    from pdctl.launch.run import Run
    from pdctl.layout.instance_plan import Plan
    from pdctl.render.launch_view import View
    from pdctl.topology.model import Topology


class Wish(NamedTuple):
    """What the command line says, beside the topology. `patience`: seconds in the queue."""

    name: str
    written: WrittenSource
    options: LaunchOptions
    detach: bool
    progress: LaunchProgress
    follow: bool
    patience: float


def launch(plan: Plan, wish: Wish) -> None:
    """`plan` as `placement.planned` gave it."""
    topology = wish.written.topology
    deployment = deployment_plan.deployment(topology, plan)
    real = submission.folder(topology, wish.name)
    directory = _open(deployment, wish, real)
    directory.keep("topology.yaml", wish.written.text)
    directory.keep("plan.json", plan_document.to_json(plan))
    for old in submission.holders(directory):
        (directory.path / old).unlink()
    for file, text in _scripts(topology, plan, wish.name).items():
        directory.keep(file, text)
    run = submission.submit(directory, directory.load(), wish.patience)
    view = choose(wish.progress, deployment, term.err(), attached=not wish.detach)
    if wish.progress is not LaunchProgress.NONE:
        launch_view.headline(deployment, run.name, directory.logs, term.err(), _where(plan, run))
    _wait(directory, run, wish, view)


def _where(plan: Plan, run: Run) -> str:
    assert run.allocation is not None
    jobs, hosts = run.allocation.jobs, len(plan.host_names)
    return f"{hosts} host{'s' if hosts > 1 else ''} of job{'s' if jobs[1:] else ''} {', '.join(jobs)}"


def _open(deployment: Deployment, wish: Wish, real: Path) -> RunDir:
    topology = wish.written.topology
    obstacles = submission.check(topology, real)
    if obstacles:
        raise refuse(wish.name, obstacles)
    directory = RunDir.of(home(os.environ), check_name(wish.name))
    submission.link(directory.path, real)
    opened = open_run(
        home(os.environ),
        wish.name,
        deployment,
        wish.options,
        check=lambda _: (),
        argv=sys.argv,
        detached=wish.detach,
        files=wish.written.files,
        sets=wish.written.sets,
        logs=topology.readiness.logs_dir,
        secret=topology.security.deployment_secret,
    )
    os.close(opened.lock)  # from here on the job's supervisor is who keeps the run
    return directory


def _wait(directory: RunDir, run: Run, wish: Wish, view: View) -> None:
    assert run.allocation is not None
    shown = Foreground(directory, run, view, wish.follow) if not wish.detach else None
    event = shown.event if shown else view.event
    try:
        submission.await_start(run.allocation, wish.patience, event)
        run = remote.await_serving(directory, lambda: not directory.load().alive, event)
        if shown is None:
            launch_view.banner(run, term.out())
            term.out().write(f"  {shlex.join(['pdctl', 'down', run.name])}")
            return
        ended = remote.watch(directory, event)
    except KeyboardInterrupt:
        remote.stop(directory, directory.load(), force=False, timeout=remote.patience(run), emit=event)
        reraise(signal.SIGINT)
        raise
    finally:
        heard = True
        if shown is not None:
            heard = shown.close()
        else:
            view.close()
    outcome = ended.outcome or submission.gone(ended)
    if not heard:
        leave_unheard(outcome.code, outcome.signal)
    raise remote.failure(outcome)


def _scripts(topology: Topology, plan: Plan, name: str) -> dict[str, str]:
    """By file: the supervisor's job, and those that only have hosts."""
    parts = host_placement.components(topology, plan)
    real = submission.folder(topology, name)
    if not host_placement.apart(topology):
        return {submission.SCRIPT: script.batch(topology, parts, name, real)}
    held = {f"hold-{at:03}.sh": script.holder(topology, part, name, real) for at, part in enumerate(parts[1:], 1)}
    return {submission.SCRIPT: script.batch(topology, parts[:1], name, real), **held}


def _steps(deployment: Deployment) -> list[tuple[Spec, ...]]:
    names = dict.fromkeys(spec.instance for spec in deployment.specs)
    return [tuple(spec for spec in deployment.specs if spec.instance == name) for name in names]


def dry_run(topology: Topology, plan: Plan, name: str, as_json: bool) -> None:
    """The script and every step, as they would be; hosts go by the plan's names until Slurm has given some."""
    deployment = deployment_plan.deployment(topology, plan)
    components = host_placement.components(topology, plan)
    scripts = _scripts(topology, plan, name)
    steps = [(each[0].instance, script.planned_step(topology, components, plan, each)) for each in _steps(deployment)]
    if as_json:
        document = json.loads(launch_view.dry_run_json(deployment))
        document["scripts"] = scripts
        document["steps"] = [{"name": instance, "argv": words} for instance, words in steps]
        term.out().write(json.dumps(document, indent=2))
        return
    for file, text in scripts.items():
        term.out().write(f"# {file}\n{text.rstrip()}")
    for instance, words in steps:
        term.out().write(f"# step {instance}, from the supervisor on the first host")
        term.out().write(shlex.join([*words, "…"]))
    launch_view.dry_run(deployment, term.out())
