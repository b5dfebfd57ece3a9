"""The effect of a wrong estimator of the KL in the reward on a run: a proxy reward on real text, k1, k3 (and k2).

    LOCKSTEP_ASSETS=… python -m benchmarks.kl_placement

A story model of 260 K parameters writes on from openings of stories, and GRPO's step with RLOO's options (β = 0.05 in
the reward) raises a proxy: the share of happy words, of which a quarter is enough. Gold is what the proxy stands for,
happy words in a story that still is one: the proxy times the share of distinct pairs of words. Both runs have the same
seeds and the same step; only what a token pays differs. What is shown is the proxy, gold, KL(π ‖ π_ref) per token, and
what was to be maximized: the proxy less β times the KL of the response.

The library has no option for the wrong estimator. Here a reference that lies makes one: the step subtracts k1 = log π −
log π_ref of what it is told, so it is told log π − k3.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.ladder.tasks.stories import HAPPY, NAMES, openings, words_of
from lockstep.algorithms.grpo import step as grpo
from lockstep.algorithms.grpo.options import GRPORecipe
from lockstep.algorithms.policy_gradient.step import PolicyGradientWorkers
from lockstep.batch import Batch
from lockstep.cluster.specs import LearnerSpec
from lockstep.data.jsonl import JsonlIndex
from lockstep.data.prompts import Prompts
from lockstep.learners.rank import RankLearner
from lockstep.models.heads import LogitsHead
from lockstep.models.source import open_source
from lockstep.objectives.divergence import k1, k2, k3
from lockstep.rollouts.rollout import RolloutCollector
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.samplers.torch.sampler import TorchSampler
from lockstep.types import Prompt, skip_timing

Estimate = Callable[[Tensor, Tensor], Tensor]
ESTIMATES: dict[str, Estimate] = {"k1": k1, "k2": k2, "k3": k3}
BETA = 0.05


class LyingReference:
    """A reference policy whose answers make a step subtract another estimate than k1; it notes the truth.

    Attributes:
        kl: KL(π ‖ π_ref) per token of the newest responses, nats.
        kl_per_response: The same, summed over a response.
    """

    def __init__(self, honest: RankLearner, estimate: Estimate) -> None:
        self._honest, self._estimate = honest, estimate
        self.kl = self.kl_per_response = 0.0

    def logprobs(self, batch: Batch) -> Tensor:
        own_N, ref_N = batch["old_logprob"], self._honest.logprobs(batch)
        delta_N = k1(own_N, ref_N) * batch.mask
        self.kl = float(delta_N.sum() / batch.mask.sum())
        self.kl_per_response = float(delta_N.sum() / len(batch))
        return own_N - self._estimate(own_N, ref_N)


@dataclass
class Happiness:
    """The proxy as a reward; it notes gold."""

    gold: list[float] = field(default_factory=list)

    def __call__(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> list[float | None]:
        proxies: list[float | None] = []
        for response in responses:
            words = words_of(response)
            share = sum(word in HAPPY for word in words) / max(len(words), 1)
            pairs = list(pairwise(words))
            proxies.append(min(1.0, 4 * share))
            self.gold.append(min(1.0, 4 * share) * len(set(pairs)) / max(len(pairs), 1))
        return proxies


def recipe(args: argparse.Namespace, model: Path, seed: int) -> GRPORecipe:
    """The recipe: RLOO, with the KL in the reward."""
    return GRPORecipe.model_validate(
        {
            "algorithm": "grpo",
            "seed": seed,
            "model": {"path": str(model)},
            "data": {"train": "openings", "answer": "", "prompt": "{text}", "max_prompt_tokens": 64},
            "reward": {"type": "python", "function": "benchmarks.kl_placement:Happiness"},
            "learner": {"device": "cpu"},
            "sampling": {"max_tokens": 48},
            "validation_sampling": {"max_tokens": 48},
            "run": {"num_logged_samples": 0},
            "policy": {"lr": args.lr},
            "grpo": {
                "num_prompts_per_step": 16,
                "num_generations": 8,
                "global_batch_size": 64,
                "baseline": "leave_one_out",
                "scale_rewards": "none",
                "kl": {"coef": BETA, "placement": "reward"},
            },
        }
    )


def run(args: argparse.Namespace, name: str, seed: int) -> list[dict[str, float]]:
    """Figures of each step's responses, before it learned from them."""
    model = Path(os.environ["LOCKSTEP_ASSETS"]) / "models/stories260K/hf"
    options, source = recipe(args, model, seed), open_source(str(model))
    spec = LearnerSpec(str(model), "logits", options.learner, options.policy, seed)
    policy, reference = spec.build(), LyingReference(spec.frozen.build(), ESTIMATES[name])
    assert isinstance(policy.model, LogitsHead)
    reward, curve = Happiness(), []
    with tempfile.TemporaryDirectory() as folder:
        rows = openings(NAMES)
        file = Path(folder) / "openings.jsonl"
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
        prompts = Prompts(JsonlIndex(file, "error"), source.tokenizer, options.data)
        engine = SamplerSession(TorchSampler(policy.model.lm, options.sampler.max_batch_size), policy)
        collector = RolloutCollector(engine, prompts, reward, source.decode, seed)
        told: Any = reference  # a step asks a reference for log-probabilities alone
        workers = PolicyGradientWorkers(policy=policy, reference=told, collector=collector, phase=skip_timing)
        settings = grpo.build_settings(options, source.stop_token_ids)
        for step in range(args.steps):
            reward.gold.clear()
            metrics = grpo.grpo_step(step, step * 16, workers, settings).metrics.floats()
            proxy, gold = metrics["train/reward"], sum(reward.gold) / len(reward.gold)
            maximized = proxy - BETA * reference.kl_per_response
            curve.append({"proxy": proxy, "gold": gold, "kl": reference.kl, "maximized": maximized})
            print(f"{name} {step + 1:3d}  " + "  ".join(f"{key} {value:.3f}" for key, value in curve[-1].items()))
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--estimates", nargs="+", choices=tuple(ESTIMATES), default=["k1", "k3"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    curves = {name: run(args, name, args.seed) for name in args.estimates}
    shown = sorted({0, args.steps // 4, args.steps // 2, args.steps - 1})
    print("| in the reward | | " + " | ".join(f"step {step + 1}" for step in shown) + " |")
    print("|---|---|" + "---|" * len(shown))
    for name, curve in curves.items():
        for key in ("proxy", "gold", "kl", "maximized"):
            print(f"| {name} | {key} | " + " | ".join(f"{curve[step][key]:.3f}" for step in shown) + " |")


if __name__ == "__main__":
    main()
