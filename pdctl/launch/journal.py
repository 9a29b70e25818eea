"""The record of a run: every event is written to run.json first and then passed to whoever watches."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import TYPE_CHECKING

from pdctl.launch import procfs, storage
from pdctl.launch.run_record import EventKind, Exit, Process, Run, RunEvent, RunOutcome, StartStage, State, with_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pdctl.launch.deployment import Spec
    from pdctl.launch.run_directory import RunDir
    from pdctl.launch.runtime import Handle


def _unwatched(event: RunEvent) -> None:
    del event


class Journal:
    def __init__(self, directory: RunDir, run: Run, emit: Callable[[RunEvent], None]) -> None:
        self.directory = directory
        pid = os.getpid()
        self.run = dataclasses.replace(run, supervisor=pid, supervisor_started=procfs.identity(pid))
        self._emit = emit
        self._unsaved: OSError | None = None
        self._storage = storage.DiskWatch(directory.path, directory.logs)
        self._save()

    def note(
        self,
        kind: EventKind,
        subject: str = "",
        detail: str = "",
        *,
        stage: StartStage | None = None,
        seconds: float = 0.0,
        at: float = 0.0,
    ) -> None:
        generation = next((entry.generation for entry in self.run.processes if entry.name == subject), 1)
        event = RunEvent(at or time.time(), kind, subject, stage, detail, seconds, generation)
        self.run = dataclasses.replace(self.run, events=(*self.run.events, event))
        self._save()
        try:
            self._emit(event)
        except OSError:  # the terminal or the pipe is gone: the run continues unwatched
            self._emit = _unwatched

    def state(self, state: State, outcome: RunOutcome | None = None) -> None:
        """Set the state. It is saved with the next event, or at once if there is an outcome."""
        self.run = dataclasses.replace(self.run, state=state, outcome=outcome)
        if outcome is not None:
            self._save()

    def started(self, handle: Handle) -> None:
        process = Process(
            name=handle.spec.name,
            pid=handle.pid or None,
            started=handle.started,
            since=handle.since,
            generation=handle.generation,
            generation_start=handle.log_start,
            place=handle.spec.place,
        )
        self.run = with_process(self.run, process)

    def running(self, name: str) -> bool:
        """Whether the process was started and has not ended, as far as is recorded."""
        process = self.run.process(name)
        return process.generation > 0 and process.exit is None

    def located(self, name: str, pid: int) -> None:
        self.run = with_process(self.run, dataclasses.replace(self.run.process(name), pid=pid))
        self._save()

    def moved(self, specs: Iterable[Spec]) -> None:
        """Record new addresses; they are saved with the next event."""
        self.run = dataclasses.replace(self.run, deployment=self.run.deployment.moved(specs))

    def exited(self, name: str, exit: Exit) -> None:
        self.run = with_process(self.run, dataclasses.replace(self.run.process(name), exit=exit))

    def check_storage(self) -> None:
        """Note when logs begin to be lost and when they no longer are; retry the last save if it failed."""
        if self._unsaved is not None:
            self._save()
        change = self._storage.look(self._unsaved)
        if change:
            self.note(EventKind.STORAGE, detail=change)

    def _save(self) -> None:
        """Save the run. A full disk does not end it: the notice has its state until there is space again."""
        try:
            self.directory.save(self.run)
        except OSError as error:
            self._unsaved = error
            self._storage.keep(self.run, error)
            return
        if self._unsaved is not None:
            self._unsaved = None
            self._storage.saved()
