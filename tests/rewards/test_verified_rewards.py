"""Verifiers in runs: PPO and `lockstep eval` on rows that each name their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from row_files import read_trained, write_rows
from training import step_rows

from lockstep.inference.eval_recipe import eval_recipe
from lockstep.inference.evaluate import evaluate
from lockstep.tasks.arithmetic import distinct_problems

Run = Callable[..., list[dict[str, Any]]]
pytestmark = pytest.mark.usefixtures("sandboxes")

SECTIONS = "instructions: {field: asked}, code: {tests: tests, program: text, sandboxes: 2}"
BY_ROW = f"reward={{type: by_row, function: null, verifier: kind, {SECTIONS}}}"
VERIFIED: list[dict[str, Any]] = [
    {"kind": "math"},
    {
        "kind": "instructions",
        "asked": [{"id": "words", "at_most": 1000}, {"id": "words", "at_least": 1000}],
    },
    {"kind": "none"},
    {"kind": "code", "tests": ["no_such_name"]},
]


def write_problems(count: int) -> list[str]:
    """Problems, each in turn for another verifier; gives the overrides that read them in this
    order.

    Only those of math have a right answer, since nobody else reads one.
    """
    rows = [
        problem.answer_row() | VERIFIED[i % 4]
        for i, problem in enumerate(distinct_problems(count, 0))
    ]
    for row in rows:
        if row["kind"] != "math":
            row.pop("answer")
    write_rows("rows.jsonl", rows)
    return [
        "data.task=null",
        "data.train=rows.jsonl",
        "data.validation=rows.jsonl",
        "data.shuffle=false",
    ]


def test_ppo_scores_each_row_with_its_verifier_and_counts_missing_verdicts(run: Run) -> None:
    rows = run(*write_problems(16), BY_ROW)
    trained = step_rows(rows)
    # 2 prompts of 8 have none, answered twice
    assert [row["train/no_verdict"] for row in trained] == [4, 4]
    samples = read_trained("run/samples.jsonl")
    assert {
        sample["score"] for sample in samples if sample["id"] in ("rows.jsonl:2", "rows.jsonl:6")
    } == {0.5}
    [first, *_] = [row for row in rows if "validation/reward" in row]
    assert first["validation/reward"] == pytest.approx((4 * 0.5 + 0.0) / 12)
    assert first["validation/pass@1"] == 0.0
    assert first["validation/no_verdict"] == 4


def test_eval_pass_at_1_counts_only_responses_with_full_reward(assets: Path, in_tmp: Path) -> None:
    """On a real model, whose prose is no program, and has words."""
    rows = [
        {
            "kind": "instructions",
            "asked": [{"id": "words", "at_least": 1}, {"id": "words", "at_most": 9}],
        },
        {
            "kind": "instructions",
            "asked": [{"id": "words", "at_least": 1}, {"id": "words", "at_least": 99}],
        },
        {"kind": "code", "tests": ["pass"]},
        {"kind": "none"},
    ]
    lines = [json.dumps({"question": "Once upon a time", **row}) + "\n" for row in rows]
    Path("rows.jsonl").write_text("".join(lines))
    model, few = (
        f"{assets}/models/stories260K/hf",
        [
            "greedy.max_tokens=8",
            "sampling=null",
            "learner.dtype=fp32",
            "data.max_prompt_tokens=400",
        ],
    )
    by_row = BY_ROW.replace("function: null", "marker: null")
    folder = evaluate(eval_recipe(model, "rows.jsonl", [*few, by_row, "learner.device=cpu"]))
    greedy = json.loads((folder / "results.json").read_text())["settings"]["greedy"]
    assert {name: figure["value"] for name, figure in greedy["figures"].items()} == {
        "reward": pytest.approx((1.0 + 0.5 + 0.0) / 3),
        "pass@1": pytest.approx(1 / 3),
    }
    assert greedy["responses"]["no_verdict"] == 1
