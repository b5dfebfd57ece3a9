"""Rewards by name, of an environment and of a sum beside it: which responses have them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import model_folder

from lockstep.core.types import Prompt, SamplingParams
from lockstep.environments.options import EnvironmentSection
from lockstep.models.load import load_causal_lm
from lockstep.rewards.base import NoReward, Reward
from lockstep.rewards.combined_rewards import WeightedPart, WeightedSum
from lockstep.rollouts.episodes import EpisodeRunner
from lockstep.rollouts.rollout import RolloutCollector
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.samplers.torch.sampler import TorchSampler

SAMPLING = SamplingParams(max_tokens=6, stop_token_ids=(1,))
WORLD = """
class World:
    def reset(self, row, seed):
        self.row, self.luck = row, float(seed % 2)
    def step(self, response):
        if self.row["number"] == 2: raise KeyError("level")
        named = {"goal": self.luck} | ({"bonus": 0.0} if self.row["number"] == 0 else {})
        return "", named, True
"""


class Rows:
    """Prompts that are numbered by their position."""

    def read_at(self, position: int, count: int, seed: int) -> list[Prompt]:
        return [
            Prompt(f"rows:{i}", "", (3 + i % 7, 4), {"number": i})
            for i in range(position, position + count)
        ]

    def answer(self, prompt: Prompt) -> str:
        return ""


def collector(folder: Path, reward: Reward) -> RolloutCollector:
    (folder / "world.py").write_text(WORLD)
    section = EnvironmentSection.model_validate(
        {
            "class_name": "world.py:World",
            "max_tokens": 20,
            "seed": "episode",
            "max_no_verdict_rate": 0.5,
        }
    )
    episodes = EpisodeRunner(
        section, (2,), str, lambda tools: lambda text, last: [], lambda note: None
    )
    sampler = TorchSampler(load_causal_lm(model_folder(folder, "llama")), 8)
    return RolloutCollector(SamplerSession(sampler), Rows(), reward, str, 0, episodes)


def reward_named(name: str, value: float) -> WeightedSum:
    def own(
        prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> list[float | None]:
        return [value] * len(responses)

    parts: Mapping[str, WeightedPart] = {name: WeightedPart(own, 1.0)}
    return WeightedSum(parts)


def test_named_reward_missing_in_a_batch_is_nan_in_mixed_rollouts(in_tmp: Path) -> None:
    whole = collector(in_tmp, NoReward())
    with whole.engine.at():
        assert "reward/bonus" not in whole.collect(3, 2, SAMPLING, 2).batch.sample
        rollouts, after = whole.collect_mixed(-7, 8, SAMPLING, 2, 20)
    bonus = rollouts.batch["reward/bonus"]
    assert after > 1  # more than the first eight
    assert len(bonus) == 16
    assert all(
        math.isnan(x) or prompt.row["number"] == 0
        for x, prompt in zip(bonus, rollouts.prompts, strict=True)
    )


@pytest.mark.parametrize("plays", [True, False])
def test_reward_text_excludes_final_stop_token_of_model(plays: bool, in_tmp: Path) -> None:
    """Also where it is no special token, which a tokenizer would skip; one of the environment is
    seen.
    """
    own = collector(in_tmp, reward_named("style", 3.0))
    single = replace(own, environment=None)
    # so many that a random model ends there
    sampling = replace(SAMPLING, stop_token_ids=tuple(range(3, 64, 2)))
    with own.engine.at():
        rollouts = (own if plays else single).collect(3, 8, sampling, 1)
    ended = [tokens[-1].item() in sampling.stop_token_ids for tokens in rollouts.batch.sequences()]
    assert any(ended)
    for tokens, response, stopped in zip(
        rollouts.batch.sequences(), rollouts.responses, ended, strict=True
    ):
        drawn = tokens[2:].tolist()
        assert response == str(drawn[:-1] if stopped else drawn)
