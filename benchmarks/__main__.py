"""``python -m benchmarks NAME``: a table for a person, then one JSON line for a program."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
from typing import Any

NAMES = {
    "rollout": "rollout actor ÷ raw vLLM on the same prompts and parameters; cost of seeds and log-probs",
    "learner": "one and two learner ranks ÷ a bare PyTorch loop on the same batches",
    "mfu": "model FLOPs utilisation of the learner on one GPU",
    "async": "the laptop recipe ahead ÷ in turn: time, compute, quality (nine runs, about an hour)",
    "trl": "a whole GRPO step ÷ one of TRL's GRPOTrainer: same model, prompts, group size and tokens",
    "sync": "weight synchronisation by stage, beside the same copies measured alone",
    "generator": "a million labelled boards on two processes: rate, distinctness, second pass, floor",
    "solver": "time per board by stratum, beside pymapf on the same boards",
    "solver_tail": "a million random boards: undecided ones, and the ten slowest (about an hour)",
    "pool": "labels per second through the solver pool of one and two processes ÷ in process",
}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = next((line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")), "unknown")
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version()}


def _cpuinfo() -> list[str]:
    try:
        with open("/proc/cpuinfo") as file:
            return file.read().splitlines()
    except OSError:
        return []


def main() -> None:
    """Run one benchmark."""
    described = "\n".join(f"  {name:<11} {text}" for name, text in NAMES.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", epilog=described, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=NAMES)
    name = parser.parse_args().name
    # One thread each: a benchmark compares two things on the same core, and libraries read this when first imported.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    figures: dict[str, float] = importlib.import_module(f"benchmarks.{name}").run()
    width = max(map(len, figures))
    for figure, value in figures.items():
        print(f"{figure:<{width}}  {value:,.6g}")
    print(json.dumps({"benchmark": name, "figures": figures, "machine": machine()}))


if __name__ == "__main__":
    main()
