"""What this machine offers: cores, memory, disk, GPUs and ports, read from the kernel. Linux only."""

from __future__ import annotations

import math
import os
import shutil
import socket
import subprocess
from pathlib import Path

MIB = 2**20


def cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """CPU cores this process may use: its affinity, capped by the container's quota, at least one."""
    allowed = len(os.sched_getaffinity(0))
    return max(1, min(allowed, math.floor(_cpu_quota(cgroup) or allowed)))


def memory_mib(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that can still be taken, MiB: what the kernel calls available, capped by the container's limit."""
    free = _available_mib()
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is None or used is None:
        return free
    return max(0, min(free, (limit - used) // MIB))


def shared_memory_mib() -> int:
    """Free space of ``/dev/shm``, MiB: Ray's object store lives there. 0 if there is none."""
    return disk_mib(Path("/dev/shm"))


def disk_mib(folder: Path) -> int:
    """Free space for this user on the disk of ``folder``, MiB; 0 if the folder does not exist."""
    try:
        return shutil.disk_usage(folder).free // MIB
    except OSError:
        return 0


def gpus() -> list[str]:
    """One line per NVIDIA GPU that this process may use; empty without a driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        listing = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    found = [line.split(" (UUID")[0] for line in listing.splitlines() if line.startswith("GPU ")]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    return found[: len([part for part in visible.split(",") if part.strip() not in {"", "-1"}])]


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on ``host:port`` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def descendants(pid: int) -> dict[int, str]:
    """Process ids below ``pid`` with their start times; the pair stays unique when an id is used again."""
    children: dict[int, list[int]] = {}
    started: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            started[int(entry.name)] = fields[19]
    found: dict[int, str] = {}
    queue = [pid]
    while queue:
        for child in children.get(queue.pop(), []):
            found[child] = started[child]
            queue.append(child)
    return found


def is_running(pid: int, started: str) -> bool:
    """Whether the process seen as ``(pid, started)`` still runs; a zombie does not."""
    fields = _stat(pid)
    return fields is not None and fields[0] != "Z" and fields[19] == started


def _stat(pid: int) -> list[str] | None:
    # The command in parentheses may hold spaces; what follows it starts with the state, then the parent's id.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _cpu_quota(cgroup: Path) -> float | None:
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _available_mib() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) // 1024
    return 0
