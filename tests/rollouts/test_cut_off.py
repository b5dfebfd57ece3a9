"""Being cut off is no way out: what an episode or a response is worth that a limit ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch

from lockstep.config import user_code
from lockstep.core.batch import Batch
from lockstep.core.types import Prompt, Request, SamplingParams
from lockstep.environments.options import EnvironmentSection
from lockstep.rewards.base import CutOffReward, NoReward, Reward
from lockstep.rollouts.episodes import EnvironmentFault, EpisodeRunner
from lockstep.rollouts.rollout import RolloutCollector
from lockstep.rollouts.sampler_session import SamplerSession

NAN = math.nan
SAMPLING = SamplingParams(max_tokens=2, stop_token_ids=(1,))
CUT = 7
"""A token without a stop behind it: the response is cut off."""


class Speaker:
    """Samples the same responses in each turn, one for each episode; implements what episodes ask
    of a session.
    """

    def __init__(self, *said: int) -> None:
        self.said = said

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        drawn = [self.said[request.key % len(self.said)] for request in requests]
        rows = [(*request.tokens, token) for request, token in zip(requests, drawn, strict=True)]
        lengths = torch.tensor([len(row) for row in rows])
        mask = [place == len(row) - 1 for row in rows for place in range(len(row))]
        tokens = torch.tensor([token for row in rows for token in row])
        columns = {"mask": torch.tensor(mask), "sampler_logprob": torch.zeros(len(tokens))}
        ends = {"truncated": torch.tensor([token == CUT for token in drawn])}
        return Batch(
            tokens,
            lengths,
            columns,
            ends | {"version": torch.zeros(len(rows), dtype=torch.int64)},
            sampling,
        )


class Rows:
    """The same prompt at every place; implements `PromptStream`."""

    def read_at(self, position: int, count: int, seed: int) -> list[Prompt]:
        return [
            Prompt(f"rows.jsonl:{place}", "?", (3,), {"place": place}) for place in range(count)
        ]

    def answer(self, prompt: Prompt) -> str:
        return "right"


def collect(
    speaker: Speaker,
    reward: Reward,
    kind: type | str | None = None,
    count: int = 1,
    generations: int = 1,
    best: float | None = None,
    **options: Any,
) -> Any:
    episodes = None
    if kind is not None:
        name = kind if isinstance(kind, str) else user_code.make_reference(kind)
        section = {"class_name": name, "max_tokens": 12, "max_turns": 3, **options}
        environment = EnvironmentSection.model_validate(section)
        episodes = EpisodeRunner(
            environment, (), str, lambda tools: lambda text, last: [5], lambda text: None
        )
    session = cast(SamplerSession, speaker)
    collector = RolloutCollector(session, Rows(), reward, str, 0, episodes, best)
    return collector.collect(0, count, SAMPLING, generations)


def declare(rewards: Sequence[Any], ends: bool = False, **attributes: Any) -> type:
    """A class of environments with a reward for each turn, which ends after the last of them if it
    `ends`.
    """

    class Paying:
        def reset(self, row: dict[str, Any], seed: int) -> None:
            self.left = list(rewards)

        def step(self, response: str) -> tuple[str, Any, bool]:
            reward = self.left.pop(0)
            return "on", reward, ends and not self.left

    for name, value in attributes.items():
        setattr(Paying, name, value)
    return Paying


SAY, QUIT = Speaker(1), Speaker(CUT)


@pytest.mark.parametrize(
    ("speaker", "rewards", "ends", "declared", "worth"),
    [
        (QUIT, [0.5], False, {}, 0.0),
        (QUIT, [0.5], False, {"cut_off_reward": -2}, -2.0),
        (QUIT, [-0.5], False, {"cut_off_reward": -2.0}, -2.0),
        (QUIT, [-0.5], False, {"cut_off_reward": "as_is"}, -0.5),
        (QUIT, [-0.5], False, {"cut_off_reward": None}, NAN),
        (SAY, [0.5] * 3, False, {}, 0.0),
        (SAY, [0.5] * 3, False, {"cut_off_reward": -2.0}, -2.0),
        (SAY, [0.5] * 3, False, {"cut_off_reward": "as_is"}, 1.5),
        (SAY, [-1.0, 0.5], True, {"cut_off_reward": -2.0}, -0.5),
        (QUIT, [0.5], True, {"cut_off_reward": -2.0}, 0.5),
        (SAY, [{"right": 1.0, "cost": -0.5}] * 3, False, {}, 0.0),
        (SAY, [0.5, None, 0.5], False, {"cut_off_reward": -2.0}, NAN),
    ],
)
def test_truncated_episode_gets_cut_off_reward_of_its_environment(
    speaker: Speaker, rewards: list[Any], ends: bool, declared: dict[str, Any], worth: float
) -> None:
    """By a turn that is cut off and by too many turns; not where the environment itself ends it."""
    score = float(collect(speaker, NoReward(), declare(rewards, ends, **declared)).batch["score"])
    assert score == worth or (math.isnan(score) and math.isnan(worth))


def test_endless_tool_calls_are_truncated_with_cut_off_reward() -> None:
    class Looping(declare([0.0], cut_off_reward=-1.0)):
        def tools(self) -> list[Any]:
            return [({"type": "function", "function": {"name": "look"}}, lambda: "again")]

    section = EnvironmentSection(
        class_name=user_code.make_reference(Looping),
        max_tokens=12,
        max_turns=3,
        tool_format="llama3_json",
    )
    episodes = EpisodeRunner(
        section,
        (),
        lambda tokens: '{"name": "look"}',
        lambda tools: lambda text, last: [5],
        lambda text: None,
    )
    prompts, requests = Rows().read_at(0, 1, 0), [Request((3,), 0)]
    batch = episodes.run_episodes(cast(SamplerSession, SAY), prompts, requests, SAMPLING)
    assert (batch["tool_calls"].item(), batch["environment_reward"].item()) == (3, -1.0)


@pytest.mark.parametrize("rewards", [[0.5, -0.1, 1.0], [{"cost": -0.1}, 0.0, 0.0]])
def test_negative_reward_without_declared_cut_off_reward_is_rejected(
    rewards: list[Any],
) -> None:
    kind = declare(rewards, ends=True)
    with pytest.raises(
        EnvironmentFault, match=r"rows\.jsonl:0: .* returned the reward -0\.1, .*cut_off_reward"
    ):
        collect(SAY, NoReward(), kind)
    scored = collect(SAY, Fixed(1.0), kind)  # its rewards are ignored
    assert scored.batch["score"].item() == 1.0


class Fixed:
    """Rewards every response alike."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> list[float | None]:
        return [self.value] * len(responses)


@pytest.mark.parametrize(("value", "worth"), [(None, 1.0), (-2.0, -2.0)])
def test_truncated_response_gets_cut_off_reward_of_recipe(
    value: float | None, worth: float
) -> None:
    speaker, reward = Speaker(1, CUT), CutOffReward(Fixed(1.0), value)
    batch = collect(speaker, reward, count=16).batch
    assert {*batch["truncated"].tolist()} == {False, True}
    assert {*batch["score"][batch["truncated"]].tolist()} == {worth}
    assert {*batch["score"][~batch["truncated"]].tolist()} == {1.0}


def test_reward_error_treats_responses_to_one_prompt_as_correlated() -> None:
    class Luck:
        best_reward = 0.0

        def reset(self, row: dict[str, Any], seed: int) -> None:
            self.luck = float(row["place"] % 2)

        def step(self, response: str) -> tuple[str, float, bool]:
            return "", self.luck, True

    rollouts = collect(SAY, NoReward(), Luck, count=4, generations=8)
    assert rollouts.metrics().floats()["reward_error"] == pytest.approx(math.sqrt(1 / 3) / 2)
