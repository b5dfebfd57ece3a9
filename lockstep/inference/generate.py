"""`lockstep generate`: writes a file with responses to every prompt, in the order of the rows.

    generations.jsonl    one prompt per line, with its responses (`rollouts.generation`)
    summary.json         their totals
    recipe.yaml, inputs.json, environment.json   every option, digests of model and data, versions and machine

Prompts are cut into fixed blocks. A block goes to one sampler whole and is written whole, in `parts/`; so responses do
not depend on how many samplers there are, and a killed run resumes with the missing blocks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.algorithms.rows import files_of, open_prompts
from lockstep.cluster.sampler_pool import Block
from lockstep.cluster.workers import workers_of
from lockstep.config.hub import fetch_names
from lockstep.config.loading import Loaded
from lockstep.data.prompts import Prompts
from lockstep.data.rows import DataError
from lockstep.inference.answers import Answers, answering
from lockstep.inference.generate_options import GenerateRecipe
from lockstep.inference.parts import Parts
from lockstep.inference.results import results_of
from lockstep.models.source import ModelSource, describe_passed_end, open_source
from lockstep.printable import print_text
from lockstep.report.progress import Progress, show_progress
from lockstep.rollouts.generation import account, line_of
from lockstep.rollouts.rollout import requests_of
from lockstep.run.folder.files import write_once
from lockstep.run.stop import Stop, Stopped, heed_signals
from lockstep.types import Prompt, Reply

GENERATIONS, SUMMARY = "generations.jsonl", "summary.json"


def generate(loaded: Loaded) -> Path:
    """Answers every prompt that has not been answered yet, and joins all in order.

    Returns:
        The folder of the results.

    Raises:
        Stopped: If it was asked to end early.
        ChangedError: If the folder holds generations of something else.
        SamplerLost: If samplers die too often; what they had finished is kept.
    """
    loaded = fetch_names(loaded)
    recipe = loaded.expect(GenerateRecipe)
    source = open_source(recipe.model.path)
    longest = recipe.data.max_prompt_tokens + recipe.sampling.max_tokens
    source.require_room("data.max_prompt_tokens + sampling.max_tokens", longest)
    rows = {"prompts": files_of(recipe.data.prompts)}
    results = results_of(loaded, recipe.model.path, rows, "generations", "other generations")
    whole = results.folder / GENERATIONS
    with results.open() as started:
        if whole.exists():
            Parts(whole, 0).clear()
        else:
            _make(recipe, source, whole, started)
    print_text(f"{_format_summary(whole.with_name(SUMMARY))}: {whole}")
    return results.folder


@dataclass(frozen=True)
class _Blocks:
    """The prompts in blocks of `size`, of which the last may be smaller; read on demand."""

    prompts: Prompts
    count: int
    size: int

    def __len__(self) -> int:
        return -(-self.count // self.size)

    def start(self, number: int) -> int:
        return number * self.size

    def length(self, number: int) -> int:
        return min(self.size, self.count - self.start(number))

    def read(self, number: int) -> list[Prompt]:
        return self.prompts.at(self.start(number), self.length(number), seed=0)  # in the file's order, for any seed


def _make(recipe: GenerateRecipe, source: ModelSource, whole: Path, started: Callable[[], None]) -> None:
    """Answers the missing blocks, and joins all."""
    with show_progress(f"{recipe.model.path} → {whole.parent}") as progress:
        rows = files_of(recipe.data.prompts)
        passed = describe_passed_end(source, recipe.data)
        if passed is not None:
            progress.note(passed)
        prompts = open_prompts(rows, recipe.data.in_order, source.tokenizer)
        blocks = _Blocks(prompts, len(range(len(prompts))[: recipe.data.max_prompts]), recipe.run.save_every)
        parts = Parts(whole, len(blocks))
        if parts.missing():
            with workers_of(recipe.cluster, recipe.learner, progress, sampler=recipe.sampler) as workers:
                answers = answering(recipe, source, progress, workers)
                started()
                progress.total(blocks.count, _arithmetic(recipe, blocks), unit="prompts")
                _answer(recipe, blocks, parts, answers, progress)
        with progress.phase("join"):
            _join(parts, whole.with_name(SUMMARY), prompts)


def _arithmetic(recipe: GenerateRecipe, blocks: _Blocks) -> str:
    return (
        f"{blocks.count} prompts ({blocks.prompts.selection.account}) → {blocks.count * recipe.num_generations} "
        f"responses, in {len(blocks)} blocks of {blocks.size} prompts, by {recipe.sampler.replicas} × "
        f"{recipe.sampler.backend}"
    )


def _answer(recipe: GenerateRecipe, blocks: _Blocks, parts: Parts, answers: Answers, progress: Progress) -> None:
    """Writes the missing blocks.

    Raises:
        Stopped: If a stop was requested; the blocks in flight are finished first.
    """
    stop, missing = Stop(None), parts.missing()
    done = blocks.count - sum(map(blocks.length, missing))
    if done:
        progress.note(f"resumes: {done} prompts are answered already")
    under_way: dict[int, list[Prompt]] = {}

    def read_blocks() -> Iterator[Block]:
        for number in missing:
            if stop.check_after_step() is not None:
                return
            under_way[number] = own = blocks.read(number)
            yield number, requests_of(own, blocks.start(number), recipe.num_generations, recipe.seed, "generation")

    with heed_signals(stop, progress.note), progress.phase("generate"):
        for number, replies in answers(read_blocks()):
            prompts = under_way.pop(number)
            with progress.phase("write"):
                parts.write(number, "".join(_lines(prompts, replies)))
            done += len(prompts)
            progress.step(done, {}, sum(reply.num_tokens for reply in replies), len(prompts))
    why = stop.check_after_step()
    if why is not None and done < blocks.count:
        reason, code = why
        raise Stopped(
            f"stopped after {done} of {blocks.count} prompts, because {reason}; the same command resumes from there",
            code,
        )


def _lines(prompts: Sequence[Prompt], replies: Sequence[Reply]) -> Iterable[str]:
    """The records of a block, as lines."""
    each = len(replies) // len(prompts)
    for i, prompt in enumerate(prompts):
        try:
            yield line_of(prompt, replies[i * each : (i + 1) * each])
        except TypeError as error:  # a table can hold dates and bytes
            raise DataError(f"{prompt.id}: cannot be written as JSON ({error}); leave such a field out") from error


def _join(parts: Parts, summary: Path, prompts: Prompts) -> None:
    """Joins the parts to one file; writes the summary before it, so that the file never lacks one."""
    total: Counter[str] = Counter()
    for lines in parts.contents():
        total.update(account([json.loads(line) for line in lines.split(b"\n") if line]))
    write_once(summary, json.dumps({**total, "skipped_rows": prompts.selection.skipped}, indent=1) + "\n")
    parts.join()


def _format_summary(summary: Path) -> str:
    """A summary as text."""
    numbers = json.loads(summary.read_text(encoding="utf-8"))
    return (
        f"{numbers['prompts']} prompts, {numbers['responses']} responses ({numbers['unfinished_responses']} cut off by "
        f"their length), {numbers['tokens']} tokens"
    )
