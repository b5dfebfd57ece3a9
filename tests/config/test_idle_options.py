"""Options that do nothing beside others are refused: every row of the table in
tests/commands/messages.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from lockstep.config.loading import RecipeError, describe_recipe, load_recipe

PAGE = (Path(__file__).parents[1] / "commands/messages.md").read_text()
TABLE = PAGE[
    PAGE.index("## Options that do nothing") : PAGE.index("## Options that do not go together")
]
ROWS = re.findall(r"^\| (\w[\w, ]*) \| `(.+?)` \| (.+) \|$", TABLE, re.MULTILINE)

MADE = {
    "task": {"name": "arithmetic", "train_questions": 8, "validation_questions": 8},
    "max_prompt_tokens": 64,
}
TRAINED: dict[str, Any] = {"model": {"path": "model"}, "data": MADE, "run": {}}
RL = {
    **TRAINED,
    "reward": {"type": "math"},
    "sampling": {"max_tokens": 8},
    "validation_sampling": {"max_tokens": 8},
    "policy": {"lr": 1.0},
}
LETTERS = {
    "task": {
        "name": "benchmarks.ladder.tasks.letters:Letters",
        "train_prompts": 8,
        "validation_prompts": 8,
    },
    "max_prompt_tokens": 64,
}
RECIPES: dict[str, dict[str, Any]] = {
    "ppo": {
        **RL,
        "critic": {"lr": 1.0},
        "ppo": {"num_prompts_per_step": 256, "global_batch_size": 128},
    },
    "grpo": {
        **RL,
        "grpo": {"num_prompts_per_step": 32, "num_generations": 8, "global_batch_size": 128},
    },
    "sft": {**TRAINED, "optimizer": {"lr": 1.0}, "sft": {"global_batch_size": 8, "max_tokens": 64}},
    "dpo": {**TRAINED, "optimizer": {"lr": 1.0}, "dpo": {"global_batch_size": 8, "max_tokens": 64}},
    "simpo": {
        **TRAINED,
        "optimizer": {"lr": 1.0},
        "simpo": {"global_batch_size": 8, "max_tokens": 64},
    },
    "orpo": {
        **TRAINED,
        "optimizer": {"lr": 1.0},
        "orpo": {"global_batch_size": 8, "max_tokens": 64},
    },
    "kto": {**TRAINED, "optimizer": {"lr": 1.0}, "kto": {"global_batch_size": 8, "max_tokens": 64}},
    "online_dpo": {
        **{name: section for name, section in RL.items() if name != "policy"},
        "optimizer": {"lr": 1.0},
        "online_dpo": {"num_prompts_per_step": 8},
    },
    "reward_model": {
        **TRAINED,
        "optimizer": {"lr": 1.0},
        "reward_model": {"global_batch_size": 8, "max_tokens": 64},
    },
    "distill": {
        **TRAINED,
        "optimizer": {"lr": 1.0},
        "sampling": {"max_tokens": 8},
        "teacher": {"path": "teacher"},
        "distill": {"num_prompts_per_step": 8, "global_batch_size": 8},
    },
    "self_rewarding": {
        **TRAINED,
        "data": LETTERS,
        "optimizer": {"lr": 1.0},
        "sampling": {"max_tokens": 8},
        "judge": {"max_prompt_tokens": 64, "sampling": {"max_tokens": 8}},
        "self_rewarding": {"global_batch_size": 8},
    },
}


def overrides(algorithm: str, options: Sequence[str]) -> list[str]:
    """Options of the table as overrides: their keys are below the algorithm's own, but for those of
    other sections.
    """
    whole = (
        "run.",
        "data.",
        "environment",
        "validation_reward",
        "reward=",
        "cluster.",
        "learner.",
        "optimizer.",
    )
    return [option if option.startswith(whole) else f"{algorithm}.{option}" for option in options]


CASES = [
    (algorithm, option, tuple(re.findall(r"`(.+?)`", beside)))
    for algorithms, option, beside in ROWS
    for algorithm in algorithms.split(", ")
]


@pytest.mark.parametrize(("algorithm", "option", "beside"), CASES)
def test_option_without_effect_is_rejected_by_name(
    algorithm: str, option: str, beside: tuple[str, ...], in_tmp: Path
) -> None:
    Path("plain.yaml").write_text(yaml.safe_dump({"algorithm": algorithm, **RECIPES[algorithm]}))
    others, [idle] = overrides(algorithm, beside), overrides(algorithm, [option])
    name = idle.partition("=")[0]
    resolved = load_recipe("plain.yaml", others)
    Path("resolved.yaml").write_text(describe_recipe(resolved))
    assert load_recipe("resolved.yaml").dump_options() == resolved.dump_options(), (
        "all values, defaults included, may be said"
    )
    with pytest.raises(RecipeError, match=r"ha(s|ve) no effect") as refused:
        load_recipe("plain.yaml", [*others, idle])
    assert len(str(refused.value).splitlines()) == 1
    assert name.rsplit(".", 1)[-1] in str(refused.value)


def test_idle_option_table_covers_every_training_algorithm() -> None:
    assert {algorithm for algorithm, _, _ in CASES} == set(RECIPES)
    rules = [line for line in TABLE.splitlines() if line.startswith("|") and "`" in line]
    assert len(ROWS) == len(rules), "each row of the table is read"
