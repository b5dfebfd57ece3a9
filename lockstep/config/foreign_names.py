"""Words of other libraries that people try first, and the keys of recipes that they mean. Imports nothing.

It is short on purpose: docs/coming_from.md has them all, and a test holds this to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

MEANT: Mapping[str, tuple[str, ...]] = {
    "beta": ("kl.coef", "ref_policy_kl_penalty"),
    "learning_rate": ("policy.lr", "optimizer.lr"),
    "max_completion_length": ("sampling.max_tokens",),
    "num_train_epochs": ("run.max_epochs",),
    "per_device_train_batch_size": ("global_batch_size",),
}
"""Ends of keys that a word stands for, since the section is the algorithm's; a recipe has one of them, or none."""


def find(word: str, options: Collection[str]) -> str | None:
    """The option, of those that a recipe has, that a word of another library means; None where there is none."""
    ends = [f".{end}" for end in MEANT.get(word, ())]
    return next((key for end in ends for key in options if f".{key}".endswith(end)), None)
