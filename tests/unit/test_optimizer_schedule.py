from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lockstep.learners.torch.optimizer import adamw, learning_rate, moments, restore_moments
from lockstep.recipe import Optimizer, Schedule


def rates(schedule: Schedule, updates: int) -> list[float]:
    return [learning_rate(Optimizer(lr=2.0, schedule=schedule), update) for update in range(updates)]


def test_constant() -> None:
    assert rates(Schedule(), 3) == [2.0, 2.0, 2.0]


def test_warmup_rises_to_the_full_rate_and_is_never_zero() -> None:
    assert rates(Schedule(warmup_steps=4), 6) == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_linear_decay_ends_where_it_says() -> None:
    schedule = Schedule(warmup_steps=2, decay="linear", decay_steps=6, final_fraction=0.5)
    assert rates(schedule, 9) == pytest.approx([1.0, 2.0, 2.0, 1.75, 1.5, 1.25, 1.0, 1.0, 1.0])


def test_cosine_decay() -> None:
    expected = [2.0 * 0.5 * (1 + math.cos(math.pi * update / 8)) for update in range(9)]
    assert rates(Schedule(decay="cosine", decay_steps=8), 9) == pytest.approx(expected)
    assert rates(Schedule(decay="cosine", decay_steps=8), 20)[-1] == 0.0


def test_a_decay_no_longer_than_the_warmup_ends_at_once() -> None:
    assert rates(Schedule(warmup_steps=3, decay="linear", decay_steps=3), 5) == pytest.approx(
        [2 / 3, 4 / 3, 2.0, 2.0, 0.0]
    )


def step(model: nn.Module, optimizer: torch.optim.AdamW, seed: int) -> None:
    inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
    model(inputs).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def linear() -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(4, 3)


def test_restored_moments_go_on_bit_for_bit() -> None:
    settings = Optimizer(lr=0.1, weight_decay=0.1)
    model, copy = linear(), linear()
    optimizer = adamw(model, settings)
    step(model, optimizer, 1)
    copy.load_state_dict(model.state_dict())
    saved = {name: tensor.clone() for name, tensor in moments(model, optimizer).items()}
    assert set(saved) == {f"{key}.{name}" for key in ("step", "exp_avg", "exp_avg_sq") for name in ("weight", "bias")}
    restored = adamw(copy, settings)
    restore_moments(copy, restored, saved)
    step(model, optimizer, 2)
    step(copy, restored, 2)
    assert torch.equal(model.weight, copy.weight)
    assert torch.equal(model.bias, copy.bias)


def test_restoring_a_fresh_optimizer_forgets_what_came_after() -> None:
    model = linear()
    optimizer = adamw(model, Optimizer(lr=0.1))
    assert moments(model, optimizer) == {}
    step(model, optimizer, 1)
    restore_moments(model, optimizer, {})
    assert moments(model, optimizer) == {}


def test_frozen_parameters_are_left_alone() -> None:
    model = linear()
    model.bias.requires_grad_(False)
    before = model.bias.clone()
    step(model, adamw(model, Optimizer(lr=0.1, weight_decay=0.5)), 1)
    assert torch.equal(model.bias, before)
