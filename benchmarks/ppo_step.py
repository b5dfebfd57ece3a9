"""CPU seconds of one PPO step beside TRL 1.12.0, the last release of TRL that has a PPO trainer.

    python3 -m venv benchmarks/.venv-trl
    benchmarks/.venv-trl/bin/pip install torch==2.13.0 trl==1.12.0 transformers==5.19.0 \\
        --extra-index-url https://download.pytorch.org/whl/cpu
    python -m benchmarks.ppo_step [--save]

Both sides train the same small Llama on 16 prompts of 16 tokens with 32 new tokens each, at temperature 1, with a
reference policy whose KL (k1, 0.05) is part of the reward, one update of policy and critic per epoch, on one thread;
each side runs in a process of its own, in turn. The clock is CPU time of the whole step, from one step to the next.

TRL's trainer calls Python's garbage collector twice a step, which on a model this small is half of its time and
more; on a large one it would not matter. So there is a second table, in which all collecting is taken off TRL's figures
and nothing off ours.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, environment, save, side, table

TRL_PYTHON = Path(__file__).resolve().parent / ".venv-trl" / "bin" / "python"


def compare(epochs: int, rounds: int, steps: int, trl_python: Path) -> tuple[list[Row], list[dict[str, Any]]]:
    """Runs both sides in turn. Returns rows for TRL as it ships and without its collections, and all figures."""
    options = ("--epochs", str(epochs), "--steps", str(steps))
    pairs = [
        (
            side(trl_python, "benchmarks.baselines.trl_ppo", *options),
            side(Path(sys.executable), "benchmarks.lockstep_ppo", *options),
        )
        for _ in range(rounds)
    ]
    shipped = statistics.median(trl["cpu_s"] for trl, _ in pairs)
    without = statistics.median(trl["cpu_without_gc_s"] for trl, _ in pairs)
    ours = statistics.median(own["cpu_s"] for _, own in pairs)
    name = f"{epochs} epoch{'s' if epochs > 1 else ''}"
    rows = [Row(name, shipped, ours, shipped / ours), Row(name, without, ours, without / ours)]
    return rows, [process for pair in pairs for process in pair]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", type=Path, default=TRL_PYTHON, help="an interpreter that has TRL 1.12.0")
    parser.add_argument("--rounds", type=int, default=3, help="processes per side and setting; the median counts")
    parser.add_argument("--steps", type=int, default=15, help="measured steps per process; the median counts")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/ppo_step.json")
    args = parser.parse_args()
    if not args.trl_python.exists():
        parser.error(f"there is no {args.trl_python}; --help has the two commands that make it, or give --trl-python")
    compared = [compare(epochs, args.rounds, args.steps, args.trl_python) for epochs in (1, 4)]
    shipped, without = ([rows[i] for rows, _ in compared] for i in (0, 1))
    where = environment(threads=1)
    print(where)
    print(table(shipped, "TRL 1.12.0", "CPU s per PPO step"))
    print()
    print(table(without, "TRL 1.12.0 less its garbage collection", "CPU s per PPO step"))
    processes = [process for _, seen in compared for process in seen]
    if args.save:
        details = {"without_garbage_collection": [asdict(row) for row in without], "processes": processes}
        print(save("ppo_step", where, shipped, details))


if __name__ == "__main__":
    main()
