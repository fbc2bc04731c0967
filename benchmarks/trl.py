"""A whole GRPO step of Envwright beside one of TRL's ``GRPOTrainer``: same model, prompts, group size and tokens.

Ours is the laptop recipe on Ray with compiled layers: sample, judge, store, update, send the weights, check them. TRL
samples with transformers (it has no engine for CPUs), in an environment of its own, made once in the cache folder.
Blocks of steps, as long as the recipe's stages, take turns on the same cores.
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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from benchmarks.trl_peer import remainder
from cluster.machine import descendants
from environments.base import Failure, Task, Verdict
from environments.mapf_frozenlake import MapfFrozenLake
from orchestrator.config import RunConfig, dump, load
from orchestrator.progress import TrainProgress

ROOT = Path(__file__).resolve().parent.parent
RECIPE, LOCK = ROOT / "recipes" / "laptop.yaml", ROOT / "requirements" / "trl.txt"
BLOCKS = (2, 20, 100)
"""Steps that each side makes in turn, as stages of ours; the first are not counted. The others are as long as the
recipe's first and second stage: what a stage loses until its first batch is sampled is counted."""
FASTER = ("rollout.concurrency=256", "rollout.compile=true", "learner.compile=true")
"""What the recipe leaves out, since a demo is too short to gain by it."""
THREADS, MICRO_BATCH = 2, 256
"""TRL's compute threads, and its rows of one forward and backward pass (32 to 512 were equally fast)."""
LIKE_RAY = ("nice", "-n", "15")
"""Ray's workers run so: on a machine with other work both sides must wait alike."""
ALONE = ("-P", str(ROOT / "benchmarks" / "trl_peer.py"))
"""The script without its folder on the path, where a module called trl lies too."""
DEADLINE_S = 600.0
"""Longest wait for TRL to start, or to make a step."""


class Graded(MapfFrozenLake):
    """MAPF-FrozenLake with a reward that differs within every group, so that no row is left out of training."""

    def score(self, task: Task, completion: str, *, truncated: bool = False) -> Verdict | Failure:
        """The verdict with the reward that TRL's side gives too."""
        verdict = super().score(task, completion, truncated=truncated)
        if isinstance(verdict, Failure):
            return verdict
        return dataclasses.replace(verdict, reward=remainder(completion))


class Peer:
    """TRL in its own process; :meth:`step` lets it make one step."""

    def __init__(self, python: Path, folder: Path, config: RunConfig, prompts: Sequence[Any]) -> None:
        self._log = folder / "trl.log"
        settings = folder / "trl.json"
        shared = {
            "model": config.model.path,
            "prompts": prompts,
            "prompts_per_step": config.curriculum.prompts_per_step,
            "group_size": config.curriculum.group_size,
            "new_tokens": config.rollout.max_new_tokens,
            "lr": config.learner.lr,
            "clip_high": config.algorithm.clip_high,
        }
        settings.write_text(json.dumps({**shared, "micro_batch": MICRO_BATCH, "output": str(folder / "trl")}))
        self._pipe, theirs = Pipe()
        environment = os.environ | {"OMP_NUM_THREADS": str(THREADS), "HF_HUB_OFFLINE": "1", "PYTHONNOUSERSITE": "1"}
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*LIKE_RAY, str(python), *ALONE, str(theirs.fileno()), str(settings)],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdout=log,
                stderr=log,
            )
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
            why = f"gave no answer for {DEADLINE_S:g} s"
        except (EOFError, ConnectionError):
            why = f"ended with exit code {self._process.wait(DEADLINE_S)}"
        lines = "\n".join(self._log.read_text().splitlines()[-15:])
        raise RuntimeError(f"TRL {why}; the end of its log:\n{lines}")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True, slots=True)
class Turn:
    """A block of each side: seconds, and CPU seconds of all its processes, which other programs touch less."""

    steps: int
    ours_s: float
    theirs_s: float
    ours_cpu_s: float
    theirs_cpu_s: float


class TakingTurns(TrainProgress):
    """Hears of our steps; after the last of a stage TRL makes as many. Nothing of ours runs ahead of a stage's end."""

    def __init__(self, peer: Peer, tolerance: float, **options: Any) -> None:
        super().__init__(**options)
        self._peer, self._tolerance = peer, tolerance
        self.run: Any = None
        self.turns: list[Turn] = []
        self.values: list[Mapping[str, float]] = []

    def begin(self, stage: int, steps: int, done: int = 0) -> None:
        """The tasks are there; the first step begins."""
        super().begin(stage, steps, done)
        self.values.clear()
        self._started, self._cpu = time.perf_counter(), self._cpu_s()

    def update(self, done: int, values: Mapping[str, float]) -> None:
        """Our last step ends when every engine holds the new weights."""
        super().update(done, values)
        self.values.append(dict(values))
        if done < self._steps:
            return
        self.run.rollouts.settle()
        ours_s, between = time.perf_counter() - self._started, self._cpu_s()
        seconds, tokens = zip(*(self._peer.step() for _ in range(done)), strict=True)
        ended = self._cpu_s()
        mine = sum(v["rollout/tokens"] + v["rollout/prompt_tokens"] for v in self.values)
        if abs(sum(tokens) - mine) > self._tolerance * mine:
            raise RuntimeError(f"TRL saw {sum(tokens)} tokens, we {mine:g}: the times compare nothing")
        self.turns.append(Turn(done, ours_s, sum(seconds), between[0] - self._cpu[0], ended[1] - between[1]))

    def _cpu_s(self) -> tuple[float, float]:
        """CPU seconds so far of this process with its Ray actors, and of TRL."""
        theirs = self._peer.processes
        return cpu_seconds({os.getpid(), *descendants(os.getpid())} - theirs), cpu_seconds(theirs)


def run() -> dict[str, float]:
    """``speedup`` = TRL's seconds of all blocks ÷ ours, ``speedup_N`` of that of N steps, ``cpu_speedup`` of CPU time.

    Those are of completions that all run to the token limit, so that both sides have the same tokens. ``own_length_``:
    the recipe's warm-started model, whose completions end where it ends them; its weights stay as they are (a learning
    rate of 0 changes nothing in the work), so that both sides sample from one distribution.
    """
    from orchestrator.run import make_environment, model_directory

    with tempfile.TemporaryDirectory() as name:
        folder, recipe = Path(name), load(RECIPE)
        write_endless_model(folder / "endless", recipe)
        found = compare(folder / "limit", [f"model.path={folder / 'endless'}"], tolerance=0.0)
        own = model_directory(recipe, make_environment(recipe), lambda line: print(line, file=sys.stderr))
        ended = compare(folder / "own", [f"model.path={own}", "learner.lr=0"], tolerance=0.03)
        return found | {f"own_length_{key}": value for key, value in ended.items()}


def compare(folder: Path, overrides: Sequence[str], *, tolerance: float) -> dict[str, float]:
    """Both sides in turn on one model. Token counts of a block may differ by the share ``tolerance``."""
    from orchestrator.evidence import describe
    from orchestrator.run import make_environment, open_run
    from orchestrator.stage import train_stage
    from orchestrator.store import RunStore

    with ExitStack() as stack:
        folder.mkdir()
        blocks = [steps * load(RECIPE).curriculum.prompts_per_step for steps in BLOCKS]
        config = load(RECIPE, [
            *overrides, *FASTER, "environment.name=benchmarks.trl:Graded", f"output={folder}",
            f"curriculum.stages={[{'instances': count} for count in blocks]}", "engineer.replay_per_step=0",
            "checkpoint.every_steps=1000", "cluster.dashboard=false",
        ])  # fmt: skip
        environment = make_environment(config)
        knobs = environment.default_knobs()
        tasks = [t for k, n in enumerate(blocks) for t in environment.generate(knobs, config.seed, 0, n, stage=k)]
        peer = Peer(peer_python(), folder, config, [environment.prompt(task) for task in tasks])
        stack.callback(peer.close)
        info = describe(environment)
        progress = TakingTurns(peer, tolerance, solved=info.solved, best=info.words[0])
        store = RunStore.create(config.directory, dump(config))
        progress.run = stack.enter_context(open_run(config, store, progress))
        progress.run.sync()
        progress.run.state.knobs = knobs.model_dump(mode="json")
        for stage in range(len(blocks)):
            progress.run.state.stage, progress.run.state.step_in_stage = stage, 0
            train_stage(progress.run)
        return figures(progress, config)


def figures(progress: TakingTurns, config: RunConfig) -> dict[str, float]:
    """What the measured blocks say; the phases are the driver's, of the last block."""
    turns = progress.turns[1:]
    steps, *seconds = (sum(parts) for parts in zip(*map(dataclasses.astuple, turns), strict=True))
    ours, theirs, ours_cpu, theirs_cpu = (whole / steps for whole in seconds)
    samples = config.curriculum.prompts_per_step * config.curriculum.group_size
    phases = sorted({name for values in progress.values for name in values if name.startswith("time/")} - {"time/step"})
    return {
        "speedup": theirs / ours,
        **{f"speedup_{turn.steps}": turn.theirs_s / turn.ours_s for turn in turns},
        "cpu_speedup": theirs_cpu / ours_cpu,
        "samples_per_s": samples / ours,
        "trl_samples_per_s": samples / theirs,
        "step_s": ours,
        "trl_step_s": theirs,
        "step_cpu_s": ours_cpu,
        "trl_step_cpu_s": theirs_cpu,
        **{
            f"{name.removeprefix('time/')}_s": statistics.median(v[name] for v in progress.values if name in v)
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


def write_endless_model(directory: Path, config: RunConfig) -> None:
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
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps"]
        # As in `make setup`: a PyTorch from wherever pip looks first, else the CPU build from its own index.
        if subprocess.run([*pip, torch], check=False).returncode:
            subprocess.run([*pip, "--index-url", "https://download.pytorch.org/whl/cpu", torch], check=True)
        subprocess.run([*pip, "--require-hashes", "-r", str(LOCK)], check=True)
        stamp.touch()
    return python
