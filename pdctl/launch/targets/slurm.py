"""Slurm: one batch job, whose script is the supervisor; every instance is a step on the hosts that the plan assigns."""

from __future__ import annotations

import dataclasses
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pdctl.errors import ExitCode, LaunchError
from pdctl.launch import deployment_plan, remote
from pdctl.launch.preflight import refuse
from pdctl.launch.run_directory import RunDir, check_name, home
from pdctl.launch.run_opening import open_ordered
from pdctl.launch.slurm import host_placement, queue, submission
from pdctl.launch.slurm.step import SlurmStep, lost_with, rank_command, ranks_file
from pdctl.launch.targets.target import DryRun
from pdctl.name_lookup import dial

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pdctl.launch.deployment import Deployment, Spec
    from pdctl.launch.run_record import Allocation, RunOutcome
    from pdctl.launch.runtime import Exited, Located
    from pdctl.launch.slurm.step import StepTask
    from pdctl.launch.targets.target import Display, LaunchOrder
    from pdctl.layout.instance_plan import InstancePlan, Plan
    from pdctl.topology.model import Topology

STEPS = "steps"  # directory of the commands of each step and of the records of its ranks
MOVES = 4  # sets of ports of an instance; the fifth generation uses the first set again
KNOCK = 0.5  # seconds for a port to accept a connection
LOOK = 5.0  # seconds between checks of the hosts


class SlurmTarget:
    """The login host's side: submit the job, wait for its turn, and watch it until it serves."""

    def __init__(self, order: LaunchOrder) -> None:
        self._order = order
        self.topology = order.topology
        self.plan = host_placement.planned(order.topology)
        self.cautions = self.plan.warnings
        self._deployment = deployment_plan.deployment(order.topology, self.plan)
        self.rehearsal = bool(self._deployment.rehearsal)
        self._name = order.name or self._deployment.name

    def dry_run(self) -> DryRun:
        """The batch script and every step as a launch would use them, with the plan's names in place of hosts."""
        steps: dict[str, list[Spec]] = {}
        for spec in self._deployment.specs:
            steps.setdefault(spec.instance, []).append(spec)
        components = host_placement.components(self.topology, self.plan)
        folder = submission.folder(self.topology, self._name) / STEPS
        planned = []
        for name, each in steps.items():
            flags = submission.planned_step(self.topology, components, self.plan, each)
            planned.append((name, [*flags, *rank_command(ranks_file(folder, f"{name}.g1"))]))
        return DryRun(self._deployment, self._scripts(), planned)

    def _scripts(self) -> dict[str, str]:
        return submission.scripts(self.topology, self.plan, self._name, submission.folder(self.topology, self._name))

    def launch(self, display: Display) -> RunOutcome | None:
        directory = self._open()
        for old in submission.holders(directory):
            (directory.path / old).unlink()
        for file, text in self._scripts().items():
            directory.keep(file, text)
        run = submission.submit(directory, directory.load(), self._order.patience)
        assert run.allocation is not None
        display.opened(directory, run, self._hosts(run.allocation))
        try:
            submission.await_start(run.allocation, self._order.patience, display.event)
            run = remote.await_serving(directory, lambda: not directory.load().alive, display.event)
            if self._order.detached:
                display.serving(run)
                return None
            ended = remote.watch(directory, display.event)
        except KeyboardInterrupt:
            remote.stop(directory, directory.load(), force=False, timeout=remote.patience(run), emit=display.event)
            raise
        outcome = ended.outcome or submission.outcome_of_ended_job(ended)
        # The signal ended the job, not this process, which watched it.
        return dataclasses.replace(outcome, code=outcome.code or int(ExitCode.FINDINGS), signal=0)

    def _open(self) -> RunDir:
        real = submission.folder(self.topology, self._name)
        obstacles = submission.check(self.topology, real)
        if obstacles:
            raise refuse(self._name, obstacles)
        submission.link(RunDir.of(home(os.environ), check_name(self._name)).path, real)
        opened = open_ordered(self._order, self.plan, self._deployment, lambda _: ())
        os.close(opened.lock)  # from here on the job's supervisor owns the run
        return opened.directory

    def _hosts(self, given: Allocation) -> str:
        hosts = len(self.plan.host_names)
        return f"{hosts} host{'s' if hosts > 1 else ''} of job{'s' if given.jobs[1:] else ''} {', '.join(given.jobs)}"


class SlurmRuntime:
    """The runtime inside the allocation."""

    moves_ports = True

    def __init__(self, run: str, directory: RunDir, topology: Topology, plan: Plan, allocation: Allocation) -> None:
        self._run = run
        self._folder = directory.path / STEPS
        self._topology = topology
        self._instances = {one.name: one for one in plan.instances}
        self._plan = plan
        self._allocation = allocation
        self._components = {seat.node: seat.component for seat in allocation.seats}
        self._steps: list[SlurmStep] = []
        self._watching = threading.Event()
        self.ends_at = allocation.ends_at

    def moved(self, specs: tuple[Spec, ...], generation: int) -> tuple[Spec, ...]:
        """Shift every port by a multiple of the stride, so that a lost but running rank cannot clash with a new one."""
        instance = self._instances.get(specs[0].instance)
        if instance is None or generation == 1:
            return specs
        shift = self._shift(instance, generation)
        numbers = instance.numbers
        moved = instance._replace(
            numbers=numbers._replace(
                http=numbers.http + shift,
                bootstrap=None if numbers.bootstrap is None else numbers.bootstrap + shift,
                dist=None if numbers.dist is None else numbers.dist + shift,
                nccl=None if numbers.nccl is None else numbers.nccl + shift,
            )
        )
        return deployment_plan.specs(moved, self._topology.readiness.path)

    def _shift(self, instance: InstancePlan, generation: int) -> int:
        claimed = [address for one in self._instances.values() for address in one.addresses]
        span = self._topology.ports.stride * max(claimed.count(address) for address in claimed)
        mine = _addresses(instance)
        taken = {place for one in self._instances.values() if one is not instance for place in _addresses(one)}
        if self._plan.router is not None:
            taken |= {(self._plan.router.address, port) for port, _ in self._plan.router.ports}
        for place in range(generation - 1, generation - 1 + MOVES):
            moved = {(address, port + place % MOVES * span) for address, port in mine}
            if max(port for _, port in moved) < 65536 and not moved & taken:
                return place % MOVES * span
        return 0

    def start(
        self, specs: tuple[Spec, ...], generation: int, logs: Sequence[Path], post: Callable[[Exited | Located], None]
    ) -> tuple[StepTask, ...]:
        hosts = [spec.place for spec in specs]
        parts = len(set(self._components.values()))
        part = host_placement.part(self._allocation, parts, self._components[hosts[0]])
        gres = submission.gres(self._topology, self._instances.get(specs[0].instance))
        step = SlurmStep(self._run, self._job(hosts[0]), self._folder, specs, generation, logs)
        try:
            step.start(submission.step(hosts, part, gres), post)
        except OSError as error:
            raise LaunchError(f"{specs[0].instance}: cannot start srun: {error.strerror}") from None
        self._steps.append(step)
        if not self._watching.is_set():
            self._watching.set()
            threading.Thread(target=self._watch, args=(post,), name="hosts", daemon=True).start()
        return step.ranks

    def _job(self, host: str) -> str:
        """The job id for steps on `host`: every component of a heterogeneous job has its own."""
        number = self._components[host]
        if self._allocation.others:
            return self._allocation.jobs[number]
        return os.environ.get(f"SLURM_JOB_ID_HET_GROUP_{number}", self._allocation.job)

    def _watch(self, post: Callable[[Exited | Located], None]) -> None:
        """Watch the hosts: srun waits for a lost host until Slurm notices the loss, so it may report it late."""
        names = ",".join(self._components)
        while not threading.Event().wait(LOOK):
            for node in queue.nodes(names):
                if node.down or node.silent:
                    self._lose(node, post)

    def _lose(self, node: queue.SlurmNode, post: Callable[[Exited | Located], None]) -> None:
        for step in list(self._steps):
            there = [rank for rank in step.ranks if rank.spec.place == node.name and rank.exit is None]
            for rank in there:
                if node.down or not _listens((rank.spec.host, rank.spec.port)):
                    step.lose(rank, lost_with(node), post)

    def beyond_help(self, specs: tuple[Spec, ...]) -> str:
        hosts = queue.nodes(",".join(spec.place for spec in specs))
        down = [node for node in hosts if node.down or node.silent]
        if down:
            return ", ".join(f"host {node.name} is {node.state}" for node in down)
        job = queue.leader(self._job(specs[0].place)) if self._allocation.others else None
        return f"job {job.id} is {job.state or 'gone'}" if job is not None and job.over else ""

    def sweep(self) -> tuple[str, ...]:
        """Cancel the other jobs; return the ranks lost with hosts that are down, which may still run there."""
        for job in self._allocation.others:
            queue.cancel(job)
        lost = [rank for step in self._steps for rank in step.ranks if rank.exit is not None and rank.exit.lost]
        down = {node.name for node in queue.nodes(",".join(self._components)) if node.down} if lost else set()
        return tuple(
            f"{rank.spec.name} on {rank.spec.place}, out of reach," for rank in lost if rank.spec.place in down
        )

    def busy_ports(self, deployment: Deployment) -> tuple[int, ...]:
        wanted = [(spec.host, port.port) for spec in deployment.specs for port in spec.ports]
        with ThreadPoolExecutor(max_workers=16) as pool:
            answers = pool.map(_listens, wanted)
            return tuple(port for (_, port), busy in zip(wanted, answers, strict=True) if busy)


def _addresses(instance: InstancePlan) -> set[tuple[str, int]]:
    return {(instance.node_address(port.node), port.port) for port in instance.ports}


def _listens(address: tuple[str, int]) -> bool:
    try:
        with dial(*address, KNOCK):
            return True
    except OSError:
        return False
