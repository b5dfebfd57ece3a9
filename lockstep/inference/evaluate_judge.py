"""`lockstep eval` of a judge: judges ranked responses and measures agreement with people.

    judgments.jsonl   one prompt per line: its responses, their ranks, the judge's replies
    results.json       metrics with intervals, computed only from the judgments
    recipe.yaml        every option
    inputs.json, environment.json   digests of model and data, versions and machine

Prompts are judged in blocks, and a block is written when it is judged; a stopped or killed
evaluation resumes after the last complete one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from lockstep.algorithms.rows import group_files
from lockstep.cluster.judges import judge_answers
from lockstep.cluster.workers import open_worker_pool
from lockstep.config import SamplerSection
from lockstep.config.hub import fetch_names
from lockstep.config.loading import LoadedRecipe
from lockstep.data.files import open_rows
from lockstep.data.ranked import RankedResponses, describe_ranked, read_ranked
from lockstep.data.rows import SkippedRows
from lockstep.inference.eval_recipe import EvalJudgeRecipe
from lockstep.inference.results import choose_results_folder, find_missing, raise_if_stopped
from lockstep.judge.agreement import PromptAssessment, assess_prompts, describe_agreement
from lockstep.judge.build import pair_judge, score_judge
from lockstep.judge.judge import LLMJudge
from lockstep.judge.verdicts import PairWinner
from lockstep.report.evaluation import JUDGMENTS, RESULTS, judge_table
from lockstep.report.progress import RunProgress, show_progress
from lockstep.run.folder.files import write_once
from lockstep.run.stop import StopRequests, stop_on_signals
from lockstep.system.printable import print_text
from lockstep.system.records import check_shape
from lockstep.system.whole_files import append_lines


def evaluate_judge(loaded: LoadedRecipe) -> Path:
    """Judges all remaining prompts, and prints the judge's agreement with people.

    Returns:
        The folder of the results.

    Raises:
        Stopped: If a stop was requested.
        ChangedError: If the folder holds a different evaluation.
        JudgeError: If too few judgments have a verdict.
    """
    loaded = fetch_names(loaded)
    recipe = loaded.expect_recipe(EvalJudgeRecipe)
    files = group_files(recipe.data.ranked)
    results = choose_results_folder(
        loaded, recipe.judge.path, {"ranked": files}, "evals", "another evaluation"
    )
    with results.open_locked() as started:
        if not (results.folder / RESULTS).exists():
            ranked = read_ranked(open_rows(files, recipe.data.bad_rows), recipe.data)
            _judge_prompts(recipe, ranked, results.folder, started)
    print_text(f"{judge_table(results.folder)}\n\nevaluation of a judge: {results.folder}")
    return results.folder


def _judge_prompts(
    recipe: EvalJudgeRecipe,
    read: tuple[list[RankedResponses], SkippedRows],
    folder: Path,
    started: Callable[[], None],
) -> None:
    """Judges the missing blocks, and writes the results."""
    ranked, skipped = read
    log = folder / JUDGMENTS
    missing = find_missing(log, len(ranked), recipe.run.save_every)
    with show_progress(f"{_describe_judge(recipe)} → {folder}") as progress:
        if missing:
            sampler = recipe.judge.sampler or SamplerSection()
            with open_worker_pool(
                recipe.cluster, recipe.learner, progress, sampler=sampler
            ) as workers:
                answering = judge_answers(recipe.judge, recipe.learner, progress, workers)
                scorer = score_judge(recipe.judge, answering, recipe.seed)
                pairs = recipe.pairs
                comparer = pairs and pair_judge(pairs, recipe.judge, answering, recipe.seed)
                started()
                progress.set_total(len(ranked), describe_ranked(ranked, skipped), unit="prompts")
                _write_judgments(ranked, missing, log, (scorer, comparer), progress)
    wrong = f"{log} is not a valid Lockstep file"
    found: list[PromptAssessment] = []
    for line in log.read_bytes().splitlines():
        found.append(check_shape(line, PromptAssessment, wrong, "remove it"))
    who = _describe_judge(recipe)
    data = ", ".join(map(str, group_files(recipe.data.ranked).paths))
    results = describe_agreement(
        who, data, found, skipped.count, recipe.judge.judge_score_high, recipe.pairs is not None
    )
    write_once(folder / RESULTS, json.dumps(results, indent=1, allow_nan=False) + "\n")


def _write_judgments(
    ranked: Sequence[RankedResponses],
    missing: Sequence[range],
    log: Path,
    judges: tuple[LLMJudge[float], LLMJudge[PairWinner] | None],
    progress: RunProgress,
) -> None:
    """Judges the missing blocks, given by prompt indices.

    Raises:
        Stopped: If a stop was requested; the current block is finished first.
    """
    stop = StopRequests(None)
    if missing[0].start:
        progress.show_note(f"resumes: responses to {missing[0].start} prompts are already judged")
    with stop_on_signals(stop, progress.show_note):
        for places in missing:
            raise_if_stopped(stop, f"{places.start} of {len(ranked)} prompts")
            own = ranked[places.start : places.stop]
            with progress.phase("judge"):
                new = assess_prompts(own, *judges)
            append_lines(
                log,
                "".join(json.dumps(asdict(one), allow_nan=False) + "\n" for one in new).encode(),
            )
            progress.end_step(places.stop, {}, 0, len(own))


def _describe_judge(recipe: EvalJudgeRecipe) -> str:
    served = None if recipe.judge.sampler is None else recipe.judge.sampler.openai
    if served is None:
        return str(recipe.judge.path)
    return f"{served.model} at {served.base_url}"
