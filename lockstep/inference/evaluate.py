"""`lockstep eval`: runs an evaluation and writes a folder with responses and metrics.

    samples.jsonl   one graded response per line with its setting (`GradedSample`)
    results.json    metrics with intervals, computed only from the samples
    recipe.yaml     every option
    inputs.json, environment.json   digests of model and data, versions and machine

Questions are answered in blocks, and a block is written when it is graded. A stopped evaluation
resumes after the last complete block with the same results, since random numbers are keyed by
question and sample number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from lockstep.algorithms.columns import tell_options
from lockstep.algorithms.episodes import start_episode_runner
from lockstep.algorithms.exactness import choose_kernels
from lockstep.algorithms.rows import group_files, open_prompts
from lockstep.cluster.judges import judge_answers, open_judge_reward
from lockstep.cluster.sampler_pool import open_nearest_sampler
from lockstep.cluster.specs import SamplerSpec
from lockstep.cluster.workers import WorkerPool, open_worker_pool
from lockstep.config.hub import fetch_names
from lockstep.config.loading import LoadedRecipe
from lockstep.core.metrics import Mean, MetricReduction, Metrics, Sum
from lockstep.core.types import Prompt, SamplingParams
from lockstep.inference.eval_recipe import EvalRecipe
from lockstep.inference.results import choose_results_folder, cut_to_blocks, raise_if_stopped
from lockstep.judge.asking import JudgeModel
from lockstep.models.source import ModelSource, describe_template, open_source
from lockstep.report.evaluation import RESULTS, SAMPLES, results_table
from lockstep.report.progress import RunProgress, show_progress
from lockstep.rewards.build import OpenJudge, build_reward
from lockstep.rewards.options import RewardJudge
from lockstep.rewards.row_rules import build_row_rule
from lockstep.rollouts.episodes import EpisodeRunner
from lockstep.rollouts.evaluation import (
    GradedSample,
    GradingRule,
    grading,
    length_metrics,
    sample_answers,
)
from lockstep.rollouts.rollout import RolloutCollector
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.run.folder.files import write_once
from lockstep.run.stop import StopRequests, stop_on_signals
from lockstep.system.printable import print_text
from lockstep.system.records import check_shape
from lockstep.system.whole_files import append_lines

T = TypeVar("T")


@dataclass(frozen=True)
class EvalSetting:
    """A way to answer every question.

    Attributes:
        name: `greedy` or `sampled`.
        sampling: The sampling distribution of responses.
        num_samples: Number of responses per question.
        ks: The k of pass@k and maj@k.
    """

    name: str
    sampling: SamplingParams
    num_samples: int
    ks: tuple[int, ...]


@dataclass(frozen=True)
class QuestionBlock:
    """Questions `start` … `start + count − 1` and the setting in which they are answered."""

    setting: EvalSetting
    start: int
    count: int

    @property
    def response_count(self) -> int:
        return self.count * self.setting.num_samples


@dataclass(frozen=True)
class _BlockEnd:
    judging: Mapping[str, list[float]] = field(default_factory=dict)


class SampleLog:
    """A file of graded samples, one per line.

    Args:
        path: The file. Its complete blocks are read; an incomplete last block is removed.
        blocks: All blocks of the evaluation, in order.

    Raises:
        ValueError: A line is not a sample.
    """

    def __init__(self, path: Path, blocks: Sequence[QuestionBlock]) -> None:
        self._path = path
        self.blocks = blocks
        self.samples: dict[str, list[GradedSample]] = {block.setting.name: [] for block in blocks}
        self.judging = {name: Metrics() for name in self.samples}
        self.done = cut_to_blocks(path, (block.response_count for block in blocks))
        if not self.done:
            return
        lines = enumerate(path.read_bytes().splitlines(), start=1)
        for block in blocks[: self.done]:
            own = list(islice(lines, block.response_count))
            self.samples[block.setting.name] += [
                self._parse_line(GradedSample, *line) for line in own
            ]
            end = self._parse_line(_BlockEnd, *own[-1])
            self.judging[block.setting.name] += {
                name: Sum(*sums) if len(sums) == 1 else Mean(*sums)
                for name, sums in end.judging.items()
            }

    def append_block(self, samples: Sequence[GradedSample], judging: Metrics) -> None:
        """Appends the next complete block with metrics of judges."""
        setting = self.blocks[self.done].setting.name
        rows = [{"setting": setting, **asdict(sample)} for sample in samples]
        if judging:
            rows[-1]["judging"] = {
                name: _write_sums(name, reduction) for name, reduction in judging.items()
            }
        append_lines(
            self._path, b"".join(json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows)
        )
        self.samples[setting] += samples
        self.judging[setting] += judging
        self.done += 1

    def _parse_line(self, shape: type[T], number: int, line: bytes) -> T:
        refusal = f"{self._path}:{number} is not a sample: {line[:60]!r}"
        return check_shape(line, shape, refusal, "remove the file to start over")


def _write_sums(name: str, reduction: MetricReduction) -> list[float]:
    match reduction:
        case Mean(total, count):
            return [float(total), float(count)]
        case Sum(total):
            return [float(total)]
        case _:
            raise TypeError(f"{name} is neither a sum nor a mean, and is not saved")


def evaluate(loaded: LoadedRecipe) -> Path:
    """Answers and grades all remaining questions, and prints the metrics.

    Returns:
        The folder of the results.

    Raises:
        Stopped: If a stop was requested.
        ChangedError: If the folder holds a different evaluation.
    """
    loaded = fetch_names(loaded)
    recipe = loaded.expect_recipe(EvalRecipe)
    loaded = tell_options(loaded, recipe.data.in_order, [recipe.reward])
    recipe = loaded.expect_recipe(EvalRecipe)
    source = open_source(recipe.model.path)
    rows = {"validation": group_files(recipe.data.validation)}
    results = choose_results_folder(loaded, recipe.model.path, rows, "evals", "another evaluation")
    settings = list(_build_settings(recipe, source))
    folder = results.folder
    with results.open_locked() as started:
        if not (folder / RESULTS).exists():
            _answer_and_grade(recipe, settings, source, folder, started)
    print_text(f"{results_table(folder)}\n\nevaluation: {folder}")
    return folder


def _build_settings(recipe: EvalRecipe, source: ModelSource) -> Iterator[EvalSetting]:
    """Yields the recipe's settings if the model supports their lengths."""
    greedy = recipe.greedy
    sampled = recipe.sampling
    longest = recipe.data.max_prompt_tokens
    for name, section in (
        ("environment", recipe.environment),
        ("greedy", greedy),
        ("sampling", sampled),
    ):
        if section is not None:
            option = f"data.max_prompt_tokens + {name}.max_tokens"
            source.require_room({option: longest + section.max_tokens})
    if greedy is not None:
        yield EvalSetting("greedy", source.sampling(greedy.as_sampling), 1, (1,))
    if sampled is not None:
        grading(recipe.reward, recipe.environment).require_passes(sampled, "sampling")
        yield EvalSetting("sampled", source.sampling(sampled), sampled.num_samples, sampled.ks)


def _answer_and_grade(
    recipe: EvalRecipe,
    settings: Sequence[EvalSetting],
    source: ModelSource,
    folder: Path,
    started: Callable[[], None],
) -> None:
    """Answers the rest of the questions, and writes the results."""
    with (
        show_progress(f"{recipe.model.path} → {folder}") as progress,
        open_worker_pool(
            recipe.cluster, recipe.learner, progress, sampler=recipe.sampler
        ) as workers,
    ):
        files = group_files(recipe.data.validation)
        environment = start_episode_runner(
            recipe.environment, recipe.data.in_order, source, folder, progress.show_note
        )
        tools = environment.tools if isinstance(environment, EpisodeRunner) else []
        data = recipe.data.in_order.with_tools(tools)
        rows = open_prompts(files, data, source.tokenizer, build_row_rule(recipe.reward))
        remark = describe_template(source, data)
        if remark is not None:
            progress.show_remark(remark)
        computation = choose_kernels(
            source.folder, recipe.sampler, recipe.learner, progress.show_remark
        )
        spec = SamplerSpec(source.folder, recipe.sampler, computation)
        engine = SamplerSession(open_nearest_sampler(spec, progress, workers))
        reward = build_reward(
            recipe.reward, progress.show_note, _open_judges(recipe, folder, progress, workers)
        )
        collector = RolloutCollector(engine, rows, reward, source.decode, recipe.seed, environment)
        prompts = rows.read_first(recipe.data.max_validation_samples)
        graded = grading(recipe.reward, recipe.environment)
        blocks: list[QuestionBlock] = []
        for setting in settings:
            for start in range(0, len(prompts), recipe.run.save_every):
                count = min(recipe.run.save_every, len(prompts) - start)
                blocks.append(QuestionBlock(setting, start, count))
        responses = sum(block.response_count for block in blocks)
        progress.set_total(
            len(blocks),
            f"{len(prompts)} questions ({rows.selection.skipped_summary}) → {responses} responses; "
            f"a step is {recipe.run.save_every} questions",
        )
        unknown = sum(source.tokenizer.unk_token_id in prompt.tokens for prompt in prompts)
        if unknown:
            progress.show_remark(
                f"{unknown} of {len(prompts)} questions contain words unknown to the model's "
                "tokenizer"
            )
        log = SampleLog(folder / SAMPLES, blocks)
        started()
        _answer_blocks(log, prompts, collector, graded, progress)
    results = {
        "model": recipe.model.path,
        "data": ", ".join(map(str, group_files(recipe.data.validation).paths)),
        "questions": len(prompts),
        "skipped_rows": rows.selection.skipped_count,
        "settings": {
            setting.name: _summarize_setting(setting, log, graded) for setting in settings
        },
    }
    write_once(folder / RESULTS, json.dumps(results, indent=1, allow_nan=False) + "\n")


def _open_judges(
    recipe: EvalRecipe, folder: Path, progress: RunProgress, workers: WorkerPool
) -> OpenJudge:
    """Opens judges that cache their replies in the results folder."""

    def open_judge_model(section: RewardJudge, key: str) -> JudgeModel:
        return judge_answers(section, recipe.learner, progress, workers, key)

    return lambda section, key: open_judge_reward(
        section, key, folder, recipe.seed, open_judge_model
    )


def _answer_blocks(
    log: SampleLog,
    prompts: Sequence[Prompt],
    collector: RolloutCollector,
    graded: GradingRule,
    progress: RunProgress,
) -> None:
    """Answers the blocks that are missing in the log."""
    stop = StopRequests(None)
    if log.done:
        progress.show_note(f"resumes after step {log.done}")
    with stop_on_signals(stop, progress.show_note):
        for block in log.blocks[log.done :]:
            setting = block.setting
            own = prompts[block.start : block.start + block.count]
            with progress.phase(setting.name), collector.engine.at():
                new, judging = sample_answers(
                    collector, own, block.start, setting.sampling, setting.num_samples
                )
            log.append_block(new, judging)
            figures = graded.compute_figures(log.samples[setting.name], (1,))
            tokens = sum(sample.tokens for sample in new)
            progress.end_step(
                log.done, {name: figure.value for name, figure in figures.items()}, tokens
            )
            if log.done < len(log.blocks):
                raise_if_stopped(stop, f"step {log.done}")


def _summarize_setting(setting: EvalSetting, log: SampleLog, graded: GradingRule) -> dict[str, Any]:
    samples = log.samples[setting.name]
    figures = graded.compute_figures(samples, setting.ks)
    return {
        "sampling": asdict(setting.sampling),
        "num_samples": setting.num_samples,
        "figures": {name: _replace_nan(asdict(figure)) for name, figure in figures.items()},
        "responses": length_metrics(samples).floats(),
        "judging": _replace_nan(log.judging[setting.name].floats()),
    }


def _replace_nan(figure: dict[str, float]) -> dict[str, float | None]:
    """Replaces NaN with None, since JSON has no NaN."""
    return {name: value if value == value else None for name, value in figure.items()}
