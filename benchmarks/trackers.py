"""The cost of logging in a step: the run's own files alone, and with each tracker beside them.

    python -m benchmarks.trackers [--save]

Each row is a run of `lockstep train ppo_arithmetic` in a process of its own, on one thread, from a model of the same
size with random weights, so that nothing is trained first. Its `timings.jsonl` says how long each phase took. `log` is
the elapsed time of everything between two steps except validation and checkpoints: metrics, timings and samples written
to files, trackers called, the console. Its share is of the whole step, less validation and checkpoints. The first
step is left out: W&B and MLflow load more of themselves then. W&B is offline, MLflow in a local SQLite database.

CPU seconds are of the whole process with its helpers, W&B's among them, start and model included.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness import Row, environment, save
from lockstep.algorithms.sft.options import SFTRecipe
from lockstep.config.loading import load
from lockstep.report.log import TIMINGS, lines

ROOT = Path(__file__).resolve().parent.parent
TRACKERS = {
    "files only": [],
    "files + TensorBoard": ["trackers.tensorboard={}"],
    "files + W&B": ["trackers.wandb={}"],
    "files + MLflow": ["trackers.mlflow={}"],
}
NOT_OF_A_STEP = {"step", "log", "validate", "save"}


@dataclass(frozen=True)
class Cost:
    """Cost of one run: mean seconds of a step in logging, and in the rest; CPU seconds and memory of the process."""

    name: str
    log_s: float
    rest_s: float
    cpu_s: float
    peak_mb: float

    @property
    def share(self) -> float:
        return self.log_s / (self.log_s + self.rest_s)


def run(name: str, overrides: list[str], steps: int) -> Cost:
    recipe = load("sft_arithmetic").recipe
    assert isinstance(recipe, SFTRecipe)
    scratch = recipe.model.scratch
    assert scratch is not None, "the shipped warm start builds its model"
    arguments = ["ppo_arithmetic", f"model.scratch={scratch.model_dump_json()}", f"run.max_steps={steps}"]
    arguments += ["run.folder=run", "run.validate_every=0", "learner.device=cpu", "data.max_validation_samples=8"]
    command = [sys.executable, "-m", "lockstep", "train", *arguments, *overrides]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert process.stderr is not None, "it was asked for"
        told = process.stderr.read().decode()
        _, status, usage = os.wait4(process.pid, 0)
        if status != 0:
            raise RuntimeError(f"{' '.join(command)} ended with status {status}:\n{told[-2000:]}")
        timings = [row for row, _ in lines(Path(folder) / "run" / TIMINGS)][1:]
    return Cost(
        name=name,
        log_s=statistics.mean(row["log"] for row in timings),
        rest_s=statistics.mean(sum(row[phase] for phase in row.keys() - NOT_OF_A_STEP) for row in timings),
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_mb=usage.ru_maxrss * 1024 / 1e6,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="of each run; the first is not counted")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/trackers.json")
    args = parser.parse_args()
    costs = [run(name, overrides, args.steps) for name, overrides in TRACKERS.items()]
    where = environment(threads=1)
    print(where)
    print("| | ms per step in the log | ms per step in the rest | share | × files only | CPU s | peak MB |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for cost in costs:
        print(
            f"| {cost.name} | {cost.log_s * 1e3:.1f} | {cost.rest_s * 1e3:.0f} | {cost.share:.2%} | "
            f"{cost.log_s / costs[0].log_s:.1f} | {cost.cpu_s:.1f} | {cost.peak_mb:.0f} |"
        )
    if args.save:
        rows = [Row(cost.name, cost.rest_s, cost.log_s, cost.rest_s / cost.log_s) for cost in costs]
        print(save("trackers", where, rows, {"runs": [{**asdict(cost), "share": cost.share} for cost in costs]}))


if __name__ == "__main__":
    main()
