import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cluster import machine
from cluster.config import ClusterConfig
from cluster.session import SessionError, auth_environment, cluster_address, connect, runtime_env

ROOT = Path(__file__).resolve().parents[2]
DRIVER = """
import time
from cluster.config import ClusterConfig
from cluster.session import connect

try:
    with connect(ClusterConfig(dashboard=False, object_store_mib=100), "signal-test") as session:
        print("ready", session.local, flush=True)
        time.sleep(120)
except KeyboardInterrupt as end:
    print("ended by", type(end).__name__, flush=True)
"""


@pytest.mark.parametrize(
    ("configured", "environ", "address"),
    [
        (None, {}, None),
        (None, {"RAY_ADDRESS": "10.0.0.1:6379"}, "10.0.0.1:6379"),
        ("auto", {"RAY_ADDRESS": "10.0.0.1:6379"}, "auto"),
        ("local", {"RAY_ADDRESS": "10.0.0.1:6379"}, None),
    ],
)
def test_the_recipe_comes_before_ray_address_and_both_before_a_local_cluster(configured, environ, address):
    assert cluster_address(ClusterConfig(address=configured), environ) == address


@pytest.mark.parametrize("address", ["ray://head:10001", "http://head:8265"])
def test_an_address_for_remote_clients_is_refused_with_the_way_to_submit(address):
    with pytest.raises(SessionError, match="envwright submit"), connect(ClusterConfig(address=address), "run"):
        pass


def test_actors_import_from_the_repository_and_get_no_secret():
    environ = {"HF_HUB_OFFLINE": "1", "HF_TOKEN": "x", "RAY_AUTH_TOKEN": "x", "PYTHONPATH": "/extra"}
    variables = runtime_env(environ, Path("/code"))["env_vars"]
    assert variables["PYTHONPATH"] == "/code:/extra"
    assert variables["HF_HUB_OFFLINE"] == "1"
    assert variables["VLLM_NO_USAGE_STATS"] == "1"
    assert not [name for name in variables if "TOKEN" in name or "AUTH" in name]


def test_an_installed_wheel_needs_no_path():
    assert "PYTHONPATH" not in runtime_env({}, Path("/env/lib/python3.11/site-packages"))["env_vars"]


def test_what_a_submitted_job_has_set_is_not_set_again():
    job = {"runtime_env": {"working_dir": "gcs://x.zip", "env_vars": {"VLLM_NO_USAGE_STATS": "1"}}}
    variables = runtime_env({"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job)}, Path("/code"))["env_vars"]
    assert "PYTHONPATH" not in variables and "VLLM_NO_USAGE_STATS" not in variables
    assert "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS" in variables


@pytest.mark.parametrize(
    ("local", "environ", "stored", "mode"),
    [
        (True, {}, False, "token"),
        (True, {"RAY_AUTH_MODE": "disabled"}, True, "disabled"),
        (False, {}, False, "disabled"),
        (False, {}, True, "token"),
        (False, {"RAY_AUTH_TOKEN": "x"}, False, "token"),
    ],
)
def test_the_authentication_mode_is_always_explicit(tmp_path, local, environ, stored, mode):
    if stored:
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text("secret")
    assert auth_environment(local, environ, home=tmp_path) == {"RAY_AUTH_MODE": mode}


def test_where_the_home_folder_is_missing_the_token_stays_in_memory(tmp_path):
    added = auth_environment(True, {}, home=tmp_path / "none")
    assert added["RAY_AUTH_MODE"] == "token" and len(added["RAY_AUTH_TOKEN"]) == 64


@pytest.mark.parametrize(
    ("number", "name"),
    [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "Terminated")],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_an_interrupted_local_session_leaves_no_process(number, name):
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": "."},
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == "ready True\n"
    started = machine.descendants(driver.pid)
    assert len(started) >= 2  # raylet and gcs_server at least
    driver.send_signal(number)
    assert driver.stdout.read() == f"ended by {name}\n"
    assert driver.wait(timeout=30) == 0
    deadline = time.monotonic() + 5.0
    while left := [pid for pid, at in started.items() if machine.is_running(pid, at)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.1)
