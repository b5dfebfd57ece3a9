"""The cases beside TRL: an algorithm with its recipe, and the words that TRL has for the same options.

Learning rates, decays, clipping, batch and length come from the recipe on both sides. What is said here twice is what
the two call by different names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.ladder.beside_trl import measures
from benchmarks.ladder.relatives import RLOO
from lockstep.config.loading import Loaded, load

HERE, RUNGS = "benchmarks/ladder/beside_trl", "benchmarks/ladder/rungs"
LONGEST = 12
"""Tokens of the longest response to a sum."""
TEACHER = f"{HERE}/sft.yaml"
"""The recipe of the teacher of the cases of distillation."""
CONSTANT = ("optimizer.schedule={warmup_steps: 0, decay: constant, decay_steps: null, final_fraction: 0.0}",)
GROUPS = ("grpo.num_prompts_per_step=16", "grpo.global_batch_size=128", "run.validate_every=10")
SAMPLED: Mapping[str, Any] = {"max_completion_length": LONGEST, "temperature": 1.0}


@dataclass(frozen=True)
class Case:
    """One algorithm beside TRL's trainer of it.

    Attributes:
        name: Its name, which the programs of TRL's side know.
        recipe: The recipe, whose warm start gives the first weights of both sides.
        rows: Rows that a step learns from: prompts, demonstrations or pairs.
        batch: Responses or rows of an update, which TRL calls its batch.
        steps: Steps of a run; each is one update.
        every: Steps between two measurements.
        measure: Measures a model in a Hugging Face folder; more is better.
        what: What that measures, in a few words.
        trl: TRL's words for the recipe's options.
        options: Overrides of the recipe, for both sides.
        program: The module of TRL's side.
        release: The release of TRL that has the trainer.
        note: What the table says about the case: where the sides differ by design.
        seeds: Number of seeds: five where responses are sampled, by which seeds differ more.
    """

    name: str
    recipe: str
    rows: int
    batch: int
    steps: int
    every: int
    measure: Callable[[Path, Loaded], float] = field(compare=False)
    what: str
    trl: Mapping[str, Any]
    options: tuple[str, ...] = ()
    program: str = "peer_rollouts"
    release: str = "1.16.0"
    note: str = ""
    seeds: int = 3

    @property
    def is_distillation(self) -> bool:
        """True if there is a teacher."""
        return self.recipe.endswith("distill.yaml")

    def load(self, seed: int) -> Loaded:
        """Resolves the recipe. The warm start is that of seed 0 for all."""
        return load(self.recipe, [*self.options, f"run.max_steps={self.steps}", f"seed={seed}"])

    def digest(self, seed: int) -> str:
        """Digest of the recipe, its warm start and teacher among it, and of TRL's options."""
        teacher = [load_teacher().identity()] if self.is_distillation else []
        said = json.dumps([self.load(seed).identity(), *teacher, dict(self.trl), self.every, self.rows], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:10]


def load_teacher() -> Loaded:
    """Resolves the teacher's recipe."""
    return load(TEACHER, ["seed=0"])


GROUP: Mapping[str, Any] = {**SAMPLED, "num_generations": 8, "epsilon": 0.2, "beta": 0.0}
CASES = (
    Case(
        "grpo", f"{RUNGS}/addition.yaml", 16, 128, 60, 10, measures.solve_sums, "expected reward",
        {**GROUP, "loss_type": "dapo", "scale_rewards": "group"},
        options=GROUPS,
        seeds=5,
        note="TRL's loss_type `dapo`, its default, is Lockstep's loss_mean `tokens`",
    ),
    Case(
        "ppo", f"{RUNGS}/addition_ppo.yaml", 128, 128, 60, 10, measures.solve_sums, "expected reward",
        {
            "num_ppo_epochs": 1, "num_mini_batches": 1, "response_length": LONGEST, "temperature": 1.0, "kl_coef": 0.0,
            "gamma": 1.0, "lam": 1.0, "cliprange": 0.2, "cliprange_value": 1e6, "vf_coef": 1.0, "stop_token": "eos",
            "whiten_rewards": False, "num_sample_generations": 0, "local_rollout_forward_batch_size": 128,
        },
        options=(
            "ppo.num_prompts_per_step=128", "ppo.global_batch_size=128", "run.validate_every=10",
            "policy.max_grad_norm=null", "critic.max_grad_norm=null",
        ),
        program="peer_ppo",
        seeds=5,
        release="1.12.0",
        note="TRL clips no gradient here, so Lockstep does not; TRL's critic also learns the state after a stop token. "
        "57 % of TRL's CPU time is Python's garbage collector, which the trainer calls twice a step",
    ),
    Case(
        "dpo", f"{RUNGS}/preferences.yaml", 64, 64, 96, 16, measures.come_near, "−KL(π ‖ π*)",
        {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.4], "beta": 1.0, "max_length": 16},
        note="TRL's loss `sft` is a mean over tokens, and so is Lockstep's by dpo.sft_average_log_probs",
        options=(*CONSTANT, "dpo.sft_average_log_probs=true", "dpo.sft_loss_weight=0.4", "optimizer.lr=5.0e-4"),
        program="peer_rows",
    ),
    Case(
        "sft", f"{HERE}/sft.yaml", 64, 64, 60, 10, measures.solve_sums, "expected reward",
        {"max_length": 40, "completion_only_loss": True},
        note="equal to 1e-5 until step 20; then rounding grows with seed 2, by which Lockstep also parts from itself "
        "when it sums in smaller micro-batches (.632 and .636 with learner.micro_batch_tokens=512)",
        program="peer_rows",
    ),
    Case(
        "reward_model", f"{RUNGS}/proxy_reward.yaml", 64, 64, 24, 4, measures.rank_pairs, "−loss on held-out pairs",
        {"center_rewards_coefficient": 0.01, "max_length": 24},
        program="peer_rows",
    ),
    Case(
        "rloo", f"{RUNGS}/addition.yaml", 16, 128, 60, 10, measures.solve_sums, "expected reward",
        {**GROUP, "normalize_advantages": False},
        seeds=5,
        note=f"TRL sums a response's log-probabilities, Lockstep's loss_mean `constant` divides the sum by {LONGEST}, "
        "and here the bound on the gradient's norm, too; AdamW does not see the factor",
        options=(*GROUPS, *RLOO, "grpo.loss_mean=constant", f"policy.max_grad_norm={1 / LONGEST}"),
    ),
    Case(
        "distill", f"{HERE}/distill.yaml", 64, 64, 60, 10, measures.solve_sums, "expected reward",
        {**SAMPLED, "beta": 1.0},
        seeds=5,
    ),
    Case(
        "distill, forward", f"{HERE}/distill.yaml", 64, 64, 60, 10, measures.solve_sums, "expected reward",
        {**SAMPLED, "beta": 0.0},
        seeds=5,
        options=("distill.kl_type=forward",),
    ),
)  # fmt: skip
"""In the order of the table."""


def open_case(name: str) -> Case:
    """Returns a case by its name."""
    return next(case for case in CASES if case.name == name)
