"""Column names that libraries use in dumps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KNOWN: Mapping[str, tuple[str, ...]] = {
    "train": (
        "train_logprobs",
        "prev_logprobs",  # NeMo RL
        "old_log_probs",  # verl
        "old_per_token_logps",  # TRL
        "log_probs",  # slime
        "trainer_logprobs",  # prime-rl
    ),
    "infer": (
        "infer_logprobs",
        "generation_logprobs",  # NeMo RL
        "rollout_log_probs",  # verl, slime
        "sampling_per_token_logps",  # TRL
        "inference_logprobs",  # prime-rl
    ),
    "ids": ("ids", "token_ids", "input_ids", "tokens"),
    "prompt_ids": ("prompt_ids", "prompts", "prompt_token_ids"),
    "response_ids": ("completion_ids", "responses", "response_ids"),
    "mask": (
        "mask",
        "token_loss_mask",  # NeMo RL
        "response_mask",  # verl
        "completion_mask",  # TRL
        "tool_mask",  # TRL, 0 for what tools answered
        "loss_mask",  # slime, prime-rl, and verl with tools
        "loss_masks",  # slime
    ),
    "attention": ("attention_mask",),
    "prompt_attention": ("prompt_mask",),
    "length": ("input_lengths",),
    "prompt_length": ("prompt_length",),
    "temperature": ("temperature",),
    "prompt": ("prompt_id", "uid", "group_index"),
}
"""Known names by role.

All masks present are combined; for other roles the first name present counts.
"""


class DumpError(ValueError):
    """Invalid dump or model folder; the message is one sentence that says what to do."""


@dataclass(frozen=True)
class FieldNames:
    """Names of a dump's columns that are not in `KNOWN`.

    Attributes:
        train: Log-probabilities of the training side, a list in each row.
        infer: Log-probabilities of the inference side.
        ids: Token ids of prompt and response.
        mask: 1 or true for generated tokens.
        attention: 0 or false for padding, over all ids.
        prompt_length: Number of prompt tokens at the start of the row.
        temperature: Sampling temperature of the row.
        prompt: Id of the prompt; rows that answer the same prompt have the same value.
    """

    train: str | None = None
    infer: str | None = None
    ids: str | None = None
    mask: str | None = None
    attention: str | None = None
    prompt_length: str | None = None
    temperature: str | None = None
    prompt: str | None = None

    def list_candidates(self, role: str) -> tuple[str, ...]:
        """Returns the given name of a role, or all known names."""
        own: str | None = vars(self).get(role)
        if own is None:
            return KNOWN[role]
        return (own,)
