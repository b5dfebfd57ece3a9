from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from lockstep.config import Optimizer, Schedule
from lockstep.learners.boxes import Boxes, find_written
from lockstep.learners.optimizer import AdamW, learning_rate
from lockstep.learners.pieces import Piece, norm
from lockstep.learners.torch.pieces import TorchPiece


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


def pieces(model: nn.Module) -> list[Piece]:
    return [TorchPiece.of(name, parameter) for name, parameter in model.named_parameters()]


def step(model: nn.Module, optimizer: AdamW, held: list[Piece], seed: int) -> None:
    inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
    model(inputs).square().sum().backward()
    gradients = [piece.gradient() for piece in held]
    optimizer.step(gradients, norm(gradients, gradients[0].device), lr=0.1)
    model.zero_grad()


def linear() -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(4, 3)


def written_moments(optimizer: AdamW, held: list[Piece], folder: Path) -> Boxes:
    tensors = {name: tensor.clone() for name, tensor, _ in optimizer.moments(held)}
    save_file(tensors, folder / "optimizer.safetensors")
    return Boxes(find_written(folder, "optimizer"))


def test_restored_moments_go_on_bit_for_bit(tmp_path: Path) -> None:
    settings = Optimizer(lr=0.1, weight_decay=0.1)
    model, copy = linear(), linear()
    optimizer = AdamW(pieces(model), settings)
    step(model, optimizer, pieces(model), 1)
    copy.load_state_dict(model.state_dict())
    restored = AdamW(pieces(copy), settings)
    with written_moments(optimizer, pieces(model), tmp_path) as saved:
        assert set(saved.names()) == {
            f"{key}.{name}" for key in ("step", "exp_avg", "exp_avg_sq") for name in ("weight", "bias")
        }
        restored.restore(saved)
    step(model, optimizer, pieces(model), 2)
    step(copy, restored, pieces(copy), 2)
    assert torch.equal(model.weight, copy.weight)
    assert torch.equal(model.bias, copy.bias)


def test_restoring_a_fresh_optimizer_forgets_what_came_after(tmp_path: Path) -> None:
    model = linear()
    optimizer, held = AdamW(pieces(model), Optimizer(lr=0.1)), pieces(model)
    with written_moments(optimizer, held, tmp_path) as saved:
        assert saved.names() == []
        step(model, optimizer, held, 1)
        assert list(optimizer.moments(held))
        optimizer.restore(saved)
    assert not list(optimizer.moments(held))


def test_what_the_optimizer_is_not_given_is_left_alone() -> None:
    model = linear()
    held, before = pieces(model)[:1], model.bias.clone()
    step(model, AdamW(held, Optimizer(lr=0.1, weight_decay=0.5)), held, 1)
    assert torch.equal(model.bias, before)
