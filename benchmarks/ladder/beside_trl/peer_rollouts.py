"""TRL's GRPO, RLOO and distillation trainers on the ladder's sums; a program of `benchmarks.ladder.beside_trl`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import trl  # pyright: ignore[reportMissingImports]
from transformers import AutoModelForCausalLM

from benchmarks.ladder.beside_trl.peer import (
    Saver,
    arguments,
    load_policy,
    load_tokenizer,
    program,
    read_rows,
    read_settings,
)


def score(completions: list[str], answer: list[str], **_: object) -> list[float]:
    """1 for the right sum, word for word."""
    return [float(one.split() == right.split()) for one, right in zip(completions, answer, strict=True)]


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    settings = read_settings(folder)
    model = load_policy(settings)
    saver = Saver(model, folder, settings["every"])
    common = arguments(settings, folder) | {"shuffle_dataset": False}
    shared: dict[str, Any] = {
        "model": model, "processing_class": load_tokenizer(settings), "callbacks": [saver],
        "train_dataset": read_rows(settings, "prompt", "answer"),
    }  # fmt: skip
    if settings["algorithm"] == "distill":
        teacher = AutoModelForCausalLM.from_pretrained(settings["teacher"], dtype=torch.float32)
        shared["train_dataset"] = shared["train_dataset"].remove_columns("answer")
        trainer = trl.DistillationTrainer(args=trl.DistillationConfig(**common), teacher_model=teacher, **shared)
    elif settings["algorithm"] == "rloo":
        trainer = trl.RLOOTrainer(args=trl.RLOOConfig(**common), reward_funcs=score, **shared)
    else:
        trainer = trl.GRPOTrainer(args=trl.GRPOConfig(**common), reward_funcs=score, **shared)
    trainer.train()
    saver.clock.write(folder, program())


if __name__ == "__main__":
    main()
