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

from lockstep.algorithms.episodes import episodes_of
from lockstep.algorithms.exactness import choose_kernels
from lockstep.algorithms.rows import files_of, open_prompts
from lockstep.cluster.judges import judge_answers, open_judge_reward
from lockstep.cluster.sampler_pool import nearest
from lockstep.cluster.specs import SamplerSpec
from lockstep.cluster.workers import WorkerPool, workers_of
from lockstep.config.hub import fetch_names
from lockstep.config.loading import LoadedRecipe
from lockstep.core.metrics import Mean, MetricReduction, Metrics, Sum
from lockstep.core.types import Prompt, SamplingParams
from lockstep.inference.eval_recipe import EvalRecipe
from lockstep.inference.results import cut_to_blocks, leave_on_stop, results_of
from lockstep.judge.asking import JudgeModel
from lockstep.models.source import ModelSource, describe_passed_end, open_source
from lockstep.report.evaluation import RESULTS, SAMPLES, results_table
from lockstep.report.progress import RunProgress, show_progress
from lockstep.rewards.build import OpenJudge
from lockstep.rewards.build import build as build_reward
from lockstep.rewards.options import RewardJudge
from lockstep.rewards.row_rules import rule_of
from lockstep.rollouts.evaluation import GradedSample, GradingRule, grading, lengths, sample_answers
from lockstep.rollouts.rollout import RolloutCollector
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.run.folder.files import write_once
from lockstep.run.stop import StopRequests, heed_signals
from lockstep.system.printable import print_text
from lockstep.system.records import check_shape
from lockstep.system.whole_files import append

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
    """Questions `start` … `start + count − 1`, answered in one setting."""

    setting: EvalSetting
    start: int
    count: int

    @property
    def responses(self) -> int:
        return self.count * self.setting.num_samples


@dataclass(frozen=True)
class _BlockEnd:
    judging: Mapping[str, list[float]] = field(default_factory=dict)


class SampleLog:
    """A file with one sample per line, and its samples.

    Args:
        path: The file. Its complete blocks are read, and the rest is removed.
        blocks: All blocks of the evaluation, in order.

    Raises:
        ValueError: A line is not a sample.
    """

    def __init__(self, path: Path, blocks: Sequence[QuestionBlock]) -> None:
        self._path = path
        self.blocks = blocks
        self.samples: dict[str, list[GradedSample]] = {block.setting.name: [] for block in blocks}
        self.judging = {name: Metrics() for name in self.samples}
        self.done = cut_to_blocks(path, (block.responses for block in blocks))
        if self.done:
            self._read()

    def add(self, samples: Sequence[GradedSample], judging: Metrics) -> None:
        """Appends the next complete block with metrics of judges."""
        setting = self.blocks[self.done].setting.name
        rows = [{"setting": setting, **asdict(sample)} for sample in samples]
        if judging:
            rows[-1]["judging"] = {
                name: _write_sums(name, reduction) for name, reduction in judging.items()
            }
        append(
            self._path, b"".join(json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows)
        )
        self.samples[setting] += samples
        self.judging[setting] += judging
        self.done += 1

    def _read(self) -> None:
        lines = enumerate(self._path.read_bytes().splitlines(), start=1)
        for block in self.blocks[: self.done]:
            own = list(islice(lines, block.responses))
            self.samples[block.setting.name] += [self._parse(GradedSample, *line) for line in own]
            end = self._parse(_BlockEnd, *own[-1])
            self.judging[block.setting.name] += {
                name: _read_sums(sums) for name, sums in end.judging.items()
            }

    def _parse(self, shape: type[T], number: int, line: bytes) -> T:
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


def _read_sums(sums: Sequence[float]) -> Mean | Sum:
    if len(sums) == 1:
        return Sum(*sums)
    return Mean(*sums)


def evaluate(loaded: LoadedRecipe) -> Path:
    """Answers and grades all remaining questions, and prints the metrics.

    Returns:
        The folder of the results.

    Raises:
        Stopped: If a stop was requested.
        ChangedError: If the folder holds a different evaluation.
    """
    loaded = fetch_names(loaded)
    recipe = loaded.expect(EvalRecipe)
    source = open_source(recipe.model.path)
    settings = list(_settings(recipe, source))
    rows = {"validation": files_of(recipe.data.validation)}
    results = results_of(loaded, recipe.model.path, rows, "evals", "another evaluation")
    folder = results.folder
    with results.open() as started:
        if not (folder / RESULTS).exists():
            _examine(recipe, settings, source, folder, started)
    print_text(f"{results_table(folder)}\n\nevaluation: {folder}")
    return folder


def _settings(recipe: EvalRecipe, source: ModelSource) -> Iterator[EvalSetting]:
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
            source.require_room(
                f"data.max_prompt_tokens + {name}.max_tokens", longest + section.max_tokens
            )
    if greedy is not None:
        yield EvalSetting("greedy", source.sampling(greedy.sampling), 1, (1,))
    if sampled is not None:
        grading(recipe.reward, recipe.environment).require_passes(sampled, "sampling")
        yield EvalSetting("sampled", source.sampling(sampled), sampled.num_samples, sampled.ks)


def _examine(
    recipe: EvalRecipe,
    settings: Sequence[EvalSetting],
    source: ModelSource,
    folder: Path,
    started: Callable[[], None],
) -> None:
    """Answers the rest of the questions, and writes the results."""
    with (
        show_progress(f"{recipe.model.path} → {folder}") as progress,
        workers_of(recipe.cluster, recipe.learner, progress, sampler=recipe.sampler) as workers,
    ):
        files = files_of(recipe.data.validation)
        environment = episodes_of(recipe.environment, recipe.data.in_order, source, progress.note)
        data = recipe.data.in_order.with_tools([] if environment is None else environment.tools)
        rows = open_prompts(files, data, source.tokenizer, rule_of(recipe.reward))
        passed = describe_passed_end(source, data)
        if passed is not None:
            progress.note(passed)
        computation = choose_kernels(source.folder, recipe.sampler, recipe.learner, progress.note)
        spec = SamplerSpec(source.folder, recipe.sampler, computation)
        engine = SamplerSession(nearest(spec, progress, workers))
        reward = build_reward(
            recipe.reward, progress.note, _judges(recipe, folder, progress, workers)
        )
        collector = RolloutCollector(engine, rows, reward, source.decode, recipe.seed, environment)
        prompts = rows.first(recipe.data.max_validation_samples)
        graded = grading(recipe.reward, recipe.environment)
        blocks = list(_blocks(settings, len(prompts), recipe.run.save_every))
        responses = sum(block.responses for block in blocks)
        progress.total(
            len(blocks),
            f"{len(prompts)} questions ({rows.selection.account}) → {responses} responses; "
            f"a step is {recipe.run.save_every} questions",
        )
        unknown = sum(source.tokenizer.unk_token_id in prompt.tokens for prompt in prompts)
        if unknown:
            progress.note(
                f"{unknown} of {len(prompts)} questions contain words unknown to the model's "
                "tokenizer"
            )
        log = SampleLog(folder / SAMPLES, blocks)
        started()
        _answer(log, prompts, collector, graded, progress)
    results = {
        "model": recipe.model.path,
        "data": ", ".join(map(str, files_of(recipe.data.validation).paths)),
        "questions": len(prompts),
        "skipped_rows": rows.selection.skipped,
        "settings": {setting.name: _results(setting, log, graded) for setting in settings},
    }
    write_once(folder / RESULTS, json.dumps(results, indent=1, allow_nan=False) + "\n")


def _judges(
    recipe: EvalRecipe, folder: Path, progress: RunProgress, workers: WorkerPool
) -> OpenJudge:
    """Opens judges that cache their replies in the results folder."""

    def answer(section: RewardJudge, key: str) -> JudgeModel:
        return judge_answers(section, recipe.learner, progress, workers, key)

    return lambda section, key: open_judge_reward(section, key, folder, recipe.seed, answer)


def _blocks(settings: Sequence[EvalSetting], questions: int, size: int) -> Iterator[QuestionBlock]:
    for setting in settings:
        for start in range(0, questions, size):
            yield QuestionBlock(setting, start, min(size, questions - start))


def _answer(
    log: SampleLog,
    prompts: Sequence[Prompt],
    collector: RolloutCollector,
    graded: GradingRule,
    progress: RunProgress,
) -> None:
    """Answers the blocks that are missing in the log."""
    stop = StopRequests(None)
    if log.done:
        progress.note(f"resumes after step {log.done}")
    with heed_signals(stop, progress.note):
        for block in log.blocks[log.done :]:
            setting = block.setting
            own = prompts[block.start : block.start + block.count]
            with progress.phase(setting.name), collector.engine.at():
                new, judging = sample_answers(
                    collector, own, block.start, setting.sampling, setting.num_samples
                )
            log.add(new, judging)
            figures = graded.figures(log.samples[setting.name], (1,))
            tokens = sum(sample.tokens for sample in new)
            progress.step(
                log.done, {name: figure.value for name, figure in figures.items()}, tokens
            )
            if log.done < len(log.blocks):
                leave_on_stop(stop, f"step {log.done}")


def _results(setting: EvalSetting, log: SampleLog, graded: GradingRule) -> dict[str, Any]:
    samples = log.samples[setting.name]
    figures = graded.figures(samples, setting.ks)
    return {
        "sampling": asdict(setting.sampling),
        "num_samples": setting.num_samples,
        "figures": {name: _plain(asdict(figure)) for name, figure in figures.items()},
        "responses": lengths(samples).floats(),
        "judging": _plain(log.judging[setting.name].floats()),
    }


def _plain(figure: dict[str, float]) -> dict[str, float | None]:
    """Replaces NaN with None, since JSON has no NaN."""
    return {name: value if value == value else None for name, value in figure.items()}
