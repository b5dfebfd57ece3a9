"""The other side of `benchmarks.preference_step`: TRL's DPO, SFT and reward trainers. Prints one JSON line.

The settings are those that cost it least on a CPU: fp32 without autocast, no gradient checkpointing, the whole batch in
one micro-batch, nothing logged or saved, no progress bar. TRL tokenizes all rows before the first step, which is not
counted; Lockstep tokenizes those of a step in the step. Padding is TRL's default: to the longest of a batch.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from typing import Any

import torch
import transformers
import trl  # pyright: ignore[reportMissingImports]
from datasets import Dataset  # pyright: ignore[reportMissingImports]
from transformers import LlamaForSequenceClassification

from benchmarks.baselines.trl_parts import StepClock
from benchmarks.preference_rows import BATCHES, figures, options, rows, tokenizer
from benchmarks.small_llama import VOCAB, causal_lm, llama_config


def trainer(args: argparse.Namespace, folder: str, clock: StepClock) -> Any:
    """TRL's trainer on the small Llama, with a reference of the same size for DPO."""
    common: dict[str, Any] = {
        "output_dir": folder, "per_device_train_batch_size": args.batch // args.accumulate,
        "gradient_accumulation_steps": args.accumulate, "max_steps": args.warmup + args.steps,
        "learning_rate": 1e-6, "lr_scheduler_type": "constant", "use_cpu": True, "bf16": False,
        "gradient_checkpointing": False, "report_to": "none", "disable_tqdm": True, "logging_steps": 1000,
        "save_strategy": "no", "seed": 0, "max_length": 512,
    }  # fmt: skip
    made = rows(BATCHES * args.batch, args.lengths)
    shared = {"model": causal_lm(llama_config()), "processing_class": tokenizer(), "callbacks": [clock]}
    if args.algorithm == "dpo":
        return trl.DPOTrainer(
            args=trl.DPOConfig(**common, beta=0.1),
            ref_model=causal_lm(llama_config()),
            train_dataset=Dataset.from_list(made),
            **shared,
        )
    if args.algorithm == "reward":
        head = llama_config()
        head.num_labels, head.pad_token_id = 1, VOCAB - 2
        with_head = {**shared, "model": LlamaForSequenceClassification(head)}
        return trl.RewardTrainer(args=trl.RewardConfig(**common), train_dataset=Dataset.from_list(made), **with_head)
    completions = [{"prompt": row["prompt"], "completion": row["chosen"]} for row in made]
    return trl.SFTTrainer(args=trl.SFTConfig(**common), train_dataset=Dataset.from_list(completions), **shared)


def tokens_of(row: dict[str, list[int]]) -> int:
    """Tokens that one row of the trainer's data puts through the model, padding not counted."""
    if "input_ids" in row:
        return len(row["input_ids"])
    prompt = len(row["prompt_ids"]) if "prompt_ids" in row else 0  # a reward model's answers begin with it
    return 2 * prompt + len(row["chosen_ids"]) + len(row["rejected_ids"])


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches of a step")
    args = parser.parse_args()
    torch.set_num_threads(1)
    clock = StepClock()
    with tempfile.TemporaryDirectory() as folder:
        learner = trainer(args, folder, clock)
        tokens = sum(tokens_of(row) for row in learner.train_dataset)
        done = learner.train()
    program = f"trl {trl.__version__}, transformers {transformers.__version__}, torch {torch.__version__}"
    print(json.dumps(figures(program, args, clock.ticks, tokens, done.training_loss)), flush=True)


if __name__ == "__main__":
    main()
