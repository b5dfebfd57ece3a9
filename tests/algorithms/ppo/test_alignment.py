"""The value of a token is that of the state before it: a decision process whose V is known in
closed form.

Two choices, each of token 0 or 1 with probability ½, after a start token. The reward is 1 if the
first choice is 1, plus ½ if the second is. So V before the first choice is ¾ whatever is chosen
next; V before the second is ¼ more than what the first earned. A critic that is read one token too
late sees the choice it should average over, and gives 0.25 or 1.25.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lockstep.config import LearnerSection, Optimizer
from lockstep.core import keyed
from lockstep.core.batch import Batch
from lockstep.learners.base import train
from lockstep.learners.torch.learner import TorchLearner
from lockstep.losses.ppo import ClippedValue
from lockstep.models.heads import ValueHead
from lockstep.models.load import load_backbone
from lockstep.objectives.advantage import gae
from lockstep.objectives.shaping import token_rewards


def episodes(count: int, seed: int) -> tuple[Batch, torch.Tensor]:
    """`count` plays of a uniform policy, and the score of each."""
    choice = (keyed.draw_uniforms(torch.arange(count) + seed * count, torch.arange(2)) > 0.5).long()
    tokens = torch.cat([torch.full((count, 1), 2), choice], 1)
    mask = torch.tensor([False, True, True]).repeat(count)
    score = choice[:, 0] + 0.5 * choice[:, 1]
    return Batch(tokens.reshape(-1), torch.full((count,), 3), {"mask": mask}), score


@pytest.fixture
def critic(tmp_path: Path) -> TorchLearner:
    config = LlamaConfig(
        vocab_size=4, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=8,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    section = LearnerSection(device="cpu")
    return TorchLearner(
        ValueHead(load_backbone(tmp_path / "model"), seed=0), section, Optimizer(lr=1e-2)
    )


def test_ppo_value_of_each_token_predicts_return_before_that_token(critic: TorchLearner) -> None:
    for step in range(80):
        batch, score = episodes(256, step)
        old_value, _ = critic.values(batch)
        reward = token_rewards(score, batch.mask, batch.lengths)
        advantage = gae(reward, old_value, batch.mask, batch.lengths, gamma=1.0, lam=1.0)
        batch = batch.with_columns({"old_value": old_value, "return": advantage + old_value})
        train(critic, batch, ClippedValue(None))
    batch, _ = episodes(64, seed=1000)
    value = critic.values(batch)[0].view(-1, 3)
    first_choice = batch.tokens.view(-1, 3)[:, 1]
    torch.testing.assert_close(value[:, 1], torch.full((64,), 0.75), atol=0.1, rtol=0)
    torch.testing.assert_close(value[:, 2], first_choice + 0.25, atol=0.1, rtol=0)
