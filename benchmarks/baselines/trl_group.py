"""The other side of `benchmarks.group_step`: TRL's GRPO, RLOO, DPO and SFT trainers.

Prints one JSON line.

The settings are those that cost it least on a CPU: fp32 without autocast, no gradient
checkpointing, the whole batch in one micro-batch, nothing logged or saved, no progress bar, and a
reward that costs nothing. DPO and SFT train a real model, given as a folder.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import trl  # pyright: ignore[reportMissingImports]
from datasets import Dataset  # pyright: ignore[reportMissingImports]

from benchmarks.baselines.trl_parts import CHEAPEST, StepClock, add_sizes, tokenizer
from benchmarks.harness import WARMUP
from benchmarks.small_llama import causal_lm, llama_config, random_prompts
from benchmarks.training_rows import training_rows

TRAINED = {"dpo": (trl.DPOConfig, trl.DPOTrainer), "sft": (trl.SFTConfig, trl.SFTTrainer)}


def trainer(args: argparse.Namespace, folder: str, clock: StepClock) -> Any:
    """TRL's trainer."""
    common: dict[str, Any] = {
        "output_dir": folder, "per_device_train_batch_size": args.prompts // args.minibatches,
        "max_steps": (WARMUP + args.steps) * args.minibatches, "learning_rate": 1e-6,
        "lr_scheduler_type": "constant", **CHEAPEST,
    }  # fmt: skip
    if args.algorithm in TRAINED:
        config, of_trl = TRAINED[args.algorithm]
        rows = Dataset.from_list(training_rows(args))
        return of_trl(args.model, args=config(**common), train_dataset=rows, callbacks=[clock])
    prompts = random_prompts([args.prompt_tokens] * args.prompts * 4, vocab=args.vocab)
    rows = [{"prompt": " ".join(f"t{token}" for token in row)} for row in prompts]
    size = llama_config(hidden=args.hidden, layers=args.layers, vocab=args.vocab)
    shared = {
        "model": causal_lm(size), "processing_class": tokenizer(args.vocab), "callbacks": [clock],
        "train_dataset": Dataset.from_list(rows),
    }  # fmt: skip

    def last_token(completion_ids: list[list[int]], **_: object) -> list[float]:
        return [ids[-1] / args.vocab for ids in completion_ids]

    grouped = {
        **common, "num_generations": args.generations, "temperature": 1.0,
        "max_completion_length": args.new_tokens, "steps_per_generation": args.minibatches,
    }  # fmt: skip
    if args.algorithm == "rloo":  # it reads its reference from a folder
        causal_lm(size).save_pretrained(f"{folder}/model")
        shared["model"] = f"{folder}/model"
        return trl.RLOOTrainer(args=trl.RLOOConfig(**grouped), reward_funcs=last_token, **shared)
    return trl.GRPOTrainer(args=trl.GRPOConfig(**grouped), reward_funcs=last_token, **shared)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=("grpo", "rloo", *TRAINED), required=True)
    parser.add_argument("--generations", type=int, default=8)
    parser.add_argument("--model", help="folder of the model of DPO and SFT")
    add_sizes(parser)
    args = parser.parse_args()
    clock = StepClock(args.minibatches)
    with tempfile.TemporaryDirectory() as folder:
        trainer(args, folder, clock).train()
    clock.print_result()


if __name__ == "__main__":
    main()
