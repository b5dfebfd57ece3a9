"""A recipe's errors are reported together, and options of a shipped base give way to a user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.algorithms.ppo.options import PPORecipe
from lockstep.config.errors import RecipeError
from lockstep.config.loading import load_recipe

OWN_REWARD = """
base: ppo_gsm8k
model: {path: FOLDER}
data: {train: rows.jsonl, validation: null}
reward: {function: my_rewards.py:brief}
"""


def write(folder: Path, text: str, name: str = "mine.yaml") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def faults(recipe: str, *overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe, overrides)
    return [line.partition(": ")[2] for line in str(caught.value).splitlines()]


def test_recipe_errors_of_all_sections_are_reported_together(tmp_path: Path) -> None:
    recipe = write(
        tmp_path,
        """
base: grpo
model: {path: FOLDER, from_recipe: sft}
data: {train: rows.jsonl, system_prompt: be brief}
sampling: {temperature: 0, top_k: 5}
learner: {cpu_offload: true}
run: {best: {metric: validation/reward}, save_every: 7, validate_every: 5}
""",
    )
    sections = [sentence.partition(":")[0] for sentence in faults(recipe)]
    assert {"model", "data", "sampling", "learner", "run"} <= set(sections)
    assert len(sections) == len(set(sections))


def test_shipped_base_options_that_conflict_with_user_options_are_dropped_with_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = load_recipe(write(tmp_path, OWN_REWARD))
    recipe = loaded.expect_recipe(PPORecipe)
    assert recipe.reward is not None
    assert (recipe.reward.type, recipe.reward.marker) == ("python", None)
    assert recipe.run.validate_every == 0
    assert recipe.data.max_validation_samples is None
    assert loaded.find_origin(("run", "validate_every")) == "default"
    notes = capsys.readouterr().err
    assert "run.validate_every=1 of ppo_gsm8k is dropped" in notes
    assert "data.max_validation_samples=256 of ppo_gsm8k is dropped" in notes


def test_conflicting_option_written_by_user_is_rejected_and_not_dropped(tmp_path: Path) -> None:
    recipe = write(tmp_path, OWN_REWARD)
    assert any("validate_every" in sentence for sentence in faults(recipe, "run.validate_every=3"))
    own_base = write(tmp_path, OWN_REWARD + "run: {validate_every: 3}\n", "team.yaml")
    above = write(tmp_path, f"base: {Path(own_base).name}\nseed: 1\n", "above.yaml")
    assert any("validate_every" in sentence for sentence in faults(above))


def test_reward_type_is_inferred_from_reward_options(tmp_path: Path) -> None:
    base = "base: ppo_gsm8k\nmodel: {path: FOLDER}\ndata: {train: rows.jsonl}\n"
    recipe = write(tmp_path, base)

    def type_with(*overrides: str) -> str:
        reward = load_recipe(recipe, overrides).expect_recipe(PPORecipe).reward
        return "" if reward is None else reward.type

    assert type_with("reward.function=my_rewards.py:brief") == "python"
    assert type_with("reward.server.url=http://localhost:1/score") == "server"
    assert type_with() == "math"
