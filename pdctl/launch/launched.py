"""Whatever was launched, wherever it runs: find it, report its health, read its logs, stop it."""

from __future__ import annotations

import datetime as dt
import os
import time
from typing import TYPE_CHECKING, Protocol

from pdctl.errors import NotFoundError, NotReadyError, PdctlError, UsageError
from pdctl.launch import clusters, storage
from pdctl.launch.log_tail import POLL as LOG_POLL
from pdctl.launch.log_tail import LogFiles, history, parts
from pdctl.launch.run_choice import describe_ended, find_run, load_all
from pdctl.launch.run_directory import RunDir
from pdctl.launch.run_record import OVER, State
from pdctl.suggestions import one_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from pdctl.launch.clusters import ClusterHealth
    from pdctl.launch.deployment import Deployment
    from pdctl.launch.log_tail import LogLine, LogQuestion
    from pdctl.launch.run_health import RunHealth
    from pdctl.launch.run_record import Run, RunEvent

POLL = 0.5  # seconds between two checks while waiting


class Launched(Protocol):
    """Something that `pdctl launch` started. `deployment` None: its processes are not in our records (Kubernetes)."""

    @property
    def name(self) -> str: ...
    @property
    def deployment(self) -> Deployment | None: ...
    @property
    def running(self) -> bool:
        """Whether something may be left to stop."""

    def health(self) -> RunHealth | ClusterHealth: ...
    def await_ready(self, limit: float, tell: Callable[[tuple[str, ...]], None]) -> RunHealth | ClusterHealth:
        """Raise NotReadyError naming what is missing after `limit` seconds; call `tell` with it whenever it changes."""

    def stop(self, force: bool, limit: float, emit: Callable[[RunEvent], None]) -> str:
        """End it; return the sentence that says so."""

    def log_files(self) -> LogFiles:
        """Its logs as files on this machine. Raise UsageError or LaunchError if there are none."""

    def lines(self, asked: LogQuestion) -> Iterator[Iterable[LogLine]]:
        """Batches of lines; show each batch completely before asking for the next."""


def find_launched(root: Path, name: str | None, also: tuple[State, ...] = ()) -> Launched:
    """The deployment called `name`, or the only live one; `also`: see `find_run`. Raise NotFoundError or UsageError."""
    cluster = clusters.meant(root, name)
    return _as_launched(root, cluster) if cluster is not None else LaunchedRun(root, find_run(root, name, also))


def find_by(root: Path, words: Sequence[str]) -> tuple[Launched, Sequence[str]]:
    """Find by `[NAME] [INSTANCE]...`, ended runs too. The first word is a run unless it can only be an instance."""
    cluster, instances = clusters.meant_by(root, words)
    if cluster is not None:
        return _as_launched(root, cluster), instances
    named = bool(words) and os.path.lexists(RunDir.of(root, words[0]).path)
    if words and not named:
        return LaunchedRun(root, _with_instance(root, words[0])), words
    return LaunchedRun(root, find_run(root, words[0] if named else None, OVER)), words[1:]


def _as_launched(root: Path, cluster: clusters.Cluster) -> Launched:
    from pdctl.launch.targets.kubernetes import LaunchedCluster  # imported late: only a run on a cluster needs it

    return LaunchedCluster(root, cluster)


def _with_instance(root: Path, word: str) -> Run:
    """The only run, if it has an instance called `word`; otherwise the run called `word`."""
    try:
        run = find_run(root, None, OVER)
    except (UsageError, NotFoundError):
        return find_run(root, word)
    names = [process.name for process in run.processes]
    if word in names:
        return run
    try:
        return find_run(root, word)
    except PdctlError as error:
        what = f"`{word}` is no run, and no instance of {run.name}"
        known = ", ".join(each.name for each in load_all(root)[0])
        raise NotFoundError(what, f"{one_of(word, names)} of {run.name}; the runs are {known}") from error


class LaunchedRun:
    """A run on this machine or in a Slurm job."""

    def __init__(self, root: Path, run: Run) -> None:
        self._root = root
        self._run = run
        self._directory = RunDir.of(root, run.name)

    @property
    def name(self) -> str:
        return self._run.name

    @property
    def deployment(self) -> Deployment:
        return self._run.deployment

    @property
    def running(self) -> bool:
        return self._run.condition not in (State.STOPPED, State.FAILED) or bool(self._run.survivors)

    def health(self) -> RunHealth:
        from pdctl.launch import run_health  # imported late: reading logs needs no probes

        return run_health.probe(self._run, self._directory)

    def await_ready(self, limit: float, tell: Callable[[tuple[str, ...]], None]) -> RunHealth:
        """Raise at once for a run that is over. `tell` is not called: the error says what is missing."""
        del tell
        deadline = time.monotonic() + limit
        while not (found := self.health()).ready:
            if found.state in OVER:
                raise NotReadyError(f"{found.name} is {found.state.value}: {found.note}", f"pdctl logs {found.name}")
            if time.monotonic() >= deadline:
                missing = "".join(f"\n  {each.name}: {each.missing}" for each in found.instances if each.missing)
                raise NotReadyError(f"{found.name} is not ready after {limit:g} s{missing or ': still verifying'}")
            time.sleep(POLL)
            self._run = find_run(self._root, self.name)
        return found

    def stop(self, force: bool, limit: float, emit: Callable[[RunEvent], None]) -> str:
        from pdctl.launch import remote  # imported late, as above

        how = "; its supervisor had died" if self._run.condition is State.STALE else ""
        return f"{remote.stop(self._directory, self._run, force, limit, emit).name} is stopped{how}"

    def log_files(self) -> LogFiles:
        """The log files of all nodes of an instance, under the instance's name."""
        self._directory.look_into_logs()
        specs = self._run.deployment.specs
        names = {str(path): spec.instance for spec in specs for path in parts(self._directory.log(spec.name))}
        names = {path: name for path, name in names.items() if os.path.exists(path)}  # noqa: PTH110
        if not names:
            message = f"run `{self.name}` has no logs in {self._directory.logs}"
            raise UsageError(message, "give the paths of the logs instead")
        shown = {path: os.path.relpath(path, self._directory.path.parent) for path in names}
        writes = self._run.condition not in OVER or self._run.unsupervised
        lost = storage.storage_trouble(self._directory.path, self._directory.logs if writes else None)
        failed = lost and self._run.condition is State.FAILED
        if lost and not self._run.alive and not failed:
            lost += f"; {self.name} {describe_ended(self._run)}"
        from pdctl.launch import ending_reasons  # imported late: `logs` and `ls` need none

        if self._run.allocation is not None or not self._run.unsupervised:
            ended = f"run {self.name} {describe_ended(self._run)}" if failed else ""
            unwatched = ending_reasons.supervisor_stopped(self._run)
            return LogFiles(names, shown, lost, ended, ending_reasons.stopped_instances(self._run), unwatched)
        return LogFiles(names, shown, lost, ending_reasons.supervisor_died(self._run, self._directory))

    def lines(self, asked: LogQuestion) -> Iterator[Iterable[LogLine]]:
        known = [process.name for process in self._run.processes]
        for name in asked.instances:
            if name not in known:
                raise NotFoundError(f"{self.name} has no instance `{name}`", one_of(name, known))
        self._directory.look_into_logs()
        wanted = set(asked.instances or known)
        files = {name: file for name, file in self._directory.tails(self._run).items() if name in wanted}
        since = "" if asked.since is None else dt.datetime.fromtimestamp(asked.since).isoformat(" ", "milliseconds")
        yield history(files, asked.tail, since)
        ended = not asked.follow
        while not ended:
            ended = (
                not self._directory.load().alive
            )  # checked before reading: if the run has ended, the files are complete
            yield history(files)
            time.sleep(0.0 if ended else LOG_POLL)
