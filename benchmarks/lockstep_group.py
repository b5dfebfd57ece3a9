"""Our side of `benchmarks.group_step`: steps of GRPO and RLOO on the small Llama.

Prints one JSON line.

The reward is that of `benchmarks.lockstep_ppo`. As there, a step scores the responses again with
the learner, reports how well sampler and learner agree, and attests the refit, which the other side
does not.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.lockstep_ppo import agreement_of, arguments, experience_of, measured
from benchmarks.small_llama import causal_lm, llama_config
from lockstep.algorithms.grpo import step as grpo
from lockstep.algorithms.grpo.options import PolicyGradient
from lockstep.algorithms.policy_gradient.step import (
    PolicyGradientWorkers,
    build_settings,
    sample_step,
)
from lockstep.config import LearnerSection
from lockstep.core.types import PhaseTimer, skip_timing
from lockstep.learners.torch.learner import TorchLearner
from lockstep.models import attention
from lockstep.models.exact.model import make_exact
from lockstep.models.heads import LogitsHead
from lockstep.system.process_defaults import keep_freed_memory

GROUPED: dict[str, dict[str, Any]] = {
    "grpo": {"loss_mean": "tokens"},
    "rloo": {
        "baseline": "leave_one_out",
        "scale_rewards": "none",
        "kl": {"coef": 0.05, "placement": "reward"},
    },
}
"""By TRL's defaults: GRPO without a reference, RLOO with a KL of 0.05."""


def step_of(
    folder: Path, args: argparse.Namespace, phase: PhaseTimer = skip_timing
) -> tuple[Callable[[int], object], list[TorchLearner]]:
    """The step as a function of its number, and the learners that hold the state."""
    lm = causal_lm(llama_config(hidden=args.hidden, layers=args.layers, vocab=args.vocab)).eval()
    lm.set_attn_implementation(attention.NAME)
    other_lm = copy.deepcopy(lm)
    if args.exact:
        make_exact(lm)
        make_exact(other_lm)
    section = LearnerSection(device="cpu", dtype=args.dtype)
    other = TorchLearner(LogitsHead(other_lm), section)
    recipe = PolicyGradient.model_validate(
        {
            "model": {"path": "made by the benchmark"},
            "data": {"train": "made by the benchmark", "max_prompt_tokens": args.prompt_tokens},
            "learner": section.model_dump(),
            "sampling": {"max_tokens": args.new_tokens},
            "run": {"num_logged_samples": 0},
            "algorithm": "grpo",
            "reward": {"type": "python", "function": "benchmarks.lockstep_ppo:last_token"},
            "validation_sampling": {"max_tokens": args.new_tokens},
            "policy": {"lr": 1e-6},
            "grpo": {
                "num_prompts_per_step": args.prompts // args.generations,
                "num_generations": args.generations,
                "global_batch_size": args.prompts // args.minibatches,
                **GROUPED[args.algorithm],
            },
        }
    )
    policy = TorchLearner(LogitsHead(lm), section, recipe.policy)
    reference = other if recipe.grpo.has_reference else None
    collector = experience_of(folder, args, recipe, policy, phase=phase)
    agreement = agreement_of(args, recipe, policy, collector)
    workers = PolicyGradientWorkers(
        policy=policy, reference=reference, collector=collector, phase=phase, agreement=agreement
    )
    settings = build_settings(recipe, ())
    rows = args.prompts // args.generations
    return (
        lambda step: grpo.train_on_groups(
            step, sample_step(step * rows, step, workers, settings), workers, settings
        ).metrics.floats(),
        [policy, *([reference] if reference else [])],
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--algorithm", choices=GROUPED, required=True)
    parser.add_argument(
        "--generations", type=int, default=8, help="responses to a prompt; all are --prompts"
    )
    keep_freed_memory()
    print(json.dumps(measured(parser.parse_args(), step_of)), flush=True)


if __name__ == "__main__":
    main()
