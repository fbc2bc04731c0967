"""A whole GRPO step of Envwright beside one of TRL's ``GRPOTrainer``: same model, prompts, group size and tokens.

Ours is the laptop recipe's step as it trains, on Ray: sample, judge, store, update, send the weights, check them. TRL
samples with transformers (it has no engine for CPUs) and runs in an environment of its own, made once in the cache
folder. Steps take turns on the same cores. The model's end token has no logit, so every completion has all its tokens.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from cluster.machine import descendants
from environments.base import Failure, Task, Verdict
from environments.mapf_frozenlake import MapfFrozenLake
from orchestrator.progress import TrainProgress

ROOT = Path(__file__).resolve().parent.parent
RECIPE, LOCK = ROOT / "recipes" / "laptop.yaml", ROOT / "requirements" / "trl.txt"
WARM, MEASURED = 2, 7
"""Steps of each side before and while times are kept."""
THREADS, MICRO_BATCH = 2, 256
"""TRL's compute threads, and its rows of one forward and backward pass (32 to 512 were equally fast)."""
DEADLINE_S = 600.0
"""Longest wait for TRL to start, or to make a step."""


class Graded(MapfFrozenLake):
    """MAPF-FrozenLake with a reward that differs within every group, so that no row is left out of training."""

    def score(self, task: Task, completion: str, *, truncated: bool = False) -> Verdict | Failure:
        """The verdict with the reward that TRL's side gives too."""
        verdict = super().score(task, completion, truncated=truncated)
        if isinstance(verdict, Failure):
            return verdict
        return dataclasses.replace(verdict, reward=sum(map(ord, completion)) % 101 / 100)


class Peer:
    """TRL in its own process; :meth:`step` lets it make one step."""

    def __init__(self, python: Path, folder: Path, config: Mapping[str, Any]) -> None:
        self._log = folder / "trl.log"
        settings = folder / "trl.json"
        settings.write_text(json.dumps({**config, "output": str(folder / "trl")}))
        self._pipe, theirs = Pipe()
        environment = os.environ | {"OMP_NUM_THREADS": str(THREADS), "HF_HUB_OFFLINE": "1", "PYTHONNOUSERSITE": "1"}
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                # -P: the script's folder has a module called trl too.
                [str(python), "-P", str(ROOT / "benchmarks" / "trl_peer.py"), str(theirs.fileno()), str(settings)],
                pass_fds=[theirs.fileno()], env=environment, stdout=log, stderr=log,
            )  # fmt: skip
        theirs.close()
        self._receive()

    @property
    def processes(self) -> set[int]:
        """Its process and those below it."""
        return {self._process.pid, *descendants(self._process.pid)}

    def step(self) -> tuple[float, int]:
        """Seconds of one step, and its tokens of prompts and completions."""
        self._pipe.send("step")
        answer = self._receive()
        return answer["seconds"], answer["tokens"]

    def _receive(self) -> Any:
        try:
            if self._pipe.poll(DEADLINE_S):
                return self._pipe.recv()
        except (EOFError, ConnectionError):
            pass
        lines = "\n".join(self._log.read_text().splitlines()[-15:])
        raise RuntimeError(f"TRL ended, or gave no answer for {DEADLINE_S:g} s:\n{lines}")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True, slots=True)
class Turn:
    """A step of each side: seconds, and CPU seconds of all their processes, which other programs hardly touch."""

    ours_s: float
    theirs_s: float
    ours_cpu_s: float
    theirs_cpu_s: float
    values: Mapping[str, float]


class TakingTurns(TrainProgress):
    """Hears of every step of ours, and lets TRL make its own before the next."""

    def __init__(self, peer: Peer, **options: Any) -> None:
        super().__init__(**options)
        self._peer = peer
        self.run: Any = None
        self.turns: list[Turn] = []

    def begin(self, stage: int, steps: int, done: int = 0) -> None:
        """The tasks are there; the first step begins."""
        super().begin(stage, steps, done)
        self._started, self._cpu = time.perf_counter(), self._cpu_s()

    def update(self, done: int, values: Mapping[str, float]) -> None:
        """Our step ends when every engine holds the new weights."""
        self.run.rollouts.settle()
        ours, between = time.perf_counter() - self._started, self._cpu_s()
        theirs, tokens = self._peer.step()
        if tokens != (mine := values["rollout/tokens"] + values["rollout/prompt_tokens"]):
            raise RuntimeError(f"step {done}: TRL saw {tokens} tokens, we {mine:g}: the times compare nothing")
        cpu = self._cpu_s()
        self.turns.append(Turn(ours, theirs, between[0] - self._cpu[0], cpu[1] - between[1], values))
        super().update(done, values)
        self._started, self._cpu = time.perf_counter(), cpu

    def _cpu_s(self) -> tuple[float, float]:
        """CPU seconds so far of this process with its Ray actors, and of TRL."""
        theirs = self._peer.processes
        return cpu_seconds({os.getpid(), *descendants(os.getpid())} - theirs), cpu_seconds(theirs)


def run() -> dict[str, float]:
    """Medians over steps that take turns: ``speedup`` = TRL's seconds of a step ÷ ours, ``cpu_speedup`` the same of CPU
    seconds."""
    from orchestrator.config import dump, load
    from orchestrator.evidence import describe
    from orchestrator.run import make_environment, open_run
    from orchestrator.stage import train_stage
    from orchestrator.store import RunStore

    python = peer_python()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        prompts = load(RECIPE).curriculum.prompts_per_step
        overrides = [
            "environment.name=benchmarks.trl:Graded", f"model.path={folder / 'model'}", f"output={folder}",
            f"curriculum.stages=[{{instances: {(WARM + MEASURED) * prompts}}}]", "curriculum.max_lag=0",
            "engineer.replay_per_step=0", "cluster.dashboard=false",
        ]  # fmt: skip
        write_endless_model(folder / "model", load(RECIPE))
        config = load(RECIPE, overrides)
        environment = make_environment(config)
        tasks = environment.generate(environment.default_knobs(), config.seed, 0, config.curriculum.stages[0].instances)
        peer = Peer(
            python,
            folder,
            {
                "model": config.model.path,
                "prompts": [environment.prompt(task) for task in tasks],
                "prompts_per_step": prompts,
                "group_size": config.curriculum.group_size,
                "new_tokens": config.rollout.max_new_tokens,
                "micro_batch": MICRO_BATCH,
                "lr": config.learner.lr,
                "clip_high": config.algorithm.clip_high,
            },
        )
        stack.callback(peer.close)
        info = describe(environment)
        progress = TakingTurns(peer, solved=info.solved, best=info.words[0])
        store = RunStore.create(config.directory, dump(config))
        progress.run = stack.enter_context(open_run(config, store, progress))
        progress.run.sync()
        progress.run.state.knobs = environment.default_knobs().model_dump(mode="json")
        train_stage(progress.run)
    return figures(progress, prompts * config.curriculum.group_size)


def figures(progress: TakingTurns, samples: int) -> dict[str, float]:
    """What the measured steps say; ``samples`` is the number of completions of one."""
    turns = progress.turns[WARM:]
    ours, theirs = statistics.median(turn.ours_s for turn in turns), statistics.median(turn.theirs_s for turn in turns)
    phases = sorted({name for turn in turns for name in turn.values if name.startswith("time/")} - {"time/step"})
    return {
        "speedup": statistics.median(turn.theirs_s / turn.ours_s for turn in turns),
        "cpu_speedup": statistics.median(turn.theirs_cpu_s / turn.ours_cpu_s for turn in turns),
        "samples_per_s": samples / ours,
        "trl_samples_per_s": samples / theirs,
        "step_s": ours,
        "trl_step_s": theirs,
        **{
            f"{name.removeprefix('time/')}_s": statistics.median(t.values[name] for t in turns if name in t.values)
            for name in phases
        },
    }


def cpu_seconds(processes: Iterable[int]) -> float:
    """User and system time of processes together; those that have ended count nothing."""
    ticks = 0
    for pid in processes:
        with suppress(OSError):
            # The name, in brackets, may hold spaces; user and system ticks are the 12th and 13th field after it.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def write_endless_model(directory: Path, config: Any) -> None:
    """The recipe's model with random weights and an end token beyond its vocabulary, which it can never sample."""
    from orchestrator.evidence import describe, vocabulary
    from orchestrator.new_model import build_model, build_tokenizer, save
    from orchestrator.run import make_environment

    environment = make_environment(config)
    tokenizer = build_tokenizer(list(dict.fromkeys((*environment.vocabulary(), *vocabulary(describe(environment))))))
    model = build_model(config.model.new, len(tokenizer))
    size = model.config.vocab_size
    tokenizer.add_tokens([f"<spare{i}>" for i in range(size - len(tokenizer))])
    tokenizer.add_special_tokens({"eos_token": "<|never|>"})
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    save(model, tokenizer, directory)


def peer_python() -> Path:
    """The interpreter of TRL's environment, which is made in the cache folder if its lock or PyTorch is new."""
    torch = f"torch=={version('torch')}"
    digest = hashlib.sha256(LOCK.read_bytes() + torch.encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "envwright" / f"trl-{digest}"
    python, stamp = folder / "bin" / "python", folder / "complete"
    if not stamp.exists():
        print(f"installing TRL to {folder} (a few minutes, once)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--no-deps"]
        # As in `make setup`: a PyTorch from wherever pip looks first, else the CPU build from its own index.
        if subprocess.run([*pip, torch], check=False).returncode:
            subprocess.run([*pip, "--index-url", "https://download.pytorch.org/whl/cpu", torch], check=True)
        subprocess.run([*pip, "--require-hashes", "-r", LOCK], check=True)
        stamp.touch()
    return python
