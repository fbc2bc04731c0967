"""TRL's side of the benchmark ``trl``: runs in TRL's own environment and imports nothing else of this project.

    python trl_peer.py PIPE CONFIG

``PIPE`` is the file descriptor of a ``multiprocessing`` connection, ``CONFIG`` a JSON file with ``model``, ``prompts``
(chats in the order of use) and the settings below. It makes one GRPO step each time it is told to, and reports it.
"""

from __future__ import annotations

import json
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def one_step_at_a_time(pipe: Connection) -> Any:
    """A callback that waits for a word before each step, and answers with its seconds and the tokens (prompts,
    completions) it saw."""
    from transformers import TrainerCallback

    class OneStepAtATime(TrainerCallback):
        def __init__(self) -> None:
            self._started, self._tokens = 0.0, 0

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """The prompts are read; sampling has not begun."""
            pipe.recv()
            self._started = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """The optimizer has stepped."""
            seconds = time.perf_counter() - self._started
            seen, self._tokens = state.num_input_tokens_seen - self._tokens, state.num_input_tokens_seen
            pipe.send({"seconds": seconds, "tokens": seen})

    return OneStepAtATime()


def remainder(text: str) -> float:
    """The reward on both sides: cheap, and different within every group, so that all rows are trained."""
    return sum(map(ord, text)) % 101 / 100


def reward(completions: list[list[dict[str, str]]], **_: Any) -> list[float]:
    """Rewards of chats that end in the completion."""
    return [remainder(completion[0]["content"]) for completion in completions]


def main(pipe: Connection, config: dict[str, Any]) -> None:
    """Train until the prompts are used up."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rows = config["prompts_per_step"] * config["group_size"]
    steps = len(config["prompts"]) // config["prompts_per_step"]
    arguments = GRPOConfig(
        output_dir=config["output"],
        use_cpu=True,
        bf16=False,
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=config["micro_batch"],
        gradient_accumulation_steps=rows // config["micro_batch"],
        num_generations=config["group_size"],
        max_completion_length=config["new_tokens"],
        temperature=1.0,
        learning_rate=config["lr"],
        loss_type="dapo",  # the mean over all tokens
        scale_rewards="none",
        epsilon_high=config["clip_high"],
        # On by default; it computes every activation twice to save memory that is not short here.
        gradient_checkpointing=False,
        shuffle_dataset=False,
        max_steps=steps,
        report_to=[],
        save_strategy="no",
        logging_steps=steps + 1,
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=config["model"],
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": chat} for chat in config["prompts"]]),
        callbacks=[one_step_at_a_time(pipe)],
    )
    pipe.send("ready")
    trainer.train()


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])), json.loads(Path(sys.argv[2]).read_text()))
