"""The passes of a step: so many, of so many responses, and entropies only where a loss reads
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import lockstep_group, lockstep_ppo
from lockstep.core.batch import Batch
from lockstep.core.metrics import Metrics
from lockstep.core.types import ValuePositions
from lockstep.learners.torch.learner import TorchLearner
from lockstep.losses import CrossEntropyLoss
from lockstep.losses.base import Denominator, Outputs
from lockstep.models.heads import ValueHead

SMALL = (
    "--prompt-tokens=5",
    "--new-tokens=6",
    "--hidden=32",
    "--layers=1",
    "--vocab=64",
    "--exact",
)


def passes_of(learner: TorchLearner) -> list[tuple[int, bool]]:
    """Filled with each pass of a learner: its responses, and whether it computes entropies."""
    seen: list[tuple[int, bool]] = []

    def note(_: nn.Module, inputs: tuple[Batch], outputs: Outputs) -> None:
        seen.append((len(inputs[0]), outputs.entropy is not None))

    learner.model.register_forward_hook(note)
    return seen


def passes_of_a_step(
    step_of: lockstep_ppo.Step, folder: Path, *words: str
) -> Sequence[list[tuple[int, bool]]]:
    parser = lockstep_ppo.arguments("")
    parser.add_argument("--algorithm")
    parser.add_argument("--generations", type=int)
    step, learners = step_of(folder, parser.parse_args([*SMALL, *words]))
    passes = [passes_of(learner) for learner in learners]
    step(0)
    return passes


def test_exact_ppo_step_rescores_only_an_eighth_of_responses_with_policy(
    tmp_path: Path,
) -> None:
    words = ("--prompts=64", "--epochs=2", "--minibatches=2")
    policy, critic, reference = passes_of_a_step(lockstep_ppo.step_of, tmp_path, *words)
    assert policy == [(8, False), *[(32, True)] * 4]
    assert critic == [(64, False), *[(32, False)] * 4]
    assert reference == [(64, False)]


@pytest.mark.parametrize(("algorithm", "has_reference"), [("grpo", False), ("rloo", True)])
def test_exact_group_step_rescores_only_an_eighth_of_responses_with_policy(
    tmp_path: Path, algorithm: str, has_reference: bool
) -> None:
    words = ("--prompts=64", f"--algorithm={algorithm}", "--generations=4")
    policy, *others = passes_of_a_step(lockstep_group.step_of, tmp_path, *words)
    assert policy == [(8, False), (64, True)]
    assert others == ([[(64, False)]] if has_reference else [])


@pytest.mark.parametrize(("values", "read"), [("all", 12), ("masked", 8), ("final", 2)])
def test_critic_computes_only_states_that_loss_reads_with_same_gradient(
    tmp_path: Path, values: ValuePositions, read: int
) -> None:
    _, (_, critic, _) = lockstep_ppo.step_of(
        tmp_path, lockstep_ppo.arguments("").parse_args(["--prompts=4", *SMALL])
    )
    batch = Batch(torch.arange(12), torch.tensor([5, 7]), {"mask": torch.arange(12) % 5 > 1})
    assert isinstance(critic.model, ValueHead)
    seen, backbone = list[int](), critic.model.backbone
    (*_, last) = (module for name, module in backbone.named_modules() if name.endswith(".mlp"))
    last.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[1]))
    gradients = list[list[torch.Tensor]]()
    for kind in (values, "all"):
        critic.model.zero_grad()
        critic.forward_backward(batch, SumOfValues(kind, values != "final"))
        gradients.append([p.grad.clone() for p in critic.model.parameters() if p.grad is not None])
    assert seen == [read, 12]
    for ours, whole in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, whole, rtol=1e-4, atol=1e-6)


@dataclass(frozen=True)
class SumOfValues:
    """A loss of values after sequences, and before masked tokens, if these count."""

    reads_values: ValuePositions
    masked: bool
    denominator: Denominator = "rows"

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[torch.Tensor, Metrics]:
        assert outputs.value is not None
        assert outputs.final_value is not None
        before = (
            (outputs.value.square() * batch.mask).sum()
            if self.masked
            else outputs.value.sum() * 0.0
        )
        return before + outputs.final_value.square().sum(), Metrics()


def test_loss_without_entropy_skips_entropy_and_keeps_same_gradient(
    tmp_path: Path,
) -> None:
    parser = lockstep_ppo.arguments("")
    _, (policy, *_) = lockstep_ppo.step_of(tmp_path, parser.parse_args(["--prompts=4", *SMALL]))
    batch = Batch(torch.arange(12), torch.tensor([5, 7]), {"mask": torch.arange(12) > 3})

    class Reading(CrossEntropyLoss):
        reads_entropy = True

    passes, gradients = passes_of(policy), list[list[torch.Tensor]]()
    for loss in (CrossEntropyLoss(), Reading()):
        policy.model.zero_grad()
        policy.forward_backward(batch, loss)
        gradients.append([p.grad.clone() for p in policy.model.parameters() if p.grad is not None])
    assert passes == [(2, False), (2, True)]
    assert all(map(torch.equal, *gradients))
