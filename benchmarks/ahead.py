"""Seconds of a PPO step with the sampler one step ahead, beside the same step in order.

    python -m benchmarks.ahead [--save] [--steps 8] [--rounds 3] [OPTION=VALUE …]

Runs of `lockstep train ppo_arithmetic` in turn, from a model of its size with random weights, so that nothing is
trained first. Every process computes on one thread: in order the sampler shares the learner's, one step ahead it has a
process of its own. The logs are measured: elapsed seconds are the phases of a step but for validation and
checkpoints, of all steps but the first, in which nothing is ahead yet, and the last, in which nothing is any more. CPU
seconds are of all processes, between those two. The best that can be had is the longer of what the sampler takes and
what the learner takes, so both are shown, too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from benchmarks.harness import Row, environment, save, table
from lockstep.config.loading import load
from lockstep.report.log import TIMINGS, lines
from lockstep.report.progress import BESIDE

ROOT = Path(__file__).resolve().parent.parent
BOTH = (
    "ppo.correction.kind=token_tis", "run.folder=run", "run.validate_every=0",
    "run.save_every=1000", "learner.device=cpu", "data.max_validation_samples=8",
)  # fmt: skip
SIDES = {"in order": "ppo.one_step_ahead=false", "one step ahead": "ppo.one_step_ahead=true"}
NOT_OF_A_STEP = {"step", "validate", "save"}


@dataclass(frozen=True)
class Cost:
    """Seconds of a step of one run: elapsed, of the sampler, of the learner (medians), and CPU of all (mean)."""

    wall_s: float
    sampler_s: float
    learner_s: float
    cpu_s: float


def run(side: str, steps: int, options: Sequence[str]) -> Cost:
    scratch = load("sft_arithmetic").training.model.scratch
    assert scratch is not None, "the shipped warm start builds its model"
    arguments = ["ppo_arithmetic", f"model.scratch={scratch.model_dump_json()}", f"run.max_steps={steps}"]
    command = [sys.executable, "-m", "lockstep", "train", *arguments, *BOTH, SIDES[side], *options]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "said").open("w+b") as said:
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=said, stderr=said)
        log = Path(folder) / "run" / TIMINGS
        first, last = (cpu_when(step, log, process) for step in (1, steps - 1))
        if process.wait() != 0:
            said.seek(0)
            raise RuntimeError(f"{' '.join(command)} ended with an error:\n{said.read().decode()[-2000:]}")
        counted = [row for row, _ in lines(log) if 1 < row["step"] < steps]
    return cost(counted, (last - first) / (steps - 2))


def cost(timings: Sequence[dict[str, float]], cpu_s: float) -> Cost:
    wall, sampler, waited = [], [], []
    for row in timings:
        wall.append(sum(seconds for name, seconds in row.items() if is_of_step(name)))
        waited.append(row.get("wait for rollouts", 0.0) + row.get("generate", 0.0))
        sampler.append(row.get(f"{BESIDE}generate", row.get("generate", 0.0)))
    learner = [all_ - idle for all_, idle in zip(wall, waited, strict=True)]
    return Cost(statistics.median(wall), statistics.median(sampler), statistics.median(learner), cpu_s)


def is_of_step(name: str) -> bool:
    return name not in NOT_OF_A_STEP and not name.startswith(BESIDE)


def cpu_when(step: int, log: Path, process: subprocess.Popen[bytes]) -> float:
    """CPU seconds of a run and its children, after a number of steps or at its end."""
    while process.poll() is None and not (log.exists() and len(log.read_bytes().splitlines()) >= step):
        time.sleep(0.01)
    used = 0.0
    with suppress(psutil.NoSuchProcess):
        main = psutil.Process(process.pid)
        used = sum(sum(one.cpu_times()[:2]) for one in (main, *main.children(recursive=True)))
    return used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("options", nargs="*", help="of the recipe, for both sides")
    parser.add_argument("--steps", type=int, default=8, help="of each run; the first and the last are not counted")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side; the median counts")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/ahead.json")
    args = parser.parse_args()
    runs = [{side: run(side, args.steps, args.options) for side in SIDES} for _ in range(args.rounds)]
    rows = []
    for name in ("wall_s", "cpu_s", "sampler_s", "learner_s"):
        plain, ahead = (statistics.median(getattr(one[side], name) for one in runs) for side in SIDES)
        rows.append(Row(name, plain, ahead, plain / ahead))
    where = environment(threads=1)
    print(where)
    print(table(rows, "in order", "a step").replace("Lockstep", "one step ahead"))
    if args.save:
        details = {"options": args.options, "runs": [{side: asdict(one[side]) for side in SIDES} for one in runs]}
        print(save("ahead", where, rows, details))


if __name__ == "__main__":
    main()
