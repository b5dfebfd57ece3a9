"""The recipes for pairs, teachers and students of one's own, with a small model: a dry run, and two
steps.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_rows import CHAT
from row_files import write_rows
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from lockstep.config.loading import load_recipe
from lockstep.report.log import read_metrics
from lockstep.run.dry_run.dry_run import dry_run
from lockstep.run.train import train_recipe

Folder = Callable[[str, int], Path]
HERE = [
    "learner.device=cpu",
    "learner.dtype=fp32",
    "run.max_steps=2",
    "run.folder=run",
    "run.num_logged_samples=1",
]
"""What a machine without GPUs and few rows ask for; all else is the recipe's."""


@pytest.fixture
def chat_model(assets: Path, in_tmp: Path) -> Folder:
    """`chat_model(name, seed)` is a folder of the small real model with a chat template, each
    weight a little moved.
    """

    def made(name: str, seed: int) -> Path:
        folder = Path(shutil.copytree(assets / "models/stories260K/hf", name))
        (folder / "chat_template.jinja").write_text(CHAT)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 3072}))
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.02 * torch.randn(weight.shape, generator=generator)
        model.save_pretrained(folder)
        return folder

    return made


def write(name: str, rows: list[dict[str, Any]]) -> None:
    write_rows(name, rows)


def test_reward_model_chat_recipe_trains_on_user_pairs(chat_model: Folder) -> None:
    def pairs(numbers: range) -> list[dict[str, Any]]:
        answers = (
            {"prompt": f"Who is there, {n}?", "chosen": f"Lily and {n} cats.", "rejected": "No."}
            for n in numbers
        )
        return [*answers]

    write("pairs.jsonl", pairs(range(128)))
    write("held_out_pairs.jsonl", pairs(range(200, 216)))
    files = ["data.train=pairs.jsonl", "data.validation=held_out_pairs.jsonl"]
    loaded = load_recipe(
        "reward_model_chat", [f"model.path={chat_model('model', 0)}", *files, *HERE]
    )
    assert "1 optimizer step of 64 pairs" in dry_run(loaded)
    rows = read_metrics(train_recipe(loaded))
    assert [row["step"] for row in rows if "train/loss" in row] == [1, 2]
    assert all(
        math.isfinite(row["train/loss"]) and row["train/grad_norm"] > 0
        for row in rows
        if "train/loss" in row
    )
    held_out = [row for row in rows if "validation/acc" in row]
    assert [row["step"] for row in held_out] == [0, 2]
    assert all(
        row["validation/acc_low"] <= row["validation/acc"] <= row["validation/acc_high"]
        for row in held_out
    )
    assert AutoModelForSequenceClassification.from_pretrained("run/final").config.num_labels == 1


def test_distill_chat_recipe_trains_user_student_with_user_teacher(chat_model: Folder) -> None:
    write("prompts.jsonl", [{"prompt": f"Tell me a story about {n} cats."} for n in range(256)])
    models = [f"model.path={chat_model('student', 0)}", f"teacher.path={chat_model('teacher', 1)}"]
    short = ["data.train=prompts.jsonl", "sampling.max_tokens=6"]
    loaded = load_recipe("distill_chat", [*models, *short, *HERE])
    told = dry_run(loaded)
    assert "2 optimizer steps of 64 responses" in told
    assert "teacher reads the policy's tokens" in told
    rows = read_metrics(train_recipe(loaded))
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["policy/loss"] > 0 and row["policy/grad_norm"] > 0 for row in rows)
    assert not any(name.startswith("validation/") for row in rows for name in row)
