"""`lockstep eval` of a judge: judges ranked responses, into a folder with judgements and the agreement with people.

    judgements.jsonl   one prompt per line: its responses, their ranks, and all of the judge's replies
    results.json       figures with intervals, made of the judgements alone
    recipe.yaml, inputs.json, environment.json   every option, digests of model and data, versions and machine

Prompts are judged in blocks, and a block is written whole, in `parts/`; a stopped or killed evaluation resumes with the
missing ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from lockstep.algorithms.rows import files_of
from lockstep.cluster.judges import judge_answers
from lockstep.cluster.workers import workers_of
from lockstep.config import SamplerSection
from lockstep.config.hub import fetch_names
from lockstep.config.loading import Loaded
from lockstep.data.files import open_rows
from lockstep.data.ranked import RankedResponses, describe, read_ranked
from lockstep.data.rows import Skipped
from lockstep.inference.eval_judge_options import EvalJudgeRecipe
from lockstep.inference.parts import Parts
from lockstep.inference.results import results_of
from lockstep.judge.agreement import (
    assess,
    assessment_of,
    describe_agreement,
)
from lockstep.judge.build import pair_judge, score_judge
from lockstep.judge.judge import Judge
from lockstep.judge.verdicts import Winner
from lockstep.printable import print_text
from lockstep.report.evaluation import RESULTS
from lockstep.report.judge_table import JUDGEMENTS, judge_table
from lockstep.report.progress import Progress, show_progress
from lockstep.run.folder.files import write_once
from lockstep.run.stop import Stop, Stopped, heed_signals


def evaluate_judge(loaded: Loaded) -> Path:
    """Judges all prompts that are not done yet, and prints the judge's agreement with people.

    Returns:
        The folder of the results.

    Raises:
        Stopped: If it was asked to end early.
        ChangedError: If the folder holds another evaluation.
        JudgeError: If too few judgements have a verdict.
    """
    loaded = fetch_names(loaded)
    recipe = loaded.expect(EvalJudgeRecipe)
    files = files_of(recipe.data.ranked)
    results = results_of(loaded, recipe.judge.path, {"ranked": files}, "evals", "another evaluation")
    with results.open() as started:
        if (results.folder / RESULTS).exists():
            Parts(results.folder / JUDGEMENTS, 0).clear()
        else:
            ranked = read_ranked(open_rows(files, recipe.data.bad_rows), recipe.data)
            _judge(recipe, ranked, results.folder, started)
    print_text(f"{judge_table(results.folder)}\n\nevaluation of a judge: {results.folder}")
    return results.folder


def _judge(
    recipe: EvalJudgeRecipe, read: tuple[list[RankedResponses], Skipped], folder: Path, started: Callable[[], None]
) -> None:
    """Judges the missing blocks, and writes the results."""
    ranked, skipped = read
    size = recipe.run.save_every
    parts = Parts(folder / JUDGEMENTS, -(-len(ranked) // size))
    with show_progress(f"{_who(recipe)} → {folder}") as progress:
        if not parts.whole.exists() and parts.missing():
            sampler = recipe.judge.sampler or SamplerSection()
            with workers_of(recipe.cluster, recipe.learner, progress, sampler=sampler) as workers:
                answering = judge_answers(recipe.judge, recipe.learner, progress, workers)
                scorer = score_judge(recipe.judge, answering, recipe.seed)
                comparer = (
                    None if recipe.pairs is None else pair_judge(recipe.pairs, recipe.judge, answering, recipe.seed)
                )
                started()
                progress.total(len(ranked), describe(ranked, skipped), unit="prompts")
                _write(ranked, size, parts, (scorer, comparer), progress)
        with progress.phase("join"):
            if not parts.whole.exists():
                parts.join()
            found = [assessment_of(json.loads(line)) for line in parts.whole.read_bytes().split(b"\n") if line]
    who, data = _who(recipe), ", ".join(map(str, files_of(recipe.data.ranked).paths))
    results = describe_agreement(
        who, data, found, skipped.count, recipe.judge.judge_score_high, recipe.pairs is not None
    )
    write_once(folder / RESULTS, json.dumps(results, indent=1, allow_nan=False) + "\n")


def _write(
    ranked: Sequence[RankedResponses],
    size: int,
    parts: Parts,
    judges: tuple[Judge[float], Judge[Winner] | None],
    progress: Progress,
) -> None:
    """Writes the missing blocks.

    Raises:
        Stopped: If a stop was requested; the current block is finished first.
    """
    stop, missing = Stop(None), parts.missing()
    done = len(ranked) - sum(len(ranked[number * size : (number + 1) * size]) for number in missing)
    if done:
        progress.note(f"resumes: the responses to {done} prompts are judged already")
    with heed_signals(stop, progress.note):
        for number in missing:
            _leave(stop, done, len(ranked))
            own = ranked[number * size : (number + 1) * size]
            with progress.phase("judge"):
                new = assess(own, *judges)
            parts.write(number, "".join(json.dumps(asdict(one), allow_nan=False) + "\n" for one in new))
            done += len(own)
            progress.step(done, {}, 0, len(own))


def _leave(stop: Stop, done: int, total: int) -> None:
    why = stop.check_after_step()
    if why is not None:
        reason, code = why
        raise Stopped(
            f"stopped after {done} of {total} prompts, because {reason}; the same command resumes from there", code
        )


def _who(recipe: EvalJudgeRecipe) -> str:
    served = None if recipe.judge.sampler is None else recipe.judge.sampler.openai
    return str(recipe.judge.path) if served is None else f"{served.model} at {served.base_url}"
