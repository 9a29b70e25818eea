"""An instance ended, and its own log cannot say of what: what its launcher wrote of it, and where to look."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.engines.sign import Sign
from pdctl.trace.room import Missing

if TYPE_CHECKING:
    from pdctl.logs.event import Event
    from pdctl.trace.deaths import Death

KERNEL = "sudo dmesg -T | grep -iE 'out of memory|killed process'"
NODE = re.compile(r"\bits node (\S+)")


def launchers_line(death: Death) -> Event | None:
    """`pdctl: decode-0 generation 1 was killed by SIGKILL …`, or that it was lost with its node."""
    return next((event for event in death.evidence if event.proves(Sign.DIED)), None)


def rehearsed(death: Death) -> Event | None:
    """`REHEARSAL: this instance ends itself …`: it was told to, and its own log says so."""
    return next((event for event in death.evidence if event.proves(Sign.REHEARSED)), None)


def fix(death: Death) -> str:
    """Fits how it was launched, as far as its log tells: pdctl writes such a line on a host or in a Slurm job."""
    name, line = death.instance.name, launchers_line(death)
    if rehearsed(death) is not None:
        return f"start {name} again: its end was a rehearsal"
    if line is None:
        return f"{KERNEL}   # on the host of {name}; on Kubernetes: kubectl describe pod"
    if not line.values.get("signal"):  # it was lost
        node = NODE.search(line.text)
        return f"scontrol show node {node[1]}" if node else "sinfo -R"
    if line.values.get("signal") == "SIGKILL":
        return f"{KERNEL}   # on the host of {name}: a line there is the OOM killer's"
    return f"tail -n 50 {line.place.path}"


def untold(death: Death) -> tuple[Missing, ...]:
    """What is left to find out. A launcher's line that names a signal, or the node, has told the rest."""
    name, line = death.instance.name, launchers_line(death)
    if rehearsed(death) is not None:
        return ()
    if line is None:
        how = f"`{KERNEL}` on its host, its exit code, on Kubernetes `kubectl describe pod`"
        return (Missing(f"what ended {name}: its log stops without a word", how),)
    if line.values.get("signal") == "SIGKILL":
        how = f"`{KERNEL}` on its host: the OOM killer writes there, a `kill -9` leaves no line"
        return (Missing(f"who sent SIGKILL to {name}: no process can log that of itself", how),)
    return ()
