"""NeMo RL's defaults that decide what is trained, of keys that a config does not say."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.foreign import nemo_rl_data as data
from lockstep.foreign import nemo_rl_steps as steps
from lockstep.foreign.words import Config, Json

_LOSS: dict[str, Json] = {
    "loss_fn.ratio_clip_min": 0.2, "loss_fn.ratio_clip_max": 0.2, "loss_fn.reference_policy_kl_penalty": 0.01,
    "loss_fn.reference_policy_kl_type": "k3",
}  # fmt: skip
DEFAULTS: dict[str, dict[str, Json]] = {
    "grpo": _LOSS | {
        "grpo.num_prompts_per_step": 32, "grpo.num_generations_per_prompt": 16, "grpo.max_num_epochs": 1,
        "grpo.max_num_steps": steps.ENDLESS, "grpo.seed": 42, "grpo.adv_estimator.name": "grpo",
        "grpo.adv_estimator.use_leave_one_out_baseline": True, "grpo.adv_estimator.normalize_rewards": True,
    },
    "ppo": _LOSS | {
        "ppo.num_prompts_per_step": 32, "ppo.num_generations_per_prompt": 16, "ppo.max_num_epochs": 100000,
        "ppo.max_num_steps": 100000, "ppo.seed": 42, "ppo.ppo_epochs": 4, "ppo.adv_estimator.gae_lambda": 0.95,
        "ppo.adv_estimator.gae_gamma": 1.0, "ppo.adv_estimator.normalize_advantages": True,
    },
    "dpo": {
        "dpo.max_num_epochs": 1, "dpo.max_num_steps": 150, "dpo.seed": 42, "dpo.reference_policy_kl_penalty": 0.05,
        "dpo.preference_loss_weight": 1.0, "dpo.sft_loss_weight": 0.0, "dpo.preference_average_log_probs": False,
        "dpo.sft_average_log_probs": False,
    },
    "sft": {"sft.max_num_epochs": 1, "sft.max_num_steps": 60, "sft.seed": 42, "sft.only_unmask_final": False},
    "reward_model": {"rm.max_num_epochs": 1, "rm.max_num_steps": -1, "rm.seed": 42},
    "distill": {
        "distillation.num_prompts_per_step": 128, "distillation.num_generations_per_prompt": 1,
        "distillation.max_num_steps": 1000, "distillation.max_num_epochs": 10, "distillation.topk_logits_k": 64,
        "distillation.seed": 42, "loss_fn.kl_type": "mixed", "loss_fn.mixed_kl_weight": 0.5,
        "loss_fn.zero_outside_topk": False,
    },
}  # fmt: skip


_OF_ADAMW: dict[str, Json] = {f"{owner}.optimizer.kwargs.weight_decay": 0.01 for owner in ("policy", "value")}
"""Torch's own, of a config that builds AdamW without it."""


def find_defaults(config: Config) -> Mapping[str, Json]:
    """Their defaults of an algorithm and of a data set."""
    if not config.algorithm:
        return {}
    return {**DEFAULTS.get(config.algorithm, {}), **_OF_ADAMW, **data.find_defaults(config)}
