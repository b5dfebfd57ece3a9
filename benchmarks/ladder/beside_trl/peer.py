"""What the programs of TRL's side share: the settings, the trainers' arguments, the clock. Imports nothing of Lockstep.

    python -m benchmarks.ladder.beside_trl.peer_rows FOLDER      the folder has settings.json

The arguments beside the settings are those that cost a CPU least: fp32 without autocast, no gradient checkpointing, the
whole batch in one micro-batch, nothing logged, no progress bar, and no garbage collected but by the trainer itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
import trl  # pyright: ignore[reportMissingImports]
from datasets import Dataset  # pyright: ignore[reportMissingImports]
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast, TrainerCallback

from benchmarks.ladder.beside_trl.clock import StepClock

Settings = Mapping[str, Any]
"""The settings as `cases.Case.settings` writes them."""


class Saver(TrainerCallback):
    """Notes the end of each step, and saves the model after every so many."""

    def __init__(self, model: PreTrainedModel, folder: Path, every: int) -> None:
        self._model, self._folder, self._every = model, folder, every
        self.clock = StepClock()

    def on_step_end(self, *_: object, **__: object) -> None:
        step = self.clock.tick()
        if step % self._every == 0:
            self._model.save_pretrained(self._folder / str(step))


def read_settings(folder: Path) -> Settings:
    """Reads the settings of a run."""
    return json.loads((folder / "settings.json").read_text())


def read_rows(settings: Settings, *columns: str) -> Dataset:
    """Reads the run's rows, in the order in which they are to be learned from."""
    rows = [json.loads(line) for line in Path(settings["rows"]).read_text().splitlines()]
    return Dataset.from_list([{name: row[name] for name in columns} for row in rows])


def load_policy(settings: Settings) -> PreTrainedModel:
    """Loads the first policy in fp32."""
    return AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.float32)


def load_tokenizer(settings: Settings) -> PreTrainedTokenizerFast:
    """Loads the tokenizer, which pads prompts in front; by its class, since `AutoTokenizer` would take qwen2's."""
    return PreTrainedTokenizerFast.from_pretrained(settings["model"], padding_side="left")


def arguments(settings: Settings, folder: Path) -> dict[str, Any]:
    """The arguments that all trainers take."""
    return {
        "output_dir": str(folder / "trainer"), "per_device_train_batch_size": settings["batch"],
        "gradient_accumulation_steps": 1, "max_steps": settings["steps"], "seed": settings["seed"],
        "learning_rate": settings["lr"], "lr_scheduler_type": "constant", "adam_beta1": settings["betas"][0],
        "adam_beta2": settings["betas"][1], "adam_epsilon": settings["eps"], "weight_decay": settings["weight_decay"],
        "max_grad_norm": settings["max_grad_norm"] or 0.0, "use_cpu": True, "bf16": False,
        "gradient_checkpointing": False, "report_to": "none", "disable_tqdm": True, "logging_steps": 10_000,
        "save_strategy": "no", **settings["trl"],
    }  # fmt: skip


def program() -> str:
    """Name and versions."""
    return f"trl {trl.__version__}, transformers {transformers.__version__}, torch {torch.__version__}"
