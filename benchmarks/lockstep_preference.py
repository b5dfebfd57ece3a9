"""Our side of `benchmarks.preference_step`: the steps that `lockstep train` runs, on the small Llama. One JSON line.

Reading rows from their file, rendering and tokenizing them, and all metrics are part of the step.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import peak_rss_mb
from benchmarks.preference_rows import BATCHES, rows, tokenizer, undisturbed
from benchmarks.small_llama import causal_lm, llama_config
from lockstep.algorithms.dpo import DPOWorkers, dpo_step
from lockstep.algorithms.sft import SFTWorkers, sft_step
from lockstep.algorithms.step import StepResult
from lockstep.data.demonstrations import Demonstrations
from lockstep.data.jsonl import JsonlIndex
from lockstep.data.pairs import Pairs
from lockstep.learners.torch.learner import TorchLearner
from lockstep.losses.preference import Preference
from lockstep.models import attention
from lockstep.models.heads import LogitsHead
from lockstep.recipe import DataSection, LearnerSection, Optimizer, PairSection
from lockstep.types import untimed


def step_of(folder: Path, algorithm: str, lengths: str, batch: int) -> Callable[[int], StepResult]:
    """The step as a function of its number."""
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows(BATCHES * batch, lengths)))
    index, words = JsonlIndex(file, "error"), tokenizer()
    prompts: dict[str, Any] = {"train": str(file), "prompt": "{prompt}", "max_prompt_tokens": 512}
    lm = causal_lm(llama_config()).eval()
    lm.set_attn_implementation(attention.NAME)
    section = LearnerSection(device="cpu")
    policy = TorchLearner(LogitsHead(lm), section, Optimizer(lr=1e-6))
    if algorithm == "dpo":
        reference = TorchLearner(LogitsHead(copy.deepcopy(lm)), section)
        pairs = DPOWorkers(policy, reference, Pairs(index, words, PairSection(**prompts), 512), untimed, 0)
        loss = Preference("dpo", beta=0.1)
        return lambda step: dpo_step(step, step * batch, pairs, loss, batch, 0)
    chosen = Demonstrations(index, words, DataSection(**prompts, completion="{chosen}"), 512)
    workers = SFTWorkers(policy, chosen, untimed)
    return lambda step: sft_step(step, step * batch, workers, batch, 0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=("dpo", "sft"), default="dpo")
    parser.add_argument("--lengths", choices=("even", "gsm8k"), default="gsm8k")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warmup", type=int, default=4)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    ticks, losses, tokens = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        step = step_of(Path(folder), args.algorithm, args.lengths, args.batch)
        for number in range(args.warmup + args.steps):
            result = step(number)
            metrics = result.metrics.floats()
            tokens.append(result.tokens)
            losses.append(metrics.get("train/loss", metrics.get("policy/loss")))
            ticks.append(time.process_time())
    steps = [b - a for a, b in pairwise(ticks)][args.warmup - 1 :]
    figures = {
        "program": f"lockstep, torch {torch.__version__}",
        "algorithm": args.algorithm,
        "lengths": args.lengths,
        "steps": len(steps),
        "tokens_per_pass": sum(tokens[-BATCHES:]),
        "cpu_s": undisturbed(steps),
        "cpu_median_s": statistics.median(steps),
        "loss": statistics.mean(losses),
        "peak_rss_mb": round(peak_rss_mb(), 1),
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
