"""What a deployment holds: pages, rooms, sockets, processes, memory; counted before, during and after."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable

MIB = 1 << 20
SETTLED = 60.0  # seconds a process may still grow after its start: caches, arenas, the first long prompt


def family(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def role_of(process: psutil.Process) -> str:
    """A name that stays when the process is replaced by its successor."""
    words = process.cmdline()
    text = " ".join(words)
    if "pdctl.router" in text:
        return "router"
    kind = "rank" if "pdctl.engine.scheduler" in text else "server" if "pdctl.engine" in text else "launcher"
    mode = words[words.index("--disaggregation-mode") + 1] if "--disaggregation-mode" in words else ""
    port = words[words.index("--port") + 1] if "--port" in words else ""
    return " ".join(word for word in (mode, kind, port) if word)


@dataclass(frozen=True, slots=True)
class Held:
    """Of one process: open descriptors, sockets by state, children that nobody waited for."""

    files: int
    sockets: Counter[str]
    zombies: int


def held(process: psutil.Process) -> Held:
    states = Counter(connection.status for connection in process.net_connections("tcp"))
    zombies = sum(child.status() == psutil.STATUS_ZOMBIE for child in process.children())
    return Held(process.num_fds(), states, zombies)


def holdings(pid: int) -> dict[tuple[str, int], Held]:
    """By role and pid."""
    found: dict[tuple[str, int], Held] = {}
    for process in family(pid):
        try:
            found[role_of(process), process.pid] = held(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


@dataclass
class Memory:
    """RSS over time, by role and pid; only a process that lives through the end says anything about a leak."""

    samples: dict[tuple[str, int], list[tuple[float, int]]] = field(default_factory=dict)

    def look(self, pid: int) -> None:
        now = time.monotonic()
        for process in family(pid):
            try:
                key = (role_of(process), process.pid)
                self.samples.setdefault(key, []).append((now, process.memory_full_info().uss))
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue

    def slopes(self) -> dict[str, float]:
        """MiB a minute of each process that was watched for two minutes after its first one, by least squares."""
        found: dict[str, float] = {}
        for (role, pid), samples in self.samples.items():
            late = [(at, size) for at, size in samples if at > samples[0][0] + SETTLED]
            if len(late) >= 10 and late[-1][0] - late[0][0] >= 2 * SETTLED:
                found[f"{role} pid {pid}"] = round(slope(late) * 60 / MIB, 3)
        return found

    def peaks(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for (role, _), samples in self.samples.items():
            found[role] = max(found.get(role, 0.0), round(max(size for _, size in samples) / MIB, 1))
        return found


def slope(samples: list[tuple[float, int]]) -> float:
    mean_x = sum(x for x, _ in samples) / len(samples)
    mean_y = sum(y for _, y in samples) / len(samples)
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread if spread else 0.0


def engine_leaks(url: str) -> list[str]:
    """What an idle instance still holds; empty when that is nothing."""
    try:
        httpx.post(f"{url}/flush_cache", timeout=10)  # pages of the prefix cache are held on purpose
        rooms = httpx.get(f"{url}/debug/rooms", timeout=10).json()
        info: dict[str, Any] = httpx.get(f"{url}/server_info", timeout=10).json()
    except (httpx.HTTPError, ValueError) as error:
        return [f"{url} does not answer: {type(error).__name__} {error}"]
    leaks = [f"{url}: {len(room_list(rooms))} rooms: {str(rooms)[:300]}"] if room_list(rooms) else []
    for state in info["internal_states"]:
        if state["free_pages"] != state["num_pages"]:
            leaks.append(f"{url}: {state['num_pages'] - state['free_pages']} of {state['num_pages']} pages are out")
        slots = 2 * int(state["effective_max_running_requests_per_dp"])
        if state["free_metadata_slots"] != slots:
            leaks.append(f"{url}: {slots - state['free_metadata_slots']} of {slots} metadata slots are out")
    return leaks


def room_list(answer: Any) -> list[Any]:
    if isinstance(answer, list):
        return answer
    return [room for value in answer.values() if isinstance(value, list) for room in value]


def socket_leaks(before: dict[tuple[str, int], Held], after: dict[tuple[str, int], Held]) -> list[str]:
    """Sockets and descriptors that grew; half-closed ones are leaks by themselves."""
    usual: dict[str, Held] = {role: one for (role, _), one in before.items()}
    leaks: list[str] = []
    for (role, pid), now in after.items():
        then = usual.get(role)
        for state in ("CLOSE_WAIT", "SYN_SENT"):
            if now.sockets[state]:
                leaks.append(f"{role} pid {pid}: {now.sockets[state]} sockets in {state}")
        if then is not None and now.files > then.files + slack(then.files):
            leaks.append(f"{role} pid {pid}: {now.files} descriptors, {then.files} before; sockets {dict(now.sockets)}")
        if now.zombies:
            leaks.append(f"{role} pid {pid}: {now.zombies} zombies")
    return leaks


def slack(files: int) -> int:
    """Idle keep-alive connections come and go."""
    return max(6, files // 4)


def survivors(seen: Iterable[int], home: Path, ports: Iterable[int]) -> list[str]:
    """Processes of the run that outlive it, ports still bound, shared memory left behind."""
    left: list[str] = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            ours = process.pid in seen or process.environ().get("PDCTL_HOME") == str(home)
        except psutil.Error:  # it has just ended, or belongs to somebody else
            continue
        if ours and process.pid != os.getpid() and "pdctl" in words:
            left.append(f"process {process.pid}: {words[:160]}")
    for port in ports:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                left.append(f"port {port} is still bound")
    return left


def leftovers(seen: Iterable[int]) -> list[str]:
    """Directories with sockets of processes of the run."""
    base = Path(tempfile.gettempdir())
    return [f"{path} is left" for pid in sorted(seen) for path in base.glob(f"pdctl-{pid}-*")]
