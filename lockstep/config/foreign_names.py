"""Words of other libraries that people try first, and the keys of recipes that they mean. Imports nothing.

It is short on purpose: docs/coming_from.md has them all, and a test holds this to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

MEANT: Mapping[str, tuple[str, ...]] = {
    "beta": ("grpo.kl.coef", "ppo.kl.coef", "dpo.ref_policy_kl_penalty"),
    "learning_rate": ("policy.lr", "optimizer.lr"),
    "max_completion_length": ("sampling.max_tokens",),
    "num_train_epochs": ("run.max_epochs",),
    "per_device_train_batch_size": (
        "grpo.global_batch_size",
        "ppo.global_batch_size",
        "sft.global_batch_size",
        "dpo.global_batch_size",
        "reward_model.global_batch_size",
    ),
}
"""Keys that a word stands for; a recipe has one of them, or none."""


def find(word: str, options: Collection[str]) -> str | None:
    """The option, of those that a recipe has, that a word of another library means; None where there is none."""
    return next((key for key in MEANT.get(word, ()) if key in options), None)
