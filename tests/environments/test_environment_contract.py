"""Every environment keeps the contract, on every machine, in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from environments.conformance import run_checks
from environments.registry import load_environment

CASES: list[dict[str, Any]] = [
    {"sizes": [3, 4, 5], "template": "compact"},
    {"sizes": [3, 6], "objective": "sum_of_costs"},
    {"sizes": [4, 5], "agents": 3},
    {"sizes": [3, 6], "agents": 4},
    {"sizes": [5, 7], "agents": 5},
    {"sizes": [7, 10]},
]


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_the_environment_keeps_the_contract(settings: dict[str, Any]) -> None:
    results = run_checks(load_environment("mapf_frozenlake", settings), "mapf_frozenlake", settings)
    assert not [str(result) for result in results if not result.ok]


DIGEST = """
from environments.base import digest
from environments.registry import load_environment
env = load_environment("mapf_frozenlake", {"sizes": [3, 5], "objective": "sum_of_costs"})
tasks = env.generate(env.default_knobs(), 3, 1000, 50)
print(digest([[t.id, t.stratum, t.knobs_digest, env.prompt(t)[0]["content"]] for t in tasks]))
"""


def test_tasks_are_the_same_in_every_process_and_under_every_hash_seed() -> None:
    printed = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(printed) == 1


GOLDEN = [
    '{"goals":[21,18],"holes":[0,2,15,19,24],"makespan":6,"n":5,"starts":[3,22],"sum_of_costs":8,'
    '"wait_makespan":false,"wait_sum_of_costs":false}',
    '{"goals":[22,17],"holes":[2,14,16,19,23],"makespan":5,"n":5,"starts":[1,11],"sum_of_costs":9,'
    '"wait_makespan":true,"wait_sum_of_costs":false}',
    '{"goals":[3,10],"holes":[5,13,14],"makespan":3,"n":4,"starts":[15,1],"sum_of_costs":6,'
    '"wait_makespan":false,"wait_sum_of_costs":false}',
]


def test_the_stream_is_the_one_that_earlier_releases_generated() -> None:
    environment = load_environment("mapf_frozenlake", {"sizes": [3, 4, 5]})
    tasks = environment.generate(environment.default_knobs(), 0, 0, 3)
    assert [task.payload for task in tasks] == GOLDEN


def test_importing_the_contract_loads_nothing_heavy() -> None:
    code = (
        "import sys, environments, environments.base, environments.registry\n"
        "print(sorted({'numpy', 'numba', 'torch', 'ray', 'vllm', 'solvers'} & set(sys.modules)))\n"
        "import environments.mapf_frozenlake\n"
        "print(sorted({'numba', 'torch', 'ray', 'vllm', 'solvers'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["[]", "[]"]
