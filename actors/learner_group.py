"""The learner as the driver sees it: N DeepSpeed ranks in N Ray actors that live and die together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from actors.config import AlgorithmConfig, LearnerConfig
from actors.learner import LearnerRank
from actors.records import Batch, Row, UpdateResult
from actors.rollout import Place
from actors.waiting import await_all


class LearnerActor(LearnerRank):
    """A rank inside Ray: adds the object store to the rank's weights."""

    def publish(self) -> list[Any]:
        """Put the current weights into the object store; rank 0 returns the references of its buckets."""
        import ray

        from actors.weight_sync import pack

        if self.rank == 0:
            return [ray.put(bucket) for bucket in pack(self.weights())]
        for _ in self.weights():  # takes part in the gathering of shards, keeps nothing
            pass
        return []


class LearnerGroup:
    """All ranks as one. A lost rank ends the group: restart from the last checkpoint."""

    def __init__(
        self,
        model: str,
        config: LearnerConfig,
        algorithm: AlgorithmConfig,
        temperature: float,
        place: Place,
        total_updates: int | None = None,
    ) -> None:
        import ray

        self._config = config
        env = {"OMP_NUM_THREADS": str(config.threads)}
        if not config.gpus:
            env["DS_ACCELERATOR"] = "cpu"
        self._ranks = [
            ray.remote(LearnerActor)
            .options(**{**place(f"learner-{i}", 0), "runtime_env": {"env_vars": env}})
            .remote(model, config, algorithm, temperature, total_updates)
            for i in range(config.ranks)
        ]
        self.version = 0

    def start(self) -> None:
        """Join the ranks into one process group and build their engines."""
        what = "the learner ranks to start"
        host, port = self._await([self._ranks[0].address.remote()], what, starting=True)[0]
        self._await([rank.setup.remote(i, host, port) for i, rank in enumerate(self._ranks)], what, starting=True)

    def update(self, batch: Batch) -> UpdateResult:
        """One optimizer update on all ranks; the result is rank 0's (metrics are already global)."""
        import ray

        shared = ray.put(batch)
        result: UpdateResult = self._all("one optimizer update", "update", shared)[0]
        self.version = result.version
        return result

    def score(self, rows: Sequence[Row]) -> list[list[float]]:
        """Log-probs of the rows' generated tokens under the current weights."""
        scores: list[list[float]] = self._all("log-probs of probe tokens", "score", list(rows))[0]
        return scores

    def publish(self) -> list[Any]:
        """References of the current weights' buckets in the object store."""
        refs: list[Any] = self._all("the weights to be gathered", "publish")[0]
        return refs

    def save(self, directory: str) -> None:
        """Write a checkpoint that ``load`` of the same number of ranks reads."""
        self._all("a checkpoint to be written", "save", directory)

    def load(self, directory: str) -> None:
        """Continue from a checkpoint."""
        self.version = self._all("a checkpoint to be loaded", "load", directory)[0]

    def export(self, directory: str) -> None:
        """Write a Hugging Face model directory."""
        self._all("the model to be exported", "export", directory)

    def _all(self, what: str, method: str, *arguments: Any) -> list[Any]:
        return self._await([getattr(rank, method).remote(*arguments) for rank in self._ranks], what)

    def _await(self, refs: Sequence[Any], what: str, *, starting: bool = False) -> list[Any]:
        deadline = self._config.start_deadline_s if starting else self._config.deadline_s
        setting = "learner.start_deadline_s" if starting else "learner.deadline_s"
        return await_all(refs, what=what, deadline_s=deadline, setting=setting)
