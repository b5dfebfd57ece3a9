"""A recipe small enough to run for a few steps in a second or two, and reward functions for it."""

from __future__ import annotations

from typing import Any

REWARDS = '''
def parity(prompt, response, answer, row):
    """A response is worth its share of characters that are even digits: random policies get different rewards."""
    return sum(c in "02468" for c in response) / max(1, len(response))


def often_none(prompt, response, answer, row):
    return None if len(response) % 2 else 1.0


def constant(prompt, response, answer, row):
    return 1.0
'''

RECIPE: dict[str, Any] = {
    "algorithm": "ppo",
    "model": {
        "scratch": {
            "config": {
                "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
                "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 96,
            }
        }
    },
    "data": {
        "task": {"name": "arithmetic", "train_questions": 64, "validation_questions": 8},
        "prompt": "{question}\n",
        "max_prompt_tokens": 64,
    },
    "learner": {"device": "cpu"},
    "reward": {"type": "python", "function": "rewards.py:parity"},
    "sampling": {"max_tokens": 12},
    "validation_sampling": {"max_tokens": 12, "temperature": 0.0},
    "ppo": {"num_prompts_per_step": 8, "num_generations": 2, "global_batch_size": 8},
    "policy": {"lr": 1.0e-3},
    "critic": {"lr": 1.0e-3},
    "run": {"max_steps": 2, "save_every": 1, "folder": "run"},
}  # fmt: skip
