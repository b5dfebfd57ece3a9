"""TRL's SFT, DPO and reward trainers on the ladder's rows; a program of `benchmarks.ladder.beside_trl`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import trl  # pyright: ignore[reportMissingImports]
from transformers import AutoModelForSequenceClassification

from benchmarks.ladder.beside_trl.peer import (
    Saver,
    arguments,
    load_policy,
    load_tokenizer,
    program,
    read_rows,
    read_settings,
)


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    settings = read_settings(folder)
    algorithm = settings["algorithm"]
    if algorithm == "reward_model":
        model = AutoModelForSequenceClassification.from_pretrained(settings["model"], num_labels=1, dtype=torch.float32)
    else:
        model = load_policy(settings)
    saver = Saver(model, folder, settings["every"])
    common = arguments(settings, folder) | {"train_sampling_strategy": "sequential"}
    shared: dict[str, Any] = {"model": model, "processing_class": load_tokenizer(settings), "callbacks": [saver]}
    if algorithm == "sft":
        rows = read_rows(settings, "prompt", "completion")
        trainer = trl.SFTTrainer(args=trl.SFTConfig(**common), train_dataset=rows, **shared)
    elif algorithm == "dpo":
        rows = read_rows(settings, "prompt", "chosen", "rejected")
        reference = load_policy(settings)
        trainer = trl.DPOTrainer(args=trl.DPOConfig(**common), ref_model=reference, train_dataset=rows, **shared)
    else:
        rows = read_rows(settings, "prompt", "chosen", "rejected")
        trainer = trl.RewardTrainer(args=trl.RewardConfig(**common), train_dataset=rows, **shared)
    trainer.train()
    saver.clock.write(folder, program())


if __name__ == "__main__":
    main()
