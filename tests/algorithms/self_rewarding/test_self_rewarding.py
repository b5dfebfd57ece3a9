"""Self-rewarding training as its users run it: iterations, their boundaries, who acts, and how it
goes on.

The model knows nothing, so its verdicts are digits that it happens to say: enough for pairs, and
for nothing else.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from ladder_recipes import rung
from row_files import read_rows, write_rows
from safetensors.torch import load_file
from self_rewarding_runs import Run, equal, held, steps, trained
from tiny_recipe import SELF_REWARDING

from benchmarks.ladder.tasks.letters import score
from lockstep.algorithms.preference_options import PreferenceSection
from lockstep.algorithms.self_rewarding.options import SelfRewardingSection
from lockstep.config.loading import load_recipe
from lockstep.report.agreement import summarize_agreement
from lockstep.report.log import read_metrics
from lockstep.rewards.math_reward import MathReward
from lockstep.run.stop import StoppedRun
from lockstep.run.train import train_recipe

TINY_RECIPE = SELF_REWARDING


def updates(step: int) -> int:
    """How many updates the optimizer's moments know of."""
    moments = load_file(f"run/checkpoints/step_{step:06d}/policy/optimizer.safetensors")
    [known] = {int(count) for name, count in moments.items() if name.startswith("step.")}
    return known


def test_reference_stays_fixed_within_iteration_then_takes_policy_weights(
    run: Run,
) -> None:
    rows = steps(run())
    assert summarize_agreement(rows).word == "AGREE"
    assert [row["train/iteration"] for row in rows] == [0, 0, 1, 1]
    assert not equal(held(1, "policy"), held(1, "reference"))
    # to the end it is what the answers are from
    assert equal(held(2, "reference"), held(1, "reference"))
    assert equal(held(3, "reference"), held(2, "policy"))
    assert equal(held(4, "reference"), held(3, "reference"))
    learned = [updates(step) for step in range(1, 5)]
    assert learned == [1, 2, 1, 2]  # the optimizer forgot the iteration before
    assert [row["weight_sync/version"] for row in rows] == [0, 0, 2, 2]
    for row in (rows[0], rows[2]):  # where the policy is the reference
        assert row["train/preference_loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert rows[1]["train/preference_loss"] != pytest.approx(math.log(2), abs=1e-6)


def test_stopped_self_rewarding_run_resumes_bit_identically(run: Run) -> None:
    whole = run("run.folder=whole", "run.validate_every=1")
    for _ in range(2):  # within the first iteration, and at its end
        with pytest.raises(StoppedRun):
            run("run.folder=parts", "run.validate_every=1", "run.max_time_s=0.01")
    assert run("run.folder=parts", "run.validate_every=1") == whole
    for name in ("policy", "reference"):
        assert equal(held(4, name, "whole"), held(4, name, "parts"))
    assert Path("whole/samples.jsonl").read_bytes() == Path("parts/samples.jsonl").read_bytes()


def test_preference_pairs_and_pair_metrics_follow_judge_scores(run: Run) -> None:
    rows = steps(run())
    samples = trained()
    assert len(samples) == 4 * 8
    for one in (one for one in samples if one["status"] == "ok"):
        scores = [score for score in one["scores"] if score == score]
        assert one["chosen_score"] > one["rejected_score"]
        assert {one["chosen_score"], one["rejected_score"]} <= set(scores)
        assert len(one["chosen_judgments"]) == 8
    bad = [sum(one["status"] != "ok" for one in samples[8 * i : 8 * i + 8]) / 8 for i in range(4)]
    assert [row["train/bad_samples_per_GBS"] for row in rows] == pytest.approx(bad)
    assert all(0 < row["judge/parse_failures"] < 1 for row in rows)
    told = {
        "train/chosen_lengths", "train/reject_lengths", "train/bad_ends_per_GBS", "train/chosen_generated_rewards",
        "train/top_class_share", "train/pairs/tie", "judge/no_verdict_no_match", "train/acc",
    }  # fmt: skip
    assert told <= rows[0].keys()


@pytest.mark.full
def test_prompt_source_gives_iterations_same_or_disjoint_prompts(run: Run) -> None:
    def asked(folder: str) -> list[set[str]]:
        ids = [row["id"] for row in trained(folder)]
        return [set(ids[: len(ids) // 2]), set(ids[len(ids) // 2 :])]

    run("run.folder=same")
    assert asked("same")[0] == asked("same")[1]
    rows = steps(run("run.folder=split", "self_rewarding.prompt_source=split"))
    assert [row["train/iteration"] for row in rows] == [0, 1]
    assert not asked("split")[0] & asked("split")[1]


def test_math_validation_uses_held_out_answers_when_training_rows_have_none(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MathReward, "extract_answer", lambda *_: "7")
    run("run.max_steps=1", "run.folder=made")
    rows = read_rows("made/data/train.jsonl")
    write_rows("rows.jsonl", ({"question": row["question"]} for row in rows))
    write_rows(
        "held_out.jsonl",
        [{**row, "answer": answer} for row, answer in zip(rows, "7778", strict=False)],
    )
    data = "data={task: null, train: rows.jsonl, validation: held_out.jsonl}"
    reward = ("validation_reward={type: math, function: null}", "validation_sampling.max_tokens=8")
    values = run(data, *reward, "run.max_steps=1", "run.validate_every=1")
    assert [row["validation/accuracy"] for row in values if "validation/accuracy" in row] == [
        0.75,
        0.75,
    ]


LAYOUTS = {
    "copies": ("learner.parallel.dp=2",),
    "shards": ("learner.parallel.tp=2",),
    "stages": ("learner=megatron", "learner.parallel.pp=2"),
}


@pytest.mark.full
@pytest.mark.needs("gloo")
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param("copies", marks=pytest.mark.proof),
        "shards",
        pytest.param("stages", marks=[pytest.mark.needs("megatron"), pytest.mark.proof]),
    ],
)
def test_two_ranks_choose_same_preference_pairs_as_one_process(
    run: Run, layout: str, request: pytest.FixtureRequest
) -> None:
    if layout == "stages":
        request.getfixturevalue("megatron")
    deep = "model.scratch.config.num_hidden_layers=2"
    run("run.folder=one", deep, "agreement.exact=false")  # as two ranks compute
    # beyond the end of an iteration
    run("run.folder=two", deep, *LAYOUTS[layout], "run.max_steps=3")
    assert trained("one")[: 3 * 8] == trained("two")


@pytest.mark.full
@pytest.mark.needs("vllm")
@pytest.mark.usefixtures("vllm")
def test_vllm_samples_and_judges_with_weights_from_iteration_start(run: Run) -> None:
    rows = steps(run("sampler=vllm", "sampler.kv_cache_gib=0.05", "run.save_every=9"))
    assert [row["weight_sync/version"] for row in rows] == [0, 0, 2, 2]
    assert all(row["weight_sync/probe_gap_max"] < 1e-4 for row in rows)
    for row in (rows[0], rows[2]):  # where the policy is the reference
        assert row["train/preference_loss"] == pytest.approx(math.log(2), abs=1e-6)
        assert 0 < row["judge/parse_failures"] < 1


def test_self_rewarding_guide_documents_every_metric_and_option(run: Run) -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/self_rewarding.md").read_text()
    learned = steps(run("run.max_steps=1"))
    nothing = steps(
        run(
            "run.max_steps=1",
            "judge.judge_score_low=90",
            "judge.judge_score_high=91",
            "run.folder=no",
        )
    )
    metrics = {
        name for row in learned + nothing for name in row if name.startswith(("train/", "judge/"))
    }
    assert "`val/…`" in guide
    assert not [name for name in metrics if f"`{name}`" not in guide]
    own = SelfRewardingSection.model_fields.keys() - PreferenceSection.model_fields.keys()
    assert not [name for name in own if f"`{name}`" not in guide]


@pytest.mark.proof
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_self_rewarding_raises_held_out_reward_across_iterations(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.chdir(workplace)
    folder = train_recipe(
        load_recipe(
            rung("self_rewarding_small"),
            [f"seed={seed}", "learner.device=cpu", "run.num_logged_samples=64"],
        )
    )
    rows = read_metrics(folder)
    worth = [row["validation/reward"] for row in rows if "validation/reward" in row]
    assert worth == sorted(worth)
    assert worth[-1] - worth[0] >= 1.2
    assert all(row["judge/parse_failures"] <= 0.01 for row in steps(rows))
    samples = read_rows(folder / "samples.jsonl")
    pairs = [one for one in samples if one.get("status") == "ok"]
    ordered = [truth(one, "chosen") > truth(one, "rejected") for one in pairs]
    print(f"seed {seed}: {worth}, {sum(ordered) / len(ordered):.1%} of pairs in their true order")
    assert sum(ordered) / len(ordered) >= 0.85


def truth(row: dict[str, Any], which: str) -> float:
    """What an answer of a pair is really worth."""
    return score(row["prompt"], row[which], "", {})
