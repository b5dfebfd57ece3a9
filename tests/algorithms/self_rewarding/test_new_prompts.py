"""Self-rewarding training on prompts that the policy writes for each iteration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from self_rewarding_runs import Run, equal, held, steps, trained
from tiny_recipe import SELF_REWARDING

from lockstep.config.loading import load_recipe
from lockstep.run.dry_run.dry_run import dry_run
from lockstep.run.dry_run.setup import DryRunError
from lockstep.run.stop import StoppedRun

NEW: dict[str, Any] = {
    "new_prompts": {
        "template": "{example_1} or {example_2}\n", "sampling": {"max_tokens": 16}, "max_prompt_tokens": 64,
        "max_attempts": 8,
    },
    "validation_reward": None, "validation_sampling": None,
}  # fmt: skip

SEVENTEEN = " ".join(f"{{example_{number}}}" for number in range(1, 18))


TINY_RECIPE = (
    SELF_REWARDING
    | NEW
    | {
        "self_rewarding": SELF_REWARDING["self_rewarding"] | {"prompt_source": "new"},
        "data": SELF_REWARDING["data"] | {"max_prompt_tokens": 14},
    }
)


def written(iteration: int, folder: str = "run") -> list[str]:
    """The questions that were written for an iteration."""
    lines = Path(folder, "prompts", f"iteration_{iteration:03d}.jsonl").read_text().splitlines()
    return [json.loads(line)["question"] for line in lines]


def test_each_iteration_trains_on_newly_written_prompts(run: Run) -> None:
    rows = steps(run())
    given = [
        json.loads(line)["question"]
        for line in Path("run/data/train.jsonl").read_text().splitlines()
    ]
    assert not {" ".join(text.split()) for text in written(0)} & set(given)
    assert len(set(written(0))) == len(set(written(1))) == 16
    assert not set(written(0)) & set(written(1))
    samples = trained()
    for iteration, own in enumerate((samples[:16], samples[16:])):
        assert {one["id"] for one in own} == {
            f"iteration_{iteration:03d}.jsonl:{n}" for n in range(1, 17)
        }
        assert {one["prompt"] for one in own} == {f"{text}\n" for text in written(iteration)}
    assert [row["weight_sync/version"] for row in rows] == [0, 0, 2, 2]


@pytest.mark.full
def test_new_prompts_run_stopped_after_each_step_resumes_bit_identically(run: Run) -> None:
    """Also in the middle of an iteration: its prompts are then written again."""
    whole = run("run.folder=whole")
    for _ in range(3):
        with pytest.raises(StoppedRun):
            run("run.folder=parts", "run.max_time_s=0.01")
    assert run("run.folder=parts") == whole
    assert [written(i, "parts") for i in (0, 1)] == [written(i, "whole") for i in (0, 1)]
    assert Path("whole/samples.jsonl").read_bytes() == Path("parts/samples.jsonl").read_bytes()
    assert equal(held(4, "policy", "whole"), held(4, "policy", "parts"))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "new_prompts.template='{example_2} {topic}'",
            "new_prompts.template lacks {example_1} and has unknown {topic}",
        ),
        (
            f"new_prompts.template='{SEVENTEEN}'",
            "new_prompts.template shows 17 prompts, but the data has 16",
        ),
        (
            "new_prompts.max_prompt_tokens=90",
            "new_prompts.max_prompt_tokens + new_prompts.sampling.max_tokens allows",
        ),
        ("data.prompt='{question} {answer}'", "but data.prompt has 2 fields: answer, question"),
    ],
)
def test_dry_run_rejects_unusable_new_prompt_template_length_or_fields(
    run: Run, override: str, said: str
) -> None:
    with pytest.raises(DryRunError) as refused:
        dry_run(load_recipe("tiny.yaml", [override]))
    assert said in str(refused.value)
