"""The whole of self-rewarding in half a minute: a model learns to answer and to judge, and then
from its own judgment.

What it learns to do is in `wanted_letter.py`; the same with a larger task are the proofs of
`test_self_rewarding.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import wanted_letter
from ladder_recipes import rung
from row_files import read_trained

from lockstep.config.loading import load_recipe
from lockstep.report.log import read_metrics
from lockstep.run.train import train_recipe

pytestmark = pytest.mark.full

STEPS, BATCH = 300, 64
SMALL = [
    f"model.scratch.config.{size}"
    for size in ("hidden_size=48", "intermediate_size=128", "num_hidden_layers=2")
]
SOUND = ["optimizer.lr=2e-4"]
OVERTRAINED = [
    "optimizer.lr=1e-3",
    "self_rewarding.sft_loss_weight=0",
    "self_rewarding.sft_average_log_probs=null",
]

Warm = Callable[..., Path]


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Warm:
    """`warm(flatters=False)` is a folder with prompts and a model that answers, half well, and
    judges.
    """
    made: dict[bool, Path] = {}

    def folder(flatters: bool = False) -> Path:
        if flatters not in made:
            made[flatters] = tmp_path_factory.mktemp("warm")
            learned(made[flatters], flatters)
        return made[flatters]

    return folder


def learned(folder: Path, flatters: bool) -> None:
    wanted_letter.write(folder, prompts=768, demonstrations=STEPS * BATCH, flatters=flatters)
    options = [
        f"run.folder={folder}/run", f"data.train={folder}/demonstrations.jsonl", "data.task=null",
        f"sft.global_batch_size={BATCH}", "optimizer.lr=5e-3", "optimizer.schedule.warmup_steps=20",
        f"optimizer.schedule.decay_steps={STEPS}", "learner.device=cpu",
    ]  # fmt: skip
    train_recipe(load_recipe(rung("sft_letters"), [*SMALL, *options]))


def rewarded(warm: Path, folder: Path, *overrides: str) -> Path:
    """The run of `self_rewarding_small` on this task."""
    options = [
        f"run.folder={folder}", f"data.train={warm}/train.jsonl", f"data.validation={warm}/validation.jsonl",
        "data.task=null", "model.from_recipe=null", f"model.path={warm}/run/final", "learner.device=cpu",
        f"validation_reward.function={wanted_letter.__file__}:score", "self_rewarding.global_batch_size=32",
        "run.num_logged_samples=32",
    ]  # fmt: skip
    return train_recipe(load_recipe(rung("self_rewarding_small"), [*options, *overrides]))


def of_steps(folder: Path, metric: str) -> list[float]:
    return [row[metric] for row in read_metrics(folder) if metric in row]


def pairs(folder: Path) -> list[dict[str, Any]]:
    return [row for row in read_trained(folder / "samples.jsonl") if row["status"] == "ok"]


def truly(row: dict[str, Any], which: str) -> float:
    return wanted_letter.score(row["prompt"], row[which], "", {})


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.proof), pytest.param(2, marks=pytest.mark.proof)]
)
def test_self_rewarding_raises_true_reward_in_every_iteration(
    warm: Warm, in_tmp: Path, seed: int
) -> None:
    run = rewarded(warm(), in_tmp / "run", *SOUND, f"seed={seed}")
    worth, failures = of_steps(run, "validation/reward"), of_steps(run, "judge/parse_failures")
    gains = [after - before for before, after in pairwise(worth)]
    assert len(gains) == 3
    assert min(gains) > 0.18  # of 512 answers: three times the standard error of a difference
    assert worth[-1] - worth[0] > 1.2
    assert sum(failures) / len(failures) <= 0.01
    ordered = [truly(row, "chosen") > truly(row, "rejected") for row in pairs(run)]
    assert len(ordered) > 0.95 * 768
    assert sum(ordered) / len(ordered) >= 0.85


@pytest.mark.proof
def test_overtraining_raises_judge_score_while_true_reward_falls(warm: Warm, in_tmp: Path) -> None:
    """Its answers begin to read like judgments."""
    run = rewarded(warm(), in_tmp / "run", *OVERTRAINED)
    worth, liked = of_steps(run, "validation/reward"), of_steps(run, "train/generated_rewards")
    assert worth[-1] < max(worth) - 0.5
    assert liked[-1] > liked[0] + 1.5


@pytest.mark.proof
def test_flattering_judge_gives_mostly_top_scores_and_tied_pairs(warm: Warm, in_tmp: Path) -> None:
    run = rewarded(
        warm(flatters=True),
        in_tmp / "run",
        *SOUND,
        "run.max_steps=2",
        "self_rewarding.max_iterations=2",
    )
    assert min(of_steps(run, "train/top_class_share")) > 0.9
    assert min(of_steps(run, "train/pairs/tie")) > 0.5
