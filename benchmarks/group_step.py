"""CPU seconds of a step of GRPO, of RLOO and of on-policy distillation beside TRL 1.16.0's trainers of them.

    python3 -m venv benchmarks/.venv-trl-preference
    benchmarks/.venv-trl-preference/bin/pip install torch==2.13.0 trl==1.16.0 transformers==5.19.0 \\
        --extra-index-url https://download.pytorch.org/whl/cpu
    python -m benchmarks.group_step [--save]

Both sides train the same small Llama on 16 responses of 32 new tokens at temperature 1, to prompts of 16 tokens, in one
micro-batch and one update, by AdamW in fp32, on one thread: GRPO and RLOO on 2 prompts with 8 responses each, RLOO with
a reference, distillation on 16 prompts with one each, by the reverse KL over the whole vocabulary. Each side runs in a
process of its own, in turn. The clock is CPU time from one step to the next, and the median step counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, environment, save, side, table

TRL_PYTHON = Path(__file__).resolve().parent / ".venv-trl-preference" / "bin" / "python"
ALGORITHMS = ("grpo", "rloo", "distill")


def compare(algorithm: str, args: argparse.Namespace) -> tuple[Row, list[dict[str, Any]]]:
    """Runs both sides in turn. Returns the row of the table, and all figures."""
    sides = ((args.trl_python, "benchmarks.baselines.trl_group"), (Path(sys.executable), "benchmarks.lockstep_group"))
    options = ("--algorithm", algorithm, "--steps", str(args.steps))
    pairs = [[side(python, module, *options) for python, module in sides] for _ in range(args.rounds)]
    theirs, ours = (statistics.median(pair[place]["cpu_s"] for pair in pairs) for place in (0, 1))
    return Row(algorithm, theirs, ours, theirs / ours), [process for pair in pairs for process in pair]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", type=Path, default=TRL_PYTHON, help="an interpreter that has TRL 1.16.0")
    parser.add_argument("--rounds", type=int, default=3, help="processes per side and algorithm; the median counts")
    parser.add_argument("--steps", type=int, default=15, help="measured steps per process; the median counts")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/group_step.json")
    args = parser.parse_args()
    if not args.trl_python.exists():
        parser.error(f"there is no {args.trl_python}; --help has the two commands that make it, or give --trl-python")
    compared = [compare(algorithm, args) for algorithm in ALGORITHMS]
    rows, processes = [row for row, _ in compared], [process for _, seen in compared for process in seen]
    where = environment(threads=1)
    print(where)
    print(table(rows, "TRL 1.16.0", "CPU s per step"))
    for process in processes:
        print(f"{process['program'].split(',')[0]}: {process['algorithm']}: {process['peak_rss_mb']:.0f} MB at most")
    if args.save:
        print(save("group_step", where, rows, {"processes": processes}))


if __name__ == "__main__":
    main()
