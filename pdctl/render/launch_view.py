"""Shows a run as it happens: one line per transition, log lines with their process, the address once it serves."""

from __future__ import annotations

import json
import shlex
import threading
import time
from typing import TYPE_CHECKING

from pdctl.launch.deployment import ServerRole
from pdctl.launch.ending_reasons import span
from pdctl.launch.run import EventKind, RunEvent, StartStage

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable
    from pathlib import Path

    from pdctl.launch.deployment import Deployment, Spec
    from pdctl.launch.log_tail import LogLine
    from pdctl.launch.run import Run
    from pdctl.launch.targets.target import DryRun
    from pdctl.render.term import Term

HUES = {ServerRole.PREFILL: "blue", ServerRole.DECODE: "green", ServerRole.ROUTER: "magenta"}
DRY_RUN = "pdctl.launch/1"


class NamePrefix:
    """The width follows from the deployment, so that the column never jumps."""

    def __init__(self, deployment: Deployment, term: Term) -> None:
        self._term = term
        self.width = max(len(spec.name) for spec in deployment.specs)
        self._bar = term.symbol("│", "|")
        self._styles: dict[str, tuple[str, ...]] = {}
        for spec in deployment.specs:
            same = sum(1 for name in self._styles if name.startswith(spec.role.value))
            # Neighbours of one role differ in weight: sixteen base colours hold only one usable shade of each hue.
            self._styles[spec.name] = (HUES[spec.role], "bold") if same % 2 else (HUES[spec.role],)

    def name(self, name: str) -> str:
        """The coloured, padded name."""
        return self._term.style(f"{name:{self.width}}", *self._styles.get(name, ()))

    def style(self, name: str) -> str:
        """The style of the name, in rich's words."""
        return " ".join(self._styles.get(name, ()))

    def line(self, line: LogLine) -> str:
        return f"{self.name(line.source)} {self._term.style(self._bar, 'dim')} {line.text}"


class View:
    """Shows nothing."""

    def event(self, event: RunEvent) -> None:
        pass

    def line(self, line: LogLine) -> None:
        pass

    def close(self) -> None:
        """Leave the terminal as the next program wants it."""


class PlainView(View):
    """One line per transition, with its time. `attached`: Ctrl-C ends the run, so the way to end it faster is told."""

    def __init__(self, deployment: Deployment, term: Term, attached: bool) -> None:
        self.term = term
        self.prefix = NamePrefix(deployment, term)
        self._attached = attached
        self._guard = threading.RLock()

    def event(self, event: RunEvent) -> None:
        text = self.sentence(event)
        if text:
            stamp = self.term.style(time.strftime("%H:%M:%S", time.localtime(event.at)), "dim")
            with self._guard:
                self.term.write(f"{stamp} {text}")
                self.term.stream.flush()

    def line(self, line: LogLine) -> None:
        with self._guard:
            self.term.write(self.prefix.line(line))
            self.term.stream.flush()

    def sentence(self, event: RunEvent) -> str:
        """What is said of `event`; empty for those that say it elsewhere."""
        if event.kind is EventKind.SERVING:
            return ""  # the answer itself, on stdout
        name = self.prefix.name(event.subject)
        if event.kind is EventKind.STAGE:
            took = "" if event.stage is StartStage.STARTED else f"  {span(event.seconds)}"
            word = "started, " if event.stage is StartStage.STARTED else ""
            return f"{name} {word}{event.detail}{took}"
        if event.kind is EventKind.PAIR:
            return f"{event.subject} {event.detail}  {span(event.seconds)}"
        if event.kind is EventKind.STOPPING:
            again = "; Ctrl-C again ends everything now" if self._attached else ""
            busy = f" ({event.detail})" if event.detail else ""
            return f"stopping: router first, then decode and prefill{busy}{again}"
        if event.kind is EventKind.ENDED:
            return f"ended after {span(event.seconds)}; {event.detail}"
        if event.kind in (EventKind.STOPPED, EventKind.KILLED):
            return f"{name} {'killed' if event.kind is EventKind.KILLED else 'stopped'}  {span(event.seconds)}"
        mark = self.term.style(self.term.symbol("✗", "x"), "red") if event.kind is EventKind.DIED else ""
        return f"{name} {mark}{' ' if mark else ''}{event.detail}"


def ending(deployment: Deployment | None, term: Term) -> View:
    """How a run ends, seen from another shell; nothing of what a cluster ends by itself."""
    return PlainView(deployment, term, attached=False) if deployment is not None else View()


class LogPrinter:
    """Writes the lines that match, each with its process in front unless `raw`, or where the line names it itself."""

    def __init__(self, deployment: Deployment | None, term: Term, grep: re.Pattern[str] | None, raw: bool) -> None:
        self._term = term
        self._grep = grep
        self._prefix = NamePrefix(deployment, term) if deployment is not None and not raw else None

    def show(self, lines: Iterable[LogLine]) -> None:
        for line in lines:
            if self._grep is None or self._grep.search(line.text):
                self._term.write(self._prefix.line(line) if self._prefix else line.text)
        self._term.stream.flush()  # a reader behind a pipe follows too


def headline(deployment: Deployment, name: str, logs: Path, term: Term, where: str = "") -> None:
    """One line before anything is started. `where`: what is asked for, while the address is not known yet."""
    shape = term.style(deployment.shape, "bold")
    term.write(f"{name}: {shape}, {deployment.engine} engine, {where or deployment.url}; logs in {tilde(logs)}")
    rehearsal(deployment, term)


def rehearsal(deployment: Deployment, term: Term) -> None:
    """A deployment that breaks on purpose says so wherever it is shown."""
    if deployment.rehearsal:
        term.write(term.style("REHEARSAL", "yellow", "bold") + f": it fails on purpose: {deployment.rehearsal}")


def tilde(path: Path) -> str:
    """`path` as one would type it."""
    home = path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def banner(run: Run, term: Term) -> None:
    url = run.deployment.url
    body = {"model": run.deployment.served_name, "messages": [{"role": "user", "content": "Hello"}]}
    data = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    words = ["curl", "-s", f"{url}/v1/chat/completions", "-H", "content-type: application/json", "-d", data]
    ask = "pdctl ask Hello" if run.name == run.deployment.name else f"pdctl ask --run {run.name} Hello"
    term.write(f"serving at {term.style(url, 'bold')}")
    term.write(f"  {shlex.join(words)}")
    term.write(f"  {ask}")
    rehearsal(run.deployment, term)
    term.stream.flush()


def dry_run(found: DryRun, as_json: bool, term: Term) -> None:
    """Every command with its environment, each as one line to paste, after the scripts and steps that start them."""
    if found.deployment is None:
        term.write(found.manifests.rstrip())
        return
    if as_json:
        term.write(json.dumps(_dry_run_document(found, found.deployment), indent=2))
        return
    for file, text in found.scripts.items():
        term.write(f"# {file}\n{text.rstrip()}")
    for instance, words in found.steps:
        term.write(f"# step {instance}, from the supervisor on the first host")
        term.write(shlex.join(words))
    for spec in found.deployment.specs:
        ports = ", ".join(f"{port.purpose} {port.port}" for port in spec.ports)
        term.write(term.style(f"# {spec.name}: {ports}", "dim"))
        term.write(command_line(spec))


def command_line(spec: Spec) -> str:
    env = [f"{key}={shlex.quote(value)}" for key, value in spec.env]
    return " ".join([*env, shlex.join(spec.argv)])


def _dry_run_document(found: DryRun, deployment: Deployment) -> dict[str, object]:
    processes = [
        {
            "name": spec.name,
            "role": spec.role.value,
            "url": spec.url,
            "argv": list(spec.argv),
            "env": dict(spec.env),
            "ports": [{"port": port.port, "purpose": port.purpose} for port in spec.ports],
        }
        for spec in deployment.specs
    ]
    document: dict[str, object] = {
        "schema": DRY_RUN,
        "name": deployment.name,
        "url": deployment.url,
        "processes": processes,
    }
    if found.scripts:
        document["scripts"] = dict(found.scripts)
        document["steps"] = [{"name": instance, "argv": list(words)} for instance, words in found.steps]
    return document
