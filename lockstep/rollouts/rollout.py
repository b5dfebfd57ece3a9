"""Rollouts: samples responses to prompts and scores them.

Random numbers are keyed and do not depend on batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

from lockstep.core import keyed
from lockstep.core.batch import Batch, concat_batches
from lockstep.core.borders import require_finite
from lockstep.core.errors import InputError
from lockstep.core.metrics import LastValue, Max, Mean, Metrics, Min, Sum, merge_metrics
from lockstep.core.types import Prompt, Request, SamplingParams
from lockstep.rewards.base import CutOffReward, NoReward, Reward, compute_reward_results
from lockstep.rewards.reward_model import RewardModelScorer
from lockstep.rollouts.agents import AgentRunner
from lockstep.rollouts.episode_record import PART
from lockstep.rollouts.episodes import EpisodeRunner
from lockstep.rollouts.sampler_session import SamplerSession

_UNKNOWN = float("nan")
_COUNTED = ("dropped", "untrainable", "retokenized")
_GIVE_FINITE = "return a reward that fits in fp32, or None for no verdict"


@dataclass(frozen=True)
class RewardTerms:
    """A task's declarations about its rewards.

    Attributes:
        as_is: True if a truncated response keeps its reward, False if it gets a declared reward;
            None: undeclared.
        best: The mean reward of the best policy; None: unknown.
    """

    as_is: bool | None = None
    best: float | None = None


@dataclass(frozen=True)
class Rollouts:
    """Scored responses, one per batch row.

    Attributes:
        batch: The sampler's batch, with per-sample `score` (NaN: no verdict). Responses to one
            prompt are neighbors.
        prompts: The prompt of each row.
        responses: Text of each response; for an episode, everything after the prompt.
        judging: Metrics of judges.
        terms: The task's declarations about its rewards.
        group_size: Number of responses per prompt.
    """

    batch: Batch
    prompts: list[Prompt]
    responses: list[str]
    judging: Metrics = field(default_factory=Metrics)
    terms: RewardTerms = RewardTerms()
    group_size: int = 1

    def metrics(self) -> Metrics:
        """Metrics of rewards, lengths and truncation; missing verdicts are not averaged."""
        judged = self.batch["score"].isfinite()
        score = self.batch["score"][judged]
        if len(score):
            extremes = Metrics(reward_min=Min(score.min()), reward_max=Max(score.max()))
        else:
            extremes = Metrics()
        cut_B = judged & self.batch["truncated"].bool()
        cut_off = Metrics()
        if bool(cut_B.any()):
            cut_off["reward_cut_off"] = Mean(self.batch["score"][cut_B].sum(), cut_B.sum())
        if self.terms.as_is is not None:
            cut_off["cut_off_as_is"] = LastValue(float(self.terms.as_is))
        return (
            extremes
            + Metrics(
                reward=Mean(score.sum(), judged.sum()),
                no_verdict=Sum((~judged).sum()),
            )
            + self.lengths()
            + cut_off
            + self._best_metrics()
            + self._episode_metrics()
        )

    def _best_metrics(self) -> Metrics:
        """The best policy's reward, if declared, and the standard error of this step's mean.

        Responses to one prompt can be correlated, so the standard error is over prompts.
        """
        if self.terms.best is None:
            return Metrics()
        mean_P = self.batch["score"].view(-1, self.group_size).nanmean(-1)
        mean_P = mean_P[mean_P.isfinite()]
        if len(mean_P) < 2:
            return Metrics()
        error = mean_P.double().std() / math.sqrt(len(mean_P))
        return Metrics(best_reward=LastValue(self.terms.best), reward_error=LastValue(error))

    def rewards(self) -> Metrics:
        """Metrics of a sum's parts and judges."""
        metrics = self.judging.with_prefix("judge")
        for name, reward_B in self.batch.sample.items():
            if name.startswith(PART):
                known_B = reward_B.isfinite()
                metrics[name] = Mean(reward_B[known_B].sum(), known_B.sum())
                metrics[f"reward_no_verdict/{name.removeprefix(PART)}"] = Sum((~known_B).sum())
        return metrics

    def lengths(self) -> Metrics:
        """Metrics of lengths and truncation."""
        length_B = self.batch.per_sample(self.batch.mask.float())
        return Metrics(
            response_length=Mean(length_B.sum(), len(self.batch)),
            response_length_max=Max(length_B.max()),
            truncated=Mean(self.batch["truncated"].sum(), len(self.batch)),
        )

    def _episode_metrics(self) -> Metrics:
        """Metrics of episodes with an environment."""
        if "turns" not in self.batch.sample:
            return Metrics()
        metrics = Metrics(
            turns=Mean(self.batch["turns"].sum(), len(self.batch)),
            environment_faults=Sum(self.batch["environment_fault"].sum()),
        )
        for name in ("paths", "forks", "roots") if "forks" in self.batch.sample else ():
            metrics[name] = Mean(self.batch[name].sum(), len(self.batch))
        for name in _COUNTED if "forks" in self.batch.sample else ():
            metrics[f"turns_{name}"] = Sum(self.batch[name].sum())
        if "tool_calls" in self.batch.sample:
            calls = self.batch["tool_calls"].sum()
            metrics["tool_calls"] = Mean(calls, len(self.batch))
            if calls:
                metrics["malformed_calls"] = Mean(self.batch["malformed_calls"].sum(), calls)
        return metrics


class PromptStream(Protocol):
    """An infinite stream of training prompts; `lockstep.data.prompts.PromptRows` reads files."""

    def read_at(self, position: int, count: int, seed: int) -> list[Prompt]:
        """The prompts at `position` … `position + count − 1` of a run."""
        ...

    def answer(self, prompt: Prompt) -> str:
        """The right answer of a prompt; empty if the data has none."""
        ...


@dataclass(frozen=True)
class RolloutCollector:
    """Collects rollouts: scored responses for positions in the data.

    Attributes:
        engine: Samples responses.
        prompts: The prompts.
        reward: Scores responses; `NoReward` if the environment does.
        decode: Converts tokens to text.
        seed: Seed of the random numbers.
        environment: Runs episodes; None: single-turn.
        best_reward: The mean reward of the best policy, if the task declares it.
    """

    engine: SamplerSession
    prompts: PromptStream
    reward: Reward | RewardModelScorer
    decode: Callable[[Sequence[int]], str]
    seed: int
    environment: EpisodeRunner | AgentRunner | None = None
    best_reward: float | None = None

    @property
    def terms(self) -> RewardTerms:
        """Declarations of the environment if it provides the rewards, else of reward and task."""
        if isinstance(self.environment, EpisodeRunner) and isinstance(self.reward, NoReward):
            declared = self.environment.is_declared
            best = self.environment.best_reward
            as_is = self.environment.keeps_rewards if declared else None
            return RewardTerms(as_is, self.best_reward if best is None else best)
        if isinstance(self.reward, CutOffReward):
            as_is = self.reward.scores_as_is
        else:
            as_is = None
        return RewardTerms(as_is, self.best_reward)

    def collect(
        self, position: int, count: int, sampling: SamplingParams, num_generations: int
    ) -> Rollouts:
        """Collects `num_generations` responses per training prompt from `position` on."""
        prompts = self.prompts.read_at(position, count, self.seed)
        return self._sample_rollouts(prompts, position, sampling, num_generations, "train")

    def validate(
        self, prompts: Sequence[Prompt], position: int, sampling: SamplingParams, num_samples: int
    ) -> Rollouts:
        """Collects responses to held-out prompts from `position` on, with fixed random numbers."""
        return self._sample_rollouts(prompts, position, sampling, num_samples, "validation")

    def collect_mixed(
        self,
        position: int,
        count: int,
        sampling: SamplingParams,
        num_generations: int,
        max_batches: int,
    ) -> tuple[Rollouts, int]:
        """Samples until `count` prompts have differing scores (DAPO, Yu et al. 2025, §3.2).

        Returns:
            Rollouts of exactly `count` such prompts, and the position after the last prompt used.

        Raises:
            InputError: If `max_batches` batches do not give enough prompts.
        """
        parts: list[Rollouts] = []
        found = 0
        for number in range(max_batches):
            rollouts = self.collect(position + number * count, count, sampling, num_generations)
            score_PG = rollouts.batch["score"].view(count, num_generations)
            highest_P = score_PG.nan_to_num(float("-inf")).amax(-1)
            lowest_P = score_PG.nan_to_num(float("inf")).amin(-1)
            mixed = (highest_P > lowest_P).nonzero().squeeze(-1)[: count - found]
            rows = (mixed[:, None] * num_generations + torch.arange(num_generations)).flatten()
            part = replace(
                rollouts,
                batch=rollouts.batch.select(rows),
                prompts=[rollouts.prompts[row] for row in rows.tolist()],
                responses=[rollouts.responses[row] for row in rows.tolist()],
            )
            parts.append(part)
            found += len(mixed)
            if found == count:
                return _join_rollouts(parts), position + (number + 1) * count
        raise InputError(
            f"dynamic sampling found {found} of {count} prompts with differing rewards in "
            f"{max_batches} batches; use an easier or harder task, or raise "
            "dynamic_sampling.max_batches"
        )

    def _sample_rollouts(
        self,
        prompts: Sequence[Prompt],
        position: int,
        sampling: SamplingParams,
        num_generations: int,
        role: str,
    ) -> Rollouts:
        repeated = [prompt for prompt in prompts for _ in range(num_generations)]
        requests = build_requests(prompts, position, num_generations, self.seed, role)
        group = (self.engine, repeated, requests, sampling, num_generations)
        if isinstance(self.environment, AgentRunner):
            batch, responses = self.environment.run_episodes(*group)
        elif self.environment is not None:
            batch = self.environment.run_episodes(*group)
            responses = self._decode_responses(batch, requests, sampling)
        else:
            batch = self.engine.generate(requests, sampling)
            responses = self._decode_responses(batch, requests, sampling)
        columns, judging = self._score_responses(batch, repeated, responses)
        batch = batch.with_columns(sample=columns)
        if isinstance(self.environment, AgentRunner):
            self.environment.record_scores(requests, batch["score"])
        return Rollouts(batch, repeated, responses, judging, self.terms, num_generations)

    def _decode_responses(
        self, batch: Batch, requests: Sequence[Request], sampling: SamplingParams
    ) -> list[str]:
        responses = list[str]()
        for request, tokens in zip(requests, batch.sequences(), strict=True):
            response = tokens[len(request.tokens) :].tolist()
            responses.append(self.decode(sampling.drop_stop(response)))
        return responses

    def _score_responses(
        self, batch: Batch, prompts: Sequence[Prompt], responses: Sequence[str]
    ) -> tuple[dict[str, Tensor], Metrics]:
        """Scores responses; returns their columns and metrics of judges.

        The columns are `score`, and `reward/…` for the parts of a sum, fp32 [B], NaN: no verdict.
        """
        if self.environment is None:
            return self._score_by_reward(batch, prompts, responses)
        if isinstance(self.reward, NoReward) and isinstance(self.environment, EpisodeRunner):
            self.environment.require_declared()
            return {"score": batch["environment_reward"]}, Metrics()
        columns, judging = self._score_by_reward(batch, prompts, responses)
        if both := columns.keys() & batch.sample.keys():
            name = min(both).removeprefix(PART)
            raise InputError(
                f"{name} is defined by both reward.parts and the environment; rename one"
            )
        failed_B = batch["environment_fault"]
        return {
            name: own_B.masked_fill(failed_B, _UNKNOWN) for name, own_B in columns.items()
        }, judging

    def _score_by_reward(
        self, batch: Batch, prompts: Sequence[Prompt], responses: Sequence[str]
    ) -> tuple[dict[str, Tensor], Metrics]:
        if isinstance(self.reward, RewardModelScorer):
            return {"score": self.reward(batch)}, Metrics()
        verdicts = compute_reward_results(
            self.reward, prompts, responses, list(map(self.prompts.answer, prompts))
        )
        columns = {"score": _to_column(batch, verdicts.rewards)}
        if isinstance(self.reward, CutOffReward) and self.reward.value is not None:
            columns["score"] = columns["score"].masked_fill(batch["truncated"], self.reward.value)
        columns |= {f"{PART}{name}": _to_column(batch, own) for name, own in verdicts.parts.items()}
        return columns, verdicts.metrics


def _to_column(batch: Batch, rewards: Sequence[float | None]) -> Tensor:
    """Rewards as a column, fp32 [B], NaN: no verdict; raises NotFiniteError on overflow."""
    known = [_UNKNOWN if reward is None else reward for reward in rewards]
    reward_B = torch.tensor(known, dtype=torch.float32)
    unknown_B = torch.tensor([reward is None for reward in rewards])
    require_finite("rewards", batch, reward_B.masked_fill(unknown_B, 0.0), cure=_GIVE_FINITE)
    return reward_B


def build_requests(
    prompts: Sequence[Prompt], position: int, num_generations: int, seed: int, role: str
) -> list[Request]:
    """Builds `num_generations` neighboring requests per prompt, keyed by prompt and number.

    Args:
        prompts: The prompts.
        position: Row of the first prompt.
        num_generations: Number of responses per prompt.
        seed: Seed of the random numbers.
        role: Use of the responses, such as train; each use has its own random numbers.
    """
    requests = list[Request]()
    for index, prompt in enumerate(prompts):
        for draw in range(num_generations):
            key = keyed.hash_key(seed, role, position + index, prompt.id, draw)
            requests.append(Request(prompt.tokens, key))
    return requests


def _join_rollouts(parts: Sequence[Rollouts]) -> Rollouts:
    """Joins rollouts; a named reward that is missing in some of them has no verdict there."""
    columns = chain.from_iterable(part.batch.sample for part in parts)
    named = {name for name in columns if name.startswith(PART)}
    batches = list[Batch]()
    for part in parts:
        missing = named - part.batch.sample.keys()
        unknown_B = torch.full((len(part.batch),), _UNKNOWN)
        batches.append(part.batch.with_columns(sample=dict.fromkeys(missing, unknown_B)))
    return Rollouts(
        concat_batches(batches),
        list(chain.from_iterable(part.prompts for part in parts)),
        list(chain.from_iterable(part.responses for part in parts)),
        merge_metrics(part.judging for part in parts),
        parts[0].terms,
        parts[0].group_size,
    )
