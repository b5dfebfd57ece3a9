"""Twenty steps of each algorithm, fixed seed, against the curve that is written beside this file.

A change of numbers must be meant: write the new curve with LOCKSTEP_WRITE_GOLDEN=1 and say why in
LOG.md.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from training import train_rows

HERE = Path(__file__).parent

SCRATCH = (
    "model.scratch={config: {model_type: qwen2, hidden_size: 32, intermediate_size: 64, "
    "num_hidden_layers: 1,"
    " num_attention_heads: 2, num_key_value_heads: 1, max_position_embeddings: 128}}"
)
DIGITS = "reward={type: python, function: 'rewards.py:share_of_digits', marker: null}"
CURVES = {
    "sft_arithmetic": ("policy/loss", ["optimizer.lr=0.001", "data.task.demonstrations=1280"]),
    "ppo_arithmetic": (
        "critic/loss",
        [SCRATCH, DIGITS, "ppo.num_prompts_per_step=16", "ppo.global_batch_size=8"],
    ),
    "grpo_arithmetic": (
        "train/reward",
        [
            SCRATCH,
            DIGITS,
            "grpo.num_prompts_per_step=8",
            "grpo.global_batch_size=16",
            "policy.lr=0.003",
        ],
    ),
    "dpo_arithmetic": (
        "train/loss",
        [SCRATCH, "dpo.global_batch_size=8", "data.task.train_questions=160"],
    ),
    "simpo_arithmetic": (
        "train/loss",
        [SCRATCH, "simpo.global_batch_size=8", "data.task.train_questions=160"],
    ),
    "orpo_arithmetic": (
        "train/loss",
        [SCRATCH, "orpo.global_batch_size=8", "data.task.train_questions=160"],
    ),
    "kto_arithmetic": (
        "train/loss",
        [SCRATCH, "kto.global_batch_size=8", "data.task.train_questions=160"],
    ),
    "online_dpo_arithmetic": (
        "train/reward",
        [SCRATCH, DIGITS, "online_dpo.num_prompts_per_step=8", "optimizer.lr=0.003"],
    ),
    "reward_arithmetic": (
        "train/loss",
        [SCRATCH, "reward_model.global_batch_size=8", "data.task.train_questions=160"],
    ),
}

REWARD = """
def share_of_digits(prompt, response, answer, row):
    return sum(c.isdigit() for c in response) / max(1, len(response))
"""


@pytest.mark.parametrize("recipe", CURVES)
def test_training_curve_matches_golden_curve(recipe: str, in_tmp: Path) -> None:
    (in_tmp / "rewards.py").write_text(REWARD)
    metric, options = CURVES[recipe]
    short = ["run.max_steps=20", "run.validate_every=0", "run.folder=run", "learner.device=cpu"]
    rows = train_rows(recipe, *options, *short)
    curve = [row[metric] for row in rows if metric in row]
    golden = HERE / f"{recipe}.txt"
    if os.environ.get("LOCKSTEP_WRITE_GOLDEN"):
        golden.write_text("".join(f"{value:.6f}\n" for value in curve))
    expected = [float(line) for line in golden.read_text().splitlines()]
    assert curve == pytest.approx(expected, rel=1e-3, abs=1e-5)
