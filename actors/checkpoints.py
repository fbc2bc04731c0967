"""DeepSpeed checkpoints of the learner, which load at another number of ranks.

ZeRO 1 to 3 write one part per rank. At another number of ranks the parts are first turned into a universal checkpoint
(Lian et al. 2024), which has one file per parameter; it is made when it is needed and removed once it is read.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

TAG = "state"
UNIVERSAL_TAG = "state_universal"
RECORD = "learner.json"


@dataclass(frozen=True, slots=True)
class LearnerState:
    """What DeepSpeed's files do not say: weight version, optimizer updates made, and how the files are sharded."""

    version: int
    updates: int
    ranks: int
    zero_stage: int
    adapters: bool


def save(engine: Any, directory: str, state: LearnerState, *, rank: int) -> None:
    """Write weights, optimizer and record. All ranks must call it. Frozen weights of a model with adapters stay out."""
    engine.save_checkpoint(directory, tag=TAG, exclude_frozen_parameters=state.adapters)
    if rank == 0:
        (Path(directory) / RECORD).write_text(json.dumps(asdict(state)))


def load(engine: Any, directory: str, now: LearnerState, *, rank: int) -> LearnerState:
    """Read what ``save`` wrote into an engine sharded as ``now`` says. All ranks must call it.

    Raises :class:`FileNotFoundError` without a checkpoint, :class:`ValueError` if it has another ZeRO stage or is of a
    model with adapters where this one has none (or the reverse).
    """
    record = Path(directory) / RECORD
    if not record.is_file():
        raise FileNotFoundError(f"no learner state under {directory}")
    state = LearnerState(**json.loads(record.read_text()))
    for setting, stored, here in (
        ("learner.zero_stage", state.zero_stage, now.zero_stage),
        ("learner.lora", state.adapters, now.adapters),
    ):
        if stored != here:
            raise ValueError(f"{directory} was written with {setting} = {stored}, this run has {here}: use the former")
    # Without ZeRO every rank holds everything, so there is nothing to deal out anew.
    if state.ranks == now.ranks or not state.zero_stage:
        engine.load_checkpoint(directory, tag=TAG, load_module_strict=not state.adapters)
        return state
    with _universal(engine, Path(directory), rank):
        engine.load_checkpoint(directory, tag=UNIVERSAL_TAG, load_module_strict=not state.adapters)
    # DeepSpeed gives all parts one and the same counter, which each part's step would raise.
    for part in engine.basic_optimizer.state.values():
        part["step"] = part["step"].clone()
    return state


@contextlib.contextmanager
def _universal(engine: Any, directory: Path, rank: int) -> Iterator[None]:
    """Within, the universal form of the checkpoint exists and the engine reads that form."""
    import torch.distributed as dist

    made = directory / UNIVERSAL_TAG
    if rank == 0:
        shutil.rmtree(made, ignore_errors=True)
        _convert(directory / TAG, made)
    dist.barrier()
    engine._config.load_universal_checkpoint = True
    try:
        yield
    finally:
        engine._config.load_universal_checkpoint = False
        dist.barrier()
        if rank == 0:
            shutil.rmtree(made, ignore_errors=True)
            (directory / f"latest_{made.name.removeprefix(f'{TAG}_')}").unlink(missing_ok=True)


def _convert(source: Path, target: Path) -> None:
    from deepspeed.checkpoint import ds_to_universal

    # One worker each: further ones would be forked from a process with threads.
    arguments = SimpleNamespace(
        input_folder=str(source),
        output_folder=str(target),
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        ds_to_universal.main(arguments)
