"""CPU seconds of a step of DPO, of SFT and of a reward model beside TRL 1.16.0's trainers of them.

    python3 -m venv benchmarks/.venv-trl-preference
    benchmarks/.venv-trl-preference/bin/pip install torch==2.13.0 trl==1.16.0 transformers==5.19.0 \\
        --extra-index-url https://download.pytorch.org/whl/cpu
    python -m benchmarks.preference_step [--save]

Both sides train the same small Llama on the same rows, 16 to a step, in one micro-batch, by AdamW in fp32, on one
thread; DPO has a reference that scores every batch in the step. Each side runs in processes of its own, in turn. The
clock is CPU time from one step to the next, of the quickest of ten passes over the rows: ours includes reading and
tokenizing the rows, TRL's does not.

Rows are made of random words, with the lengths that questions and answers of GSM8K have, or all with their medians.
Where lengths differ, TRL computes on padding and Lockstep, but for attention, does not; where they do not, both do the
same products. Both sides must train on the same number of tokens; their losses are printed, since they must agree.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, environment, save, side, table

TRL_PYTHON = Path(__file__).resolve().parent / ".venv-trl-preference" / "bin" / "python"
NAMES = {"gsm8k": "lengths of GSM8K", "even": "equal lengths"}


def compare(algorithm: str, lengths: str, args: argparse.Namespace) -> tuple[Row, list[dict[str, Any]]]:
    """Runs both sides in turn. Returns the row of the table, and all figures."""
    sides = ((args.trl_python, "benchmarks.baselines.trl_preference"),
             (Path(sys.executable), "benchmarks.lockstep_preference"))  # fmt: skip
    options = ("--algorithm", algorithm, "--lengths", lengths, "--steps", str(args.steps))
    pairs = [[side(python, module, *options) for python, module in sides] for _ in range(args.rounds)]
    counts = {process["tokens_per_pass"] for pair in pairs for process in pair}
    if len(counts) != 1:
        raise RuntimeError(f"{algorithm}, {lengths}: the two sides do not train on the same tokens: {sorted(counts)}")
    theirs, ours = (statistics.median(pair[place]["cpu_s"] for pair in pairs) for place in (0, 1))
    return Row(f"{algorithm}, {NAMES[lengths]}", theirs, ours, theirs / ours), [p for pair in pairs for p in pair]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", type=Path, default=TRL_PYTHON, help="an interpreter that has TRL 1.16.0")
    parser.add_argument("--rounds", type=int, default=3, help="processes per side and setting; the median counts")
    parser.add_argument("--steps", type=int, default=40, help="measured steps per process")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/preference_step.json")
    args = parser.parse_args()
    if not args.trl_python.exists():
        parser.error(f"there is no {args.trl_python}; --help has the two commands that make it, or give --trl-python")
    compared = [compare(algorithm, lengths, args) for algorithm in ("dpo", "sft", "reward") for lengths in NAMES]
    rows, processes = [row for row, _ in compared], [process for _, seen in compared for process in seen]
    where = environment(threads=1)
    print(where)
    print(table(rows, "TRL 1.16.0", "CPU s per step"))
    for process in processes:
        print(f"{process['program'].split(',')[0]}: {process['algorithm']}, {process['lengths']}: "
              f"mean loss {process['loss']:.4f}, peak memory {process['peak_rss_mb']:.0f} MB")  # fmt: skip
    if args.save:
        print(save("preference_step", where, rows, {"processes": processes}))


if __name__ == "__main__":
    main()
