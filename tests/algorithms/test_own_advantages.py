"""Advantages and losses outside of Lockstep: `examples/custom_algorithm/median.py`, as a user would
run it.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

import lockstep
from lockstep.algorithms.grpo.options import GRPOSection
from lockstep.algorithms.grpo.step import with_advantages
from lockstep.cli import main
from lockstep.config.errors import RecipeError
from lockstep.config.loading import load_recipe
from lockstep.config.user_code import import_file
from lockstep.core.batch import Batch
from lockstep.core.errors import InputError
from lockstep.core.types import KLEstimator
from lockstep.losses.base import Loss, Outputs
from lockstep.losses.policy import ComparedLoss, KLPenalizedLoss
from lockstep.losses.ppo import ClippedSurrogate
from lockstep.report.log import read_metrics

EXAMPLE = Path(__file__).parents[2] / "examples/custom_algorithm"
SHORT = ["run.max_steps=2", "run.save_every=1", "run.validate_every=0"]
KL = "grpo.kl={coef: 0.1}"


@pytest.fixture
def example(in_tmp: Path) -> Path:
    """Its files, in the working folder."""
    for file in EXAMPLE.glob("*.*"):
        shutil.copy(file, in_tmp)
    return in_tmp


def scored(scores: list[float]) -> Batch:
    """Responses of two tokens, the first of which is the prompt."""
    count, score_B = len(scores), torch.tensor(scores)
    return Batch(torch.zeros(2 * count, dtype=torch.int64), torch.full((count,), 2)).with_columns(
        {"mask": torch.tensor([False, True]).repeat(count)},
        {"score": score_B, "shaped_score": score_B.nan_to_num()},
    )


def recipe(kind: type[lockstep.PolicyGradient]) -> lockstep.PolicyGradient:
    options = {"num_prompts_per_step": 2, "num_generations": 3, "global_batch_size": 6}
    return kind.model_construct(grpo=GRPOSection.model_validate(options))


def test_custom_advantages_method_fills_advantage_column() -> None:
    median = import_file(EXAMPLE / "median.py").MedianBaseline
    batch, _ = with_advantages(scored([1.0, 5.0, 2.0, 0.0, 0.0, 9.0]), recipe(median))
    assert batch["advantage"].tolist() == [0, -1, 0, 3, 0, 0, 0, 0, 0, 0, 0, 9]
    batch, _ = with_advantages(scored([math.nan, 5.0, 7.0] + [math.nan] * 3), recipe(median))
    assert batch["advantage"].tolist() == [0, 0, 0, -1, 0, 1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("found", [torch.zeros(5), 3.0, None])
def test_custom_advantages_of_wrong_size_or_type_are_rejected(found: object) -> None:
    kind = type("Odd", (lockstep.PolicyGradient,), {"advantages": lambda self, batch: found})
    with pytest.raises(
        InputError,
        match=r"Odd.advantages returned .* 6 numbers, one per response, or 12",
    ):
        with_advantages(scored([0.0] * 6), recipe(kind))


@pytest.mark.parametrize("mean", ["tokens", "responses"])
def test_kl_penalized_loss_has_gradient_of_built_in_kl(mean: str) -> None:
    """A clipped loss with β inside, and the same without plus β·KL, differ by rounding alone."""
    generator = torch.Generator().manual_seed(0)
    old_N, ref_N, advantage_N, weight_N = torch.randn(
        4, 7, dtype=torch.float64, generator=generator
    )
    batch = Batch(torch.zeros(7, dtype=torch.int64), torch.tensor([3, 4])).with_columns(
        {
            "mask": torch.tensor([False, True, True, False, True, True, True]),
            "old_logprob": old_N,
            "ref_logprob": ref_N,
            "advantage": advantage_N,
            "weight": weight_N.exp(),
        }
    )
    plain = ClippedSurrogate(0.2, 0.2, mean=mean)  # pyright: ignore[reportArgumentType]

    def gradient(loss: Loss) -> Tensor:
        logprob_N = (old_N + 0.1).requires_grad_()
        total, _ = loss(Outputs(logprob=logprob_N), batch)
        return torch.autograd.grad(total, logprob_N)[0]

    outside = gradient(plain)
    for estimator in get_args(KLEstimator):
        inside = gradient(replace(plain, kl_coef=0.3, kl_estimator=estimator))
        torch.testing.assert_close(gradient(KLPenalizedLoss(plain, 0.3, estimator)), inside)
        assert not torch.allclose(outside, inside)
        outside = inside


@pytest.mark.parametrize("added", [lambda loss: KLPenalizedLoss(loss, 0.3), ComparedLoss])
def test_wrapped_loss_that_returns_no_metrics_is_rejected_by_name(
    added: Callable[[Any], Loss],
) -> None:
    class Bare:
        denominator = "tokens"

        def __call__(self, outputs: Outputs, batch: Batch) -> Tensor:
            return batch["score"].sum()

    with pytest.raises(InputError, match="loss Bare returned Tensor"):
        added(Bare())(Outputs(), scored([1.0]))


def test_kl_in_reward_is_rejected_if_custom_advantages_ignore_it(example: Path) -> None:
    with pytest.raises(
        RecipeError, match=r'does not subtract batch\["kl_penalty"\].*set placement to loss'
    ):
        load_recipe("median.yaml", ["grpo.kl={coef: 0.1, placement: reward}"])
    with Path("median.py").open("a") as file:
        file.write(
            "\n\nclass Bounded(lockstep.PolicyGradient):\n    def advantages(self, batch):\n"
            "        return super().advantages(batch).clamp(-1, 1)\n"
        )
    assert load_recipe(
        "median.yaml", ["algorithm=median.py:Bounded", "grpo.kl={coef: 0.1, placement: reward}"]
    )


def test_custom_algorithm_with_kl_is_exact_and_resumes_bit_identically(
    example: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "median.yaml", "algorithm=median.py:MedianReinforce", KL, *SHORT]
    assert main([*words, "run=whole"]) == 0
    assert "E2, exact" in capsys.readouterr().out
    (*_, last) = (row for row in read_metrics(Path("whole")) if "policy/kl" in row)
    assert last["policy/kl"] > 0
    assert last["train/kl"] > 0
    assert main([*words, "run=resumed", "run.max_steps=1"]) == 0
    assert main([*words, "run=resumed", "--allow-changes"]) == 0
    resumed, whole = (
        Path(run, "final/model.safetensors").read_bytes() for run in ("resumed", "whole")
    )
    assert resumed == whole
    assert main(["plan", "median.yaml", "--gpus", "2", "--memory", "80GB"]) == 0


def test_algorithm_class_of_file_or_main_trains_with_python_trainer(example: Path) -> None:
    median = import_file(Path("median.py").resolve()).MedianBaseline
    own = type("Own", (median,), {})
    own.__module__ = "__main__"
    for kind in (median, own):
        run = {"max_steps": 1, "validate_every": 0}
        assert lockstep.Trainer(kind, recipe="median.yaml", run=run).train().is_finished
