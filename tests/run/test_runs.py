"""Runs as their users make them: continued, finished, changed, on real data, on two ranks, and with
bad input.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from row_files import read_trained
from safetensors.torch import load_file
from training import assert_alike, step_rows, train_rows

from lockstep.run.folder.files import lock_folder
from lockstep.run.folder.identity import ChangedError

Run = Callable[..., list[dict[str, Any]]]


def test_finished_run_is_not_repeated_and_changed_option_starts_new_run(
    run: Run, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("run.folder=null")
    run("run.folder=null")
    assert "is finished" in capsys.readouterr().out
    run("run.folder=null", "ppo.clip=0.1")
    assert len(list(Path("runs").iterdir())) == 2


def test_run_of_zero_steps_validates_and_saves_initial_model(run: Run, in_tmp: Path) -> None:
    rows = run("run.max_steps=0")
    assert [row["step"] for row in rows] == [0]
    first, final = (load_file(f"run/{name}/model.safetensors") for name in ("initial", "final"))
    assert all(torch.equal(first[name], final[name]) for name in first)


@pytest.mark.needs("gloo")
@pytest.mark.parametrize("name", ["dp", "cp"])
def test_ppo_on_two_ranks_matches_one_rank_metrics_and_is_exact(run: Run, name: str) -> None:
    how = ("run.max_steps=3", "agreement.exact=require")
    one = run("run.folder=one", *how)
    two = run("run.folder=two", *how, f"learner.parallel.{name}=2")
    assert_alike(two, one)
    certificates = [
        json.loads(Path(folder, "certificate.json").read_text()) for folder in ("one", "two")
    ]
    assert [found["level"] for found in certificates] == ["E2", "E2"]
    assert certificates[1]["tokens"] == certificates[0]["tokens"] > 0
    assert certificates[1]["mismatches"] == 0


GSM8K = (
    "data.max_prompt_tokens=400", "sampling.max_tokens=64", "validation_sampling.max_tokens=64",
    "ppo.num_prompts_per_step=8", "ppo.global_batch_size=4", "data.max_validation_samples=4", "run.max_steps=3",
    "learner.device=cpu", "run.folder=gsm8k", "ppo.overlong_filtering=false",
)  # fmt: skip


def test_ppo_gsm8k_recipe_trains_real_model_with_sampler_learner_agreement(
    assets: Path, in_tmp: Path
) -> None:
    data = (
        f"data.train={assets}/data/gsm8k/train.jsonl",
        f"data.validation={assets}/data/gsm8k/test.jsonl",
    )
    model = f"model.path={assets}/models/stories260K/hf"
    rows = train_rows("ppo_gsm8k", model, *data, *GSM8K, "learner.dtype=fp32")
    steps = step_rows(rows)
    assert len(steps) == 3
    assert all(0.0 <= row["train/reward"] <= 1.0 for row in steps)
    # Logits of up to 34 in fp32: against fp64, learner and sampler are each off by up to 1.5e-5.
    assert all(row["agreement/max_abs_logprob_diff"] < 1e-4 for row in steps)
    assert all(row["agreement/token_mult_prob_error"] < 1 + 1e-5 for row in steps)
    assert all(row["critic/grad_norm"] > 0 for row in steps)
    samples = read_trained("gsm8k/samples.jsonl")
    assert len(samples) == 24
    assert all(sample["tokens"] <= 64 for sample in samples)


def test_run_folder_in_use_is_rejected_and_left_unchanged(run: Run, in_tmp: Path) -> None:
    run("run.folder=busy", "run.max_steps=1")
    shutil.rmtree("busy/final")
    before = Path("busy/metrics.jsonl").read_bytes()
    with (
        lock_folder(Path("busy")),
        pytest.raises(ValueError, match="busy is in use by another process"),
    ):
        run("run.folder=busy", "run.max_steps=1")
    assert Path("busy/metrics.jsonl").read_bytes() == before


def test_finished_run_with_changed_data_or_reward_is_rejected(
    run: Run, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("rows.jsonl").write_text(
        "".join(f'{{"question": "a{n}", "answer": "1"}}\n' for n in range(64))
    )
    options = ("data.task=null", "data.train=rows.jsonl", "run.folder=mine", "run.validate_every=0")
    run(*options)
    rewards, rows = Path("rewards.py").read_text(), Path("rows.jsonl").read_text()
    run(*options)
    assert "is finished" in capsys.readouterr().out
    for path, text in (
        ("rewards.py", f"{rewards}\n# changed\n"),
        ("rows.jsonl", rows.replace("a1", "b1")),
    ):
        before = Path(path).read_text()
        Path(path).write_text(text)
        with pytest.raises(
            ChangedError, match="mine is finished, and was trained with different inputs"
        ):
            run(*options)
        Path(path).write_text(before)
    Path("rows.jsonl").unlink()
    run(*options)
    assert "is finished" in capsys.readouterr().out


def test_truncated_responses_get_declared_cut_off_reward(run: Run) -> None:
    (row,) = step_rows(run("run.max_steps=1", "reward.cut_off=-2"))
    assert row["train/truncated"] > 0
    assert row["train/reward_cut_off"] == row["train/reward_min"] == -2.0
    assert row["train/cut_off_as_is"] == 0.0
