"""Distillation as its users run it: on the student's responses or the data's answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from killing import assert_same, final
from row_files import read_trained
from tiers import full
from tiny_recipe import RECIPE as PPO
from training import train_rows

from lockstep.config.loading import RecipeError, load_recipe
from lockstep.report.agreement import summarize_agreement
from lockstep.report.summary import summarize_run
from lockstep.run.dry_run.dry_run import dry_run
from lockstep.run.stop import StoppedRun
from lockstep.run.train import train_recipe

Run = Callable[..., list[dict[str, Any]]]
RECIPE = {
    **{
        name: PPO[name]
        for name in ("model", "data", "learner", "sampling", "validation_sampling", "run")
    },
    "algorithm": "distill",
    "teacher": {"path": "teacher"},
    "validation_reward": {"type": "python", "function": "rewards.py:parity"},
    "distill": {"num_prompts_per_step": 8, "num_generations": 2, "global_batch_size": 8},
    "optimizer": {"lr": 1.0e-2},
}


OFF_POLICY = (
    "distill.on_policy=false", "sampling=null", "distill.max_tokens=96", "distill.num_generations=1",
    "data.completion='{answer}'",
)  # fmt: skip


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a model that has learned something, with the one that it began as."""
    root = tmp_path_factory.mktemp("teacher")
    sft = {name: PPO[name] for name in ("model", "learner")} | {
        "algorithm": "sft",
        "data": {**PPO["data"], "completion": "{answer}"},
        "sft": {"global_batch_size": 16, "max_tokens": 96},
        "optimizer": {"lr": 2.0e-2},
        "run": {"max_steps": 12},
    }
    (root / "sft.yaml").write_text(yaml.safe_dump(sft))
    return train_recipe(load_recipe(str(root / "sft.yaml"), [f"run.folder={root / 'run'}"]))


@pytest.fixture
def learn(in_tmp: Path, teacher: Path) -> Run:
    """Runs the small recipe with overrides in a folder that has the teacher; returns the rows of
    metrics.jsonl.
    """
    (in_tmp / "teacher").symlink_to(teacher)
    recipe = {**RECIPE, "model": {"path": str(teacher / "initial")}}
    (in_tmp / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    (in_tmp / "rewards.py").write_text(
        "def parity(prompt, response, answer, row):\n    return float(len(response) % 2)\n"
    )
    return lambda *overrides: train_rows("tiny.yaml", *overrides)


def of(rows: list[dict[str, Any]], name: str = "policy/loss") -> list[float]:
    return [row[name] for row in rows if name in row]


@pytest.mark.parametrize("kind", ["forward", "reverse", "mixed", "jsd"])
@pytest.mark.parametrize(
    "tokens",
    [(), full(("distill.top_k=4",)), full(("distill.top_k=4", "distill.zero_outside_topk=true"))],
)
def test_on_policy_distillation_lowers_divergence_to_teacher(
    learn: Run, kind: str, tokens: tuple[str, ...]
) -> None:
    weight = ["distill.mixed_kl_weight=0.3"] if kind in ("mixed", "jsd") else []
    rows = learn(
        "run.max_steps=15", f"distill.kl_type={kind}", "run.num_logged_samples=2", *weight, *tokens
    )
    divergence = of(rows)
    assert divergence[-1] < 0.35 * divergence[0]
    assert of(rows, "policy/same_first_choice")[-1] > of(rows, "policy/same_first_choice")[0]
    assert max(of(rows, "agreement/max_abs_logprob_diff")) < 1e-4
    assert summarize_agreement(rows).word == "AGREE"
    assert 0.0 <= of(rows, "validation/reward")[-1] <= 1.0
    shown = read_trained("run/samples.jsonl")[0]
    assert {"prompt", "response", "token"} <= shown.keys()


def test_off_policy_distillation_on_data_answers_lowers_divergence_to_teacher(learn: Run) -> None:
    rows = learn("run.max_steps=15", "distill.kl_type=forward", *OFF_POLICY)
    assert of(rows)[-1] < 0.35 * of(rows)[0]
    assert not of(rows, "agreement/max_abs_logprob_diff")
    assert (
        "NOT MEASURED: no sampled token has log-probabilities from both sampler and learner"
        in summarize_run(Path("run"))
    )


def test_stopped_distillation_resumes_with_bit_identical_weights(learn: Run) -> None:
    whole = learn("run.folder=whole", "run.max_steps=3")
    for _ in range(2):
        with pytest.raises(StoppedRun):
            learn("run.folder=stopped", "run.max_steps=3", "run.max_time_s=0.01")
    assert learn("run.folder=stopped", "run.max_steps=3", "run.max_time_s=0.01") == whole
    assert_same(final("stopped"), final("whole"))


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("distill.zero_outside_topk=true", "zero_outside_topk requires top_k"),
        (
            "distill.top_k=1",
            "top_k=1 compares distributions over a single token, which are always equal",
        ),
        ("distill.mixed_kl_weight=0.3", "mixed_kl_weight requires kl_type mixed or jsd"),
        ("distill.on_policy=false", "max_tokens requires on_policy=false"),
        ("sampling=null", "sampling requires distill.on_policy"),
        ("distill.global_batch_size=5", "= 16 is not a multiple of global_batch_size = 5"),
    ],
)
def test_incompatible_distill_options_are_rejected(learn: Run, option: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        learn(option)


def test_dry_run_reports_teacher_and_rejects_unusable_teacher_or_top_k(
    learn: Run, in_tmp: Path
) -> None:
    said = dry_run(load_recipe("tiny.yaml", []))
    assert "teacher/final reads the policy's tokens" in said
    wider = in_tmp / "wider"
    shutil.copytree("teacher/final", wider)
    fields = json.loads((wider / "config.json").read_text())
    (wider / "config.json").write_text(
        json.dumps({**fields, "vocab_size": fields["vocab_size"] + 8})
    )
    with pytest.raises(
        ValueError, match=r"the teacher in wider has vocab_size \d+, .* use models with"
    ):
        dry_run(load_recipe("tiny.yaml", ["teacher.path=wider"]))
    with pytest.raises(ValueError, match="nowhere"):
        dry_run(load_recipe("tiny.yaml", ["teacher.path=nowhere"]))
    with pytest.raises(
        ValueError, match=r"distill.top_k=9999, but the student has \d+ tokens; leave top_k out"
    ):
        dry_run(load_recipe("tiny.yaml", ["distill.top_k=9999"]))
    with pytest.raises(
        ValueError, match=r"folder runs/teacher does not exist; .* machine, or train that run first"
    ):
        dry_run(load_recipe("tiny.yaml", ["teacher.path=runs/teacher"]))
