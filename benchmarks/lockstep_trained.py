"""Our side of `benchmarks.group_step` for DPO and SFT: the steps of a run, as Python users start it.

Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import lockstep
from benchmarks.harness import WARMUP, peak_rss_mb
from benchmarks.training_rows import training_rows

ALGORITHMS = {"dpo": lockstep.DPO, "sft": lockstep.SFT}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=ALGORITHMS, required=True)
    parser.add_argument("--model", type=Path, required=True)
    for name in ("prompts", "prompt-tokens", "new-tokens", "minibatches", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--exact", action="store_true", help="without effect: nothing is sampled")
    args = parser.parse_args()
    ticks: list[float] = []
    sizes = {"global_batch_size": args.prompts // args.minibatches, "max_tokens": 512}
    with tempfile.TemporaryDirectory() as folder:
        ALGORITHMS[args.algorithm](
            model=args.model,
            train=training_rows(args),
            optimizer={"lr": 1e-6},
            run={"folder": folder, "max_steps": (WARMUP + args.steps) * args.minibatches + 1},
            **{args.algorithm: sizes},
        ).train(on_step=lambda step, metrics: ticks.append(time.process_time()))
    del ticks[-1]  # a step that saves the model
    steps = [b - a for a, b in pairwise(ticks[:: args.minibatches])][WARMUP - 1 :]
    result = {
        "cpu_s": statistics.median(steps),
        "peak_rss_mb": round(peak_rss_mb(), 1),
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
