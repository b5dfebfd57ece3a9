"""Part 2: Self-Rewarding and Meta-Rewarding with a real model as its own judge, and generation that
is killed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from benchmarks.mission import judgments
from benchmarks.mission.generation import measure_generation
from benchmarks.mission.judgments import write_known, write_warm_start
from benchmarks.mission.opposites import HELD_OUT, TRAINED, write_rows
from benchmarks.mission.programs import MissionError, Program, run_all
from benchmarks.mission.self_rewarding_page import RUNS, STAGES, describe, draw
from lockstep.algorithms.self_rewarding.options import SelfRewardingRecipe
from lockstep.algorithms.sft.options import SFTRecipe
from lockstep.config.loading import load_recipe
from lockstep.report.log import read_metrics

__all__ = ["TITLE", "describe", "draw", "measure"]

TITLE = "Self-Rewarding and Meta-Rewarding: the model is its own judge"

FOLDER = Path(__file__).parent
ASSETS = "LOCKSTEP_ASSETS"
"""The variable that names the folder of LLMBar and self-instruct, which do not ship."""
LLMBAR_ROWS = 60
"""The rows of LLMBar's Natural and Adversarial_Manual with the fewest characters."""
MEASURED = ("reward", "judge_exact", "meta_judge_accuracy")
"""Metrics of validation with known truth, each with its interval."""


def measure(model: Path, work: Path, jobs: int) -> dict[str, Any]:
    """Trains and judges, or what is missing of it.

    Returns figures by stage, metrics by run, and the generation's.

    Raises:
        MissionError: If the data are not there, or a program fails.
    """
    work.mkdir(parents=True, exist_ok=True)
    _write_data(work)
    run_all([_train("warm_start", model), _judge("raw", model)], work, jobs)
    run_all([_train(run, work / "warm_start" / "final") for run in RUNS], work, jobs)
    trained = [stage for stage in STAGES if stage != "raw"]
    run_all([_judge(stage, work / stage) for stage in trained], work, jobs)
    return _read_all(work, measure_generation(model, work))


def _read_all(work: Path, generation: dict[str, Any]) -> dict[str, Any]:
    """Figures of all finished programs."""
    warm_start = load_recipe(str(FOLDER / "warm_start.yaml")).expect_recipe(SFTRecipe)
    return {
        "warm_start_rows": warm_start.sft.global_batch_size
        * len(read_metrics(work / "warm_start")),
        "known_words": len(HELD_OUT),
        "llmbar_rows": LLMBAR_ROWS,
        "stages": {stage: _read_stage(work, stage) for stage in STAGES},
        "runs": {run: _read_run(work / run) for run in RUNS},
        "generation": generation,
    }


def _write_data(work: Path) -> None:
    """Writes all rows of the part."""
    if ASSETS not in os.environ:
        raise MissionError(
            f"set {ASSETS} to the folder that holds data/llmbar and data/self_instruct"
        )
    data = Path(os.environ[ASSETS]) / "data"
    write_rows(work / "train.jsonl", TRAINED)
    write_rows(work / "validation.jsonl", HELD_OUT)
    write_known(work / "known_judgments.jsonl", work / "known_comparisons.jsonl", HELD_OUT)
    pairs = [
        {**row, "from": f"{name}, row {place}"}
        for name in ("Natural", "Adversarial_Manual")
        for place, row in enumerate(
            json.loads((data / "llmbar" / f"{name}_dataset.json").read_text())
        )
    ]
    shortest = sorted(pairs, key=lambda row: len(row["input"] + row["output_1"] + row["output_2"]))[
        :LLMBAR_ROWS
    ]
    (work / "llmbar.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in shortest))
    write_warm_start(work / "warm_start.jsonl", data / "self_instruct" / "seed_tasks.jsonl")


def _train(name: str, model: Path) -> Program:
    asked = () if name == "warm_start" else _asks("judge", judgments.QUESTION)
    asked += _asks("meta_judge", judgments.COMPARISON) if name == "meta_rewarding" else ()
    where = (f"model.path={model}", f"run.folder={name}")
    return Program(name, ("lockstep", "train", str(FOLDER / f"{name}.yaml"), *where, *asked))


def _asks(section: str, template: str) -> tuple[str, ...]:
    """The options of a judge that asks as the warm start has taught."""
    return (
        f"{section}.system_prompt={judgments.SYSTEM}",
        f"{section}.template={json.dumps(template)}",
    )


def _judge(stage: str, model: Path) -> Program:
    name = f"llmbar_{stage}"
    recipe = ("--recipe", str(FOLDER / "judge_llmbar.yaml"), "--out", name)
    asked = _asks("judge", judgments.QUESTION)
    return Program(name, ("lockstep", "eval", str(model), "llmbar.jsonl", *recipe, *asked))


def _read_stage(work: Path, stage: str) -> dict[str, Any]:
    """Figures of a stage: LLMBar by its judge, and what validation measured, the warm start's
    before the first step.
    """
    scores = json.loads((work / f"llmbar_{stage}" / "results.json").read_text())["ways"]["scores"]
    figures = {
        "llmbar": _interval(scores["figures"]["pairwise_accuracy"]),
        "ties": _interval(scores["figures"]["ties"]),
    }
    if stage != "raw":
        run = stage if stage in RUNS else "meta_rewarding"
        rows = [row for row in read_metrics(work / run) if "validation/reward" in row]
        figures |= _read_validation(rows[0 if stage == "warm_start" else -1])
    return {"figures": figures, "llmbar_judgments": scores["judgments"]}


def _interval(figure: dict[str, float | None]) -> list[float | None]:
    return [figure["value"], figure["low"], figure["high"]]


def _read_validation(row: dict[str, float]) -> dict[str, list[float | None]]:
    """Value and interval of each metric of known truth."""
    names = {
        name: [f"validation/{name}{end}" for end in ("", "_low", "_high")] for name in MEASURED
    }
    return {name: [row[key] for key in keys] for name, keys in names.items() if keys[0] in row}


def _read_run(run: Path) -> dict[str, Any]:
    """Metrics of the steps and validations of a run, and what they count."""
    recipe = load_recipe(str(FOLDER / f"{run.name}.yaml")).expect_recipe(SelfRewardingRecipe)
    assert recipe.judge is not None, "the policy judges"
    options = recipe.self_rewarding
    rows = [
        {key: value for key, value in row.items() if value == value} for row in read_metrics(run)
    ]
    steps = [row for row in rows if "train/iteration" in row]
    prompts = options.global_batch_size * len(steps)
    verdicts = prompts * options.num_responses_to_gen * recipe.judge.num_evals_to_average
    unread = sum(row["judge/no_verdict"] for row in steps) / len(steps)
    pairs = [(1 - row["train/bad_samples_per_GBS"]) * options.global_batch_size for row in steps]
    shares = [row.get("train/judge_pair_share", 0.0) for row in steps]
    return {
        "steps": steps,
        "validations": [row for row in rows if "val/generated_rewards" in row],
        "prompts": prompts,
        "pairs": round(sum(pairs)),
        "judge_pairs": round(
            sum(own * share / (1 - share) for own, share in zip(pairs, shares, strict=True))
        ),
        "left_out": round(sum(row.get("meta_judge/left_out", 0.0) for row in steps)),
        "verdicts": verdicts,
        "parsed": round(verdicts * (1 - unread)),
    }
