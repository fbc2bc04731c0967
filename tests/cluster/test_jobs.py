import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from cluster import jobs
from cluster.config import ClusterConfig
from cluster.jobs import JobError, entrypoint
from cluster.session import connect


@pytest.fixture
def project(tmp_path):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "laptop.yaml").write_text("name: laptop\noutput: /shared/runs\n")
    return tmp_path


class FakeClient:
    """Stands in for Ray's job client; keeps what was submitted."""

    def __init__(self, states=("RUNNING", "SUCCEEDED")):
        self.states = list(states)
        self.sent = {}

    def submit_job(self, **sent):
        self.sent = sent
        return "raysubmit_1"

    def get_job_status(self, job):
        return SimpleNamespace(value=self.states.pop(0) if len(self.states) > 1 else self.states[0])

    async def tail_job_logs(self, job):
        for lines in ("step 1\n", "step 2\nstep 3\n"):
            yield lines

    def list_jobs(self):
        running = SimpleNamespace(value="RUNNING")
        return [
            SimpleNamespace(submission_id="old", status=running, entrypoint="a", start_time=1000),
            SimpleNamespace(submission_id=None, status=running, entrypoint="a driver, not a job", start_time=1500),
            SimpleNamespace(submission_id="new", status=running, entrypoint="b", start_time=2000),
        ]


@pytest.fixture
def client(monkeypatch):
    fake = FakeClient()
    monkeypatch.setattr(jobs, "_ask", lambda address, question: question(fake))
    return fake


def test_the_entrypoint_keeps_overrides_whole(project):
    command = entrypoint("recipes/laptop.yaml", ["environment.settings={agents: 2}", "seed=1"], project)
    assert shlex.split(command) == [
        *("python", "-m", "orchestrator", "train", "recipes/laptop.yaml"),
        *("environment.settings={agents: 2}", "seed=1"),
    ]


def test_a_recipe_that_is_missing_or_not_uploaded_is_refused(project):
    with pytest.raises(JobError, match="does not exist"):
        entrypoint("recipes/none.yaml", [], project)
    outside = project.parent / f"{project.name}-outside.yaml"
    outside.write_text("name: x\n")
    with pytest.raises(JobError, match="lies outside"):
        entrypoint(str(outside), [], project)


@pytest.mark.parametrize("output", ["runs", "./runs"])
def test_an_output_that_would_be_deleted_with_the_job_is_refused(project, output):
    with pytest.raises(JobError, match="output=/A/SHARED/FOLDER"):
        entrypoint("recipes/laptop.yaml", [f"output={output}"], project)
    assert "output=s3://bucket" in entrypoint(
        "recipes/laptop.yaml", [f"output={output}", "output=s3://bucket"], project
    )


def test_a_submission_leaves_out_what_a_job_does_not_need(project, client):
    assert jobs.submit("recipes/laptop.yaml", [], "http://head:8265", project) == "raysubmit_1"
    sent = client.sent["runtime_env"]
    assert sent["working_dir"] == str(project)
    assert {".venv/", "runs/", ".git/", "__pycache__/"} <= set(sent["excludes"])
    assert "PYTHONPATH" not in sent["env_vars"]
    assert int(sent["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"]) > 3


@pytest.mark.parametrize(("final", "code"), [("SUCCEEDED", 0), ("FAILED", 1), ("STOPPED", 130)])
def test_following_a_job_ends_with_its_exit_code(client, final, code):
    client.states = ["RUNNING", final]
    lines = []
    assert jobs.follow("raysubmit_1", write=lines.append) == code
    assert lines == ["step 1", "step 2\nstep 3"]


def test_jobs_are_listed_newest_first_without_foreign_drivers(client):
    assert [row.id for row in jobs.list_jobs()] == ["new", "old"]


def test_without_an_address_the_error_says_how_to_give_one(monkeypatch):
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    with pytest.raises(JobError, match="--address"):
        jobs.status("raysubmit_1")


def test_a_cluster_that_does_not_answer_is_named():
    with pytest.raises(JobError, match=r"127\.0\.0\.1:9"):
        jobs.status("raysubmit_1", "http://127.0.0.1:9")


STUB = """
import sys, time
from cluster.config import ClusterConfig
from cluster.session import connect

try:
    with connect(ClusterConfig(), "job-test") as session:
        import ray

        from_worker = ray.get(ray.remote(lambda: __import__("cluster.config").__file__).remote())
        print("arguments", sys.argv[1:], "local", session.local, "job", session.job, flush=True)
        print("uploaded", "working_dir_files" in from_worker, flush=True)
        if "wait=1" in sys.argv:
            time.sleep(120)
except KeyboardInterrupt as end:
    print("ended by", type(end).__name__, flush=True)
    sys.exit(3)
"""


@pytest.mark.slow
def test_a_job_runs_from_its_uploaded_folder_joins_the_cluster_and_stops_in_order(project, monkeypatch):
    shutil.copytree(Path(jobs.__file__).parent, project / "cluster")
    (project / "orchestrator").mkdir()
    (project / "orchestrator" / "__main__.py").write_text(STUB)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    with connect(ClusterConfig(object_store_mib=100), "cluster-of-the-jobs") as session:
        short = jobs.submit("recipes/laptop.yaml", ["seed=1"], session.dashboard, project)
        printed = []
        assert jobs.follow(short, session.dashboard, write=printed.append) == 0, printed
        text = "\n".join(printed)
        assert f"arguments ['train', 'recipes/laptop.yaml', 'seed=1'] local False job {short}" in text
        assert "uploaded True" in text

        long = jobs.submit("recipes/laptop.yaml", ["wait=1"], session.dashboard, project)
        deadline = time.monotonic() + 60
        while "uploaded" not in jobs.logs(long, session.dashboard):
            assert time.monotonic() < deadline, jobs.logs(long, session.dashboard)
            time.sleep(0.5)
        assert jobs.stop(long, session.dashboard)
        assert jobs.follow(long, session.dashboard, write=printed.append) == jobs.EXIT_CODES["STOPPED"]
        assert "ended by Terminated" in printed[-1]
        assert [row.id for row in jobs.list_jobs(session.dashboard)] == [long, short]
