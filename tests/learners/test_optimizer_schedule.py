from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import get_scheduler

from lockstep.api.values import read_arguments
from lockstep.config import Optimizer, Schedule
from lockstep.config.loading import load_section
from lockstep.config.optimizer import OptimizerName
from lockstep.core.errors import InputError
from lockstep.learners.boxes import BoxReader, find_written
from lockstep.learners.optimizer import TorchOptimizer, learning_rate
from lockstep.learners.pieces import ParameterPiece, compute_norm
from lockstep.learners.torch.pieces import TorchPiece


def rates(schedule: Schedule, updates: int) -> list[float]:
    return [
        learning_rate(Optimizer(lr=2.0, schedule=schedule), update) for update in range(updates)
    ]


def test_warmup_rises_linearly_from_nonzero_to_full_learning_rate() -> None:
    assert rates(Schedule(warmup_steps=4), 6) == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_linear_decay_ends_at_final_fraction_after_decay_steps() -> None:
    schedule = Schedule(warmup_steps=2, decay="linear", decay_steps=6, final_fraction=0.5)
    assert rates(schedule, 9) == pytest.approx([1.0, 2.0, 2.0, 1.75, 1.5, 1.25, 1.0, 1.0, 1.0])


def test_cosine_decay_follows_half_cosine_to_zero() -> None:
    expected = [2.0 * 0.5 * (1 + math.cos(math.pi * update / 8)) for update in range(9)]
    assert rates(Schedule(decay="cosine", decay_steps=8), 9) == pytest.approx(expected)
    assert rates(Schedule(decay="cosine", decay_steps=8), 20)[-1] == 0.0


@pytest.mark.parametrize(
    ("name", "schedule", "theirs"),
    [
        ("linear", Schedule(decay="linear", warmup_steps=0.1), {}),
        ("cosine", Schedule(decay="cosine", warmup_steps=3), {}),
        ("constant_with_warmup", Schedule(warmup_steps=0.1), {}),
        (
            "cosine_with_min_lr",
            Schedule(decay="cosine", warmup_steps=3, final_fraction=0.2),
            {"min_lr_rate": 0.2},
        ),
        (
            "warmup_stable_decay",
            Schedule(decay="linear", warmup_steps=3, cooldown_steps=0.2),
            {"num_decay_steps": 6, "decay_type": "linear"},
        ),
    ],
)
def test_schedule_that_ends_with_the_run_matches_transformers(
    name: str, schedule: Schedule, theirs: dict[str, Any]
) -> None:
    """From the end of the warm-up; theirs begins at 0, which trains nothing, ours one step on."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=2.0)
    scheduler = get_scheduler(
        name, optimizer, num_warmup_steps=3, num_training_steps=30, scheduler_specific_kwargs=theirs
    )
    expected = list[float]()
    for _ in range(31):
        expected.append(float(scheduler.get_last_lr()[0]))
        optimizer.step()
        scheduler.step()
    fitted = schedule.fit_to_run(30)
    assert rates(fitted, 31)[3:] == pytest.approx(expected[3:])
    assert rates(fitted, 3) == pytest.approx(expected[1:4])


def pieces(model: nn.Module) -> list[ParameterPiece]:
    return [
        TorchPiece.from_parameter(name, parameter) for name, parameter in model.named_parameters()
    ]


def step(
    model: nn.Module, optimizer: TorchOptimizer, held: list[ParameterPiece], seed: int
) -> None:
    inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
    model(inputs).square().sum().backward()
    gradients = [piece.read_gradient() for piece in held]
    optimizer.step(gradients, compute_norm(gradients, gradients[0].device), lr=0.1)
    model.zero_grad()


def linear() -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(4, 3)


def written_moments(
    optimizer: TorchOptimizer, held: list[ParameterPiece], folder: Path
) -> BoxReader:
    tensors = {name: tensor.clone() for name, tensor, _ in optimizer.list_moments(held)}
    save_file(tensors, folder / "optimizer.safetensors")
    return BoxReader(find_written(folder, "optimizer"))


def build(name: str) -> Optimizer:
    """Settings as a recipe has them."""
    return load_section(Optimizer, read_arguments("optimizer", {"lr": 0.1, "name": name}))


@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_named_optimizer_matches_torch_and_resumes_bit_for_bit(name: str, tmp_path: Path) -> None:
    settings = build(name)
    model, twin, copy = linear(), linear(), linear()
    optimizer, held = TorchOptimizer(pieces(model), settings), pieces(model)
    theirs = getattr(torch.optim, name)(twin.parameters(), lr=0.1, **settings.torch_arguments)
    for seed in (1, 2):
        step(model, optimizer, held, seed)
        twin(
            torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
        ).square().sum().backward()
        nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
        theirs.step()
        theirs.zero_grad()
    torch.testing.assert_close(model.weight, twin.weight, rtol=0.0, atol=1e-6)
    assert len(optimizer.list_tensors()) == 2 * (1 + len(settings.torch_class.state)), (
        "as the plan counts"
    )
    copy.load_state_dict(model.state_dict())
    restored = TorchOptimizer(pieces(copy), settings)
    with written_moments(optimizer, held, tmp_path) as saved:
        restored.restore_moments(saved)
    step(model, optimizer, held, 3)
    step(copy, restored, pieces(copy), 3)
    assert torch.equal(model.weight, copy.weight)
    assert torch.equal(model.bias, copy.bias)


@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_optimizer_updates_weight_shards_like_the_full_weight(name: str) -> None:
    """To the bit, however many ranks hold it; a fused kernel rounds the end of a piece otherwise
    than its middle.
    """
    whole, half = linear(), [nn.Linear(4, rows, bias=False) for rows in (1, 2)]
    with torch.no_grad():
        for one, rows in zip(half, whole.weight.split((1, 2)), strict=True):
            one.weight.copy_(rows)
    optimizers = [TorchOptimizer(pieces(one)[:1], build(name)) for one in (whole, *half)]
    for seed in range(3):
        gradient = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
        length = gradient.norm()
        for optimizer, part in zip(optimizers, (gradient, *gradient.split((1, 2))), strict=True):
            optimizer.step([part.clone()], length, 0.1)
    slack = 1e-7 if build(name).torch_class.fused else 0.0
    torch.testing.assert_close(
        torch.cat([one.weight.detach() for one in half]),
        whole.weight.detach(),
        atol=slack,
        rtol=0.0,
    )


def test_moments_of_another_optimizer_are_refused(tmp_path: Path) -> None:
    model = linear()
    optimizer, held = TorchOptimizer(pieces(model), build("RMSprop")), pieces(model)
    step(model, optimizer, held, 1)
    with (
        written_moments(optimizer, held, tmp_path) as saved,
        pytest.raises(InputError, match="keeps exp_avg"),
    ):
        TorchOptimizer(held, build("AdamW")).restore_moments(saved)
