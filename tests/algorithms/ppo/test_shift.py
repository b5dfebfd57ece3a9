"""What the right shift of values is worth in a run, and that it takes a warmed-up critic to see it.

The faulty critic is read one token late: what it calls the value of a token has seen that token.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_models import ragged
from training import step_rows

from lockstep.config.loading import load_recipe
from lockstep.core import align
from lockstep.core.batch import Batch
from lockstep.losses.base import Outputs
from lockstep.models.heads import ValueHead
from lockstep.models.load import load_backbone
from lockstep.report.log import read_metrics
from lockstep.run.train import train_recipe

aligned = ValueHead.forward


def one_token_late(self: ValueHead, batch: Batch) -> Outputs:
    """V as if nothing were shifted: V(x_≤t) stands at t."""
    outputs = aligned(self, batch)
    assert outputs.value is not None
    assert outputs.final_value is not None
    late = outputs.value.roll(-1).index_copy(0, align.state_after(batch), outputs.final_value)
    return Outputs(value=late, final_value=outputs.final_value)


def rewards(name: str, seed: int, *options: str) -> list[float]:
    """Sampled reward of each step of the arithmetic recipe; prints it, and how much the critic
    explains at the end.
    """
    folder = train_recipe(
        load_recipe(
            "ppo_arithmetic",
            [f"seed={seed}", f"run.folder={name}-{seed}", "policy.lr=1e-4", *options],
        )
    )
    steps = step_rows(read_metrics(folder))
    curve = [row["train/reward"] for row in steps]
    explained = steps[-1]["critic/explained_variance"]
    print(
        f"{name:11} seed {seed}: {' '.join(f'{reward:.2f}' for reward in curve)} · explained "
        f"variance {explained:.2f}"
    )
    return curve


def both_ways(
    monkeypatch: pytest.MonkeyPatch, name: str, seed: int, *options: str
) -> tuple[list[float], list[float]]:
    """The same run with the shift and without; batches are equal until the first update of the
    policy.
    """
    right = rewards(f"{name}-shift", seed, *options)
    monkeypatch.setattr(ValueHead, "forward", one_token_late)
    wrong = rewards(f"{name}-none", seed, *options)
    return right, wrong


SHORT = ("ppo.critic_warmup_steps=5", "run.max_steps=10", "ppo.gae_lambda=0.95", "ppo.ppo_epochs=4")


def test_injected_critic_fault_reads_values_one_token_late(models: Callable[..., Path]) -> None:
    head, batch = ValueHead(load_backbone(models("llama")), seed=0), ragged([5, 1, 9])
    with torch.no_grad():
        right, wrong = aligned(head, batch), one_token_late(head, batch)
    assert right.value is not None
    assert right.final_value is not None
    assert wrong.value is not None
    for first, length in zip(batch.starts.tolist(), batch.lengths.tolist(), strict=True):
        assert torch.equal(
            wrong.value[first : first + length - 1], right.value[first + 1 : first + length]
        )
    assert torch.equal(wrong.value[align.state_after(batch)], right.final_value)


@pytest.mark.proof
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_right_shifted_values_give_higher_reward_after_critic_warmup(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.chdir(workplace)
    right, wrong = both_ways(monkeypatch, "short", seed, *SHORT)
    torch.testing.assert_close(right[:6], wrong[:6], atol=0, rtol=0)
    assert right[9] >= wrong[9] + 0.15
