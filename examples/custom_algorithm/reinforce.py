"""REINFORCE (Williams 1992) with a learned baseline: an algorithm outside of Lockstep, in one
file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from pydantic import Field, PositiveInt
from torch import Tensor

import lockstep.algorithms as rl
from lockstep.config import Optimizer, RepeatedSampling, SamplerSection, Sampling
from lockstep.losses.ppo import ClippedValue
from lockstep.monitor.options import AgreementSection
from lockstep.rewards.options import RewardSection


@final
class Reinforce(rl.Algorithm):
    """`algorithm: reinforce.py:Reinforce`"""

    reward: RewardSection
    sampling: Sampling
    validation_sampling: RepeatedSampling
    sampler: SamplerSection = SamplerSection()
    agreement: AgreementSection = AgreementSection()
    num_prompts_per_step: PositiveInt = Field(description="prompts that a step answers, once each")
    policy: Optimizer
    critic: Optimizer

    @property
    def models(self) -> tuple[rl.ModelRole, ...]:
        policy = rl.ModelRole("policy", "logits", self.learner, self.policy)
        return policy, rl.ModelRole("critic", "value", self.learner, self.critic)

    @property
    def largest_step(self) -> rl.Load:
        longest, rows = (
            self.data.max_prompt_tokens + self.sampling.max_tokens,
            self.num_prompts_per_step,
        )
        sampling = self.sampling.params()
        return rl.Load(longest, 1, rows, scored=rows, generated=longest, sampling=sampling)

    @property
    def lengths(self) -> Mapping[str, int]:
        limits = {
            "sampling": self.sampling.max_tokens,
            "validation_sampling": self.validation_sampling.max_tokens,
        }
        prompt = self.data.max_prompt_tokens
        return {
            f"data.max_prompt_tokens + {name}.max_tokens": prompt + limit
            for name, limit in limits.items()
        }

    @property
    def inference(self) -> rl.Inference:
        return rl.Inference(self.sampler, self.agreement, self.sampling, self.validation_sampling)

    @property
    def rewards(self) -> dict[str, RewardSection | None]:
        return {"reward": self.reward}

    def open(self, setup: rl.Setup) -> rl.Job:
        policy, critic = (setup.learner(role) for role in self.models)
        engine = rl.build_engine(setup, policy, setup.sampler(policy))
        prompts = rl.open_training(self, setup, self.reward)
        held_out = rl.open_held_out(self, setup, self.reward)
        reward = setup.reward(self.reward, prompts, "reward")
        collector = rl.RolloutCollector(engine, prompts, reward, setup.source.decode, self.seed)
        agreement = rl.build_agreement(self, setup, policy, engine)
        asked = self.validation_sampling
        validate = rl.measure_answers(self, setup, held_out, collector, asked, self.reward)
        return rl.Job(
            step=Step(self, setup, policy, critic, collector, agreement),
            run_length=rl.measure_run_length(self, len(prompts), self.num_prompts_per_step),
            state={"policy": policy, "critic": critic},
            validate=validate,
            data=rl.describe(prompts, "prompts"),
            held_out=None if held_out is None else rl.describe(held_out, "prompts"),
            agreement=agreement,
        )


@dataclass(frozen=True)
class Step:
    """Williams 1992, §3: Δw = α·(r − b)·∂ log π/∂w, where the baseline b is what the critic expects
    of each state.
    """

    options: Reinforce
    setup: rl.Setup
    policy: rl.Learner
    critic: rl.Learner
    collector: rl.RolloutCollector
    agreement: rl.Agreement

    def __call__(self, step: int, position: int) -> rl.StepResult:
        count = self.options.num_prompts_per_step
        sampling = self.setup.source.sampling(self.options.sampling)
        with self.setup.phase("generate"), self.collector.engine.at(step) as sync_metrics:
            rollouts = self.collector.collect(position, count, sampling, 1)  # y ~ π(·|x), r(x, y)
        with self.setup.phase("score"):
            # log π(y_t | x, y_<t), for the agreement
            logprob_N = self.policy.logprobs(rollouts.batch)
            # b(x, y_<t), which does not know y_t
            baseline_N, _ = self.critic.values(rollouts.batch)
        batch = rollouts.batch.with_columns({"old_logprob": logprob_N, "old_value": baseline_N})
        metrics = rollouts.metrics().with_prefix("train") + rollouts.rewards() + sync_metrics
        metrics += self.agreement.compare(step + 1, step, batch)
        # a response without a verdict teaches nothing
        mask_N = batch.mask & batch["score"].isfinite()[batch.row]
        reward_N = batch["score"].nan_to_num()[batch.row]
        batch = batch.with_columns(
            {"mask": mask_N, "return": reward_N, "advantage": reward_N - baseline_N}
        )
        with self.setup.phase("learn"):
            metrics += rl.train(self.critic, batch, ClippedValue(None)).with_prefix("critic")
            metrics += rl.train(self.policy, batch, Reinforcement()).with_prefix("policy")
        samples = rl.sample_rows(
            rollouts, batch, self.collector, self.options.run.num_logged_samples
        )
        return rl.StepResult(metrics, position + count, batch.tokens.numel(), samples)


@dataclass(frozen=True)
class Reinforcement:
    """−Σ_t (r − b_t)·log π(y_t | x, y_<t), whose mean over responses has the gradient −∂E[r]/∂w."""

    @property
    def denominator(self) -> rl.Denominator:
        return "rows"

    def __call__(self, outputs: rl.Outputs, batch: rl.Batch) -> tuple[Tensor, rl.Metrics]:
        assert outputs.logprob is not None, "a head of logits gives log-probabilities"
        total = -(batch["advantage"] * outputs.logprob).sum()  # log π is 0 where the mask is off
        return total, rl.Metrics(loss=rl.Mean(total.detach(), len(batch)))
