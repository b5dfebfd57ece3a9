"""SimPO and ORPO as their users run them: without a reference policy, stopped and resumed, with
each option.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from killing import assert_same, copy_unfinished, final
from pairs_runs import of_steps
from tiny_recipe import ORPO, SIMPO
from training import train_rows

from lockstep.config.loading import RecipeError, load_recipe
from lockstep.run.dry_run.dry_run import dry_run

Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def learn(in_tmp: Path) -> Run:
    """Runs a small recipe with overrides in an empty folder; returns the rows of metrics.jsonl."""
    for name, recipe in {"simpo": SIMPO, "orpo": ORPO}.items():
        (in_tmp / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
    return lambda name, *overrides: train_rows(f"{name}.yaml", *overrides)


@pytest.mark.parametrize("name", ["simpo", "orpo"])
def test_simpo_and_orpo_learn_preferences_and_resume_bit_identically(learn: Run, name: str) -> None:
    options = ("run.max_steps=6", "run.save_every=3", "run.validate_every=6", "optimizer.lr=1e-2")
    whole = learn(name, "run.folder=whole", *options)
    loss = of_steps(whole)
    assert loss[-1] < 0.8 * loss[0]
    assert of_steps(whole, "validation/acc")[-1] == 1.0
    assert "validation/acc_low" in whole[0]
    copy_unfinished(6)
    assert learn(name, "run.folder=stopped", *options) == whole
    assert_same(final("whole"), final("stopped"))


@pytest.mark.parametrize(
    ("name", "options"),
    [("simpo", ("simpo.beta=1", "simpo.margin=0", "simpo.sft_loss_weight=0.5", "simpo.global_batch_size=4")),
     ("orpo", ("orpo.odds_ratio_weight=1", "orpo.global_batch_size=4"))],
)  # fmt: skip
def test_every_simpo_and_orpo_option_changes_the_loss(
    learn: Run, name: str, options: tuple[str, ...]
) -> None:
    plain = of_steps(learn(name, "run.max_steps=1"))
    for option in options:
        assert of_steps(learn(name, "run.max_steps=1", f"run.folder={option}", option)) != plain


@pytest.mark.parametrize("name", ["simpo", "orpo"])
def test_simpo_and_orpo_load_no_reference_and_reject_dpo_options(learn: Run, name: str) -> None:
    said = dry_run(load_recipe(f"{name}.yaml", []))
    assert "1 optimizer step of 8 pairs" in said
    assert "reference" not in said
    for option in ("ref_policy_kl_penalty=0.1", "label_smoothing=0.1"):
        with pytest.raises(RecipeError, match=f"unknown option {name}.{option.partition('=')[0]}"):
            load_recipe(f"{name}.yaml", [f"{name}.{option}"])
