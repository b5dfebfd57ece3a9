"""Our side of `benchmarks.preference_step`: the steps that `lockstep train` runs, on the small Llama. One JSON line.

Reading rows from their file, rendering and tokenizing them, and all metrics are part of the step.
"""

from __future__ import annotations

import copy
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.preference_rows import BATCHES, figures, options, rows, tokenizer
from benchmarks.small_llama import causal_lm, llama_config
from lockstep.algorithms.dpo.step import DPOWorkers, dpo_step
from lockstep.algorithms.reward_model.step import RewardModelWorkers, reward_model_step
from lockstep.algorithms.sft.step import SFTWorkers, sft_step
from lockstep.algorithms.step import RunLength, StepResult
from lockstep.config import DataSection, LearnerSection, Optimizer, PairSection
from lockstep.data.demonstrations import Demonstrations
from lockstep.data.jsonl import JsonlIndex
from lockstep.data.pairs import Pairs
from lockstep.learners.torch.learner import TorchLearner
from lockstep.losses.preference import Preference
from lockstep.losses.reward import BradleyTerry
from lockstep.models import attention
from lockstep.models.heads import LogitsHead, ValueHead
from lockstep.types import skip_timing


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
    length = RunLength(BATCHES, None, batch)
    if algorithm == "dpo":
        reference = TorchLearner(LogitsHead(copy.deepcopy(lm)), section)
        pairs = DPOWorkers(policy, reference, Pairs(index, words, PairSection(**prompts), 512), skip_timing, 0)
        loss = Preference("dpo", beta=0.1)
        return lambda step: dpo_step(step, step * batch, pairs, loss, length, 0)
    if algorithm == "reward":
        learner = TorchLearner(ValueHead(lm.model, seed=0, head="reward"), section, Optimizer(lr=1e-6))
        rewarded = RewardModelWorkers(learner, Pairs(index, words, PairSection(**prompts), 512), skip_timing, 0)
        return lambda step: reward_model_step(step, step * batch, rewarded, BradleyTerry(), length, 0)
    chosen = Demonstrations(index, words, DataSection(**prompts, completion="{chosen}"), 512)
    workers = SFTWorkers(policy, chosen, skip_timing)
    return lambda step: sft_step(step, step * batch, workers, length, 0)


def main() -> None:
    args = options(__doc__).parse_args()
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
    program, loss = f"lockstep, torch {torch.__version__}", statistics.mean(losses)
    print(json.dumps(figures(program, args, ticks, sum(tokens[-BATCHES:]), loss)), flush=True)


if __name__ == "__main__":
    main()
