"""CPU seconds that commands take to start, beside the import of torch and of one model of `transformers` alone.

    python -m benchmarks.startup [--repeats 3] [--save]

Each command runs in a new folder, the first time with an empty cache, and again with the cache that it left. CPU
seconds are those of the process and of all its children, the median of the repeats; commands take turns, the import
too. A run of one step is there for what comes before that step, and has the end of a run in it: its model, its report.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Row, environment, save, table

ROOT = Path(__file__).resolve().parent.parent
FLOOR = ("-c", "import torch, transformers.models.llama.modeling_llama")
COMMANDS = (
    "--help",
    "config ppo_quiz",
    "plan grpo_arithmetic --gpus 8 --memory 80GB",
    "train ppo_quiz --dry-run",
    "train ppo_arithmetic --dry-run",
    "train grpo_arithmetic --dry-run",
    "train sft_quiz run.max_steps=1",
)


def cpu_seconds(arguments: Sequence[str], folder: Path) -> float:
    """Runs Python of this working tree in a new folder beside the cache; the CPU seconds of it and its children."""
    with tempfile.TemporaryDirectory(dir=folder) as here:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=here,
            env={**os.environ, "PYTHONPATH": str(ROOT), "LOCKSTEP_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def start_twice(arguments: Sequence[str]) -> tuple[float, float]:
    """The CPU seconds with an empty cache, and then with what it holds."""
    with tempfile.TemporaryDirectory() as folder:
        return cpu_seconds(arguments, Path(folder)), cpu_seconds(arguments, Path(folder))


def measure_starts(commands: Sequence[str], repeats: int) -> list[Row]:
    """Measures each command, and the import, twice in every repeat."""
    programs = {"": FLOOR} | {command: ("-m", "lockstep", *command.split()) for command in commands}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for _ in range(repeats):
        for name, arguments in programs.items():
            found[name].append(start_twice(arguments))
    floor = statistics.median(seconds for pair in found.pop("") for seconds in pair)
    rows: list[Row] = []
    for command, pairs in found.items():
        for time, seconds in zip(
            ("the first time", "again"), map(statistics.median, zip(*pairs, strict=True)), strict=True
        ):
            rows.append(Row(f"`lockstep {command}`, {time}", floor, seconds, floor / seconds))
    return rows


def main(arguments: Sequence[str] | None = None, commands: Sequence[str] = COMMANDS) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args(arguments)
    rows = measure_starts(commands, options.repeats)
    print(table(rows, "torch and a model of transformers imported", "CPU s"))
    print(environment())
    if options.save:
        print(save("startup", environment(), rows, {"repeats": options.repeats}))


if __name__ == "__main__":
    main()
