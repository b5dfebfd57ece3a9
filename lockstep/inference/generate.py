"""`lockstep generate`: writes a file with responses to every prompt, in the order of the rows.

    generations.jsonl    one prompt per line, with its responses
    summary.json         their totals
    recipe.yaml, inputs.json, environment.json   every option, digests of model and data, versions and machine

Prompts are cut into fixed blocks. A block goes to one sampler whole and is written whole, in `parts/`; so responses do
not depend on how many samplers there are, and a killed run resumes with the missing blocks.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.algorithms.exactness import choose_kernels
from lockstep.algorithms.rows import files_of, open_prompts
from lockstep.cluster.sampler_pool import Block, processes
from lockstep.cluster.specs import SamplerSpec
from lockstep.cluster.workers import Workers, workers_of
from lockstep.config import OpenAI
from lockstep.config.hub import fetch_names
from lockstep.config.loading import Loaded
from lockstep.core.batch import Batch
from lockstep.core.types import Prompt, Reply
from lockstep.data.prompts import Prompts
from lockstep.data.rows import DataError
from lockstep.data.templates import as_written
from lockstep.inference.generate_recipe import GenerateRecipe
from lockstep.inference.results import leave_on_stop, results_of
from lockstep.models.folder import read_config
from lockstep.models.source import ModelSource, describe_passed_end, open_source
from lockstep.report.progress import Progress, show_progress
from lockstep.rollouts.rollout import requests_of
from lockstep.run.folder.files import write_once
from lockstep.run.stop import Stop, heed_signals
from lockstep.system.disk import sync
from lockstep.system.printable import print_text
from lockstep.system.whole_files import write_whole

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
        if not whole.exists():
            _make(recipe, source, whole, started)
        shutil.rmtree(_parts_of(whole), ignore_errors=True)
    print_text(f"{_format_summary(whole.with_name(SUMMARY))}: {whole}")
    return results.folder


@dataclass(frozen=True)
class _Blocks:
    """The prompts in blocks, read on demand, and the file of each block's responses. One process at a time may write.

    Attributes:
        whole: The file of all responses.
        prompts: The prompts.
        count: Number of prompts that are answered.
        size: Prompts of a block, of which the last may be smaller.
    """

    whole: Path
    prompts: Prompts
    count: int
    size: int

    def __len__(self) -> int:
        return -(-self.count // self.size)

    def part(self, number: int) -> Path:
        """The file of a block, until all are joined."""
        return _parts_of(self.whole) / f"{number:08d}.jsonl"

    def contents(self) -> Iterator[bytes]:
        """Yields the content of all parts in order."""
        return (self.part(number).read_bytes() for number in range(len(self)))

    def missing(self) -> list[int]:
        """Numbers of the blocks that are still to be answered."""
        return [number for number in range(len(self)) if not self.part(number).exists()]

    def places(self, number: int) -> range:
        """The places of a block's prompts in the order of the file."""
        return range(self.count)[number * self.size : (number + 1) * self.size]

    def read(self, number: int) -> list[Prompt]:
        """The prompts of a block."""
        own = self.places(number)
        return self.prompts.at(own.start, len(own), seed=0)  # in the file's order, for any seed

    def write(self, number: int, lines: str) -> None:
        """Writes the responses to a block."""
        part = self.part(number)
        part.parent.mkdir(exist_ok=True)
        write_whole(part, [lines.encode()])
        sync(part.parent)


def _parts_of(whole: Path) -> Path:
    """Folder of the blocks' files."""
    return whole.parent / "parts"


def _make(recipe: GenerateRecipe, source: ModelSource, whole: Path, started: Callable[[], None]) -> None:
    """Answers the missing blocks, and joins all."""
    with show_progress(f"{recipe.model.path} → {whole.parent}") as progress:
        rows = files_of(recipe.data.prompts)
        passed = describe_passed_end(source, recipe.data)
        if passed is not None:
            progress.note(passed)
        prompts = open_prompts(rows, recipe.data.in_order, source.tokenizer)
        count = len(range(len(prompts))[: recipe.data.max_prompts])
        blocks = _Blocks(whole, prompts, count, recipe.run.save_every)
        if blocks.missing():
            with workers_of(recipe.cluster, recipe.learner, progress, sampler=recipe.sampler) as workers:
                answers = _open_answers(recipe, source, progress, workers)
                started()
                progress.total(blocks.count, _arithmetic(recipe, blocks), unit="prompts")
                _answer(recipe, blocks, answers, progress)
        with progress.phase("join"):
            _join(blocks)


def _arithmetic(recipe: GenerateRecipe, blocks: _Blocks) -> str:
    return (
        f"{blocks.count} prompts ({blocks.prompts.selection.account}) → {blocks.count * recipe.num_generations} "
        f"responses, in {len(blocks)} blocks of {blocks.size} prompts, by {recipe.sampler.replicas} × "
        f"{recipe.sampler.backend}"
    )


def _answer(recipe: GenerateRecipe, blocks: _Blocks, answers: Answers, progress: Progress) -> None:
    """Writes the missing blocks.

    Raises:
        Stopped: If a stop was requested; the blocks in flight are finished first.
    """
    stop, missing = Stop(None), blocks.missing()
    done = blocks.count - sum(len(blocks.places(number)) for number in missing)
    if done:
        progress.note(f"resumes: {done} prompts are answered already")
    under_way: dict[int, list[Prompt]] = {}

    def read_blocks() -> Iterator[Block]:
        for number in missing:
            if stop.check_after_step() is not None:
                return
            under_way[number] = own = blocks.read(number)
            start = blocks.places(number).start
            yield number, requests_of(own, start, recipe.num_generations, recipe.seed, "generation")

    with heed_signals(stop, progress.note), progress.phase("generate"):
        for number, replies in answers(read_blocks()):
            prompts = under_way.pop(number)
            with progress.phase("write"):
                blocks.write(number, "".join(_lines(prompts, replies)))
            done += len(prompts)
            progress.step(done, {}, sum(reply.num_tokens for reply in replies), len(prompts))
    if done < blocks.count:
        leave_on_stop(stop, f"{done} of {blocks.count} prompts")


def _lines(prompts: Sequence[Prompt], replies: Sequence[Reply]) -> Iterable[str]:
    """The records of a block, as lines."""
    each = len(replies) // len(prompts)
    for i, prompt in enumerate(prompts):
        try:
            yield line_of(prompt, replies[i * each : (i + 1) * each])
        except TypeError as error:  # a table can hold dates and bytes
            raise DataError(f"{prompt.id}: cannot be written as JSON ({error}); leave such a field out") from error


def _join(blocks: _Blocks) -> None:
    """Joins the blocks to one file; writes the summary before it, so that the file never lacks one."""
    total: Counter[str] = Counter()
    for lines in blocks.contents():
        total.update(account([json.loads(line) for line in lines.split(b"\n") if line]))
    summary = {**total, "skipped_rows": blocks.prompts.selection.skipped}
    write_once(blocks.whole.with_name(SUMMARY), json.dumps(summary, indent=1) + "\n")
    write_whole(blocks.whole, blocks.contents())
    sync(blocks.whole.parent)


def _format_summary(summary: Path) -> str:
    """A summary as text."""
    numbers = json.loads(summary.read_text(encoding="utf-8"))
    return (
        f"{numbers['prompts']} prompts, {numbers['responses']} responses ({numbers['unfinished_responses']} cut off by "
        f"their length), {numbers['tokens']} tokens"
    )


Answers = Callable[[Iterator[Block]], Iterator[tuple[int, list[Reply]]]]
"""Maps blocks to their numbers and replies, these in the order of a block's requests. Blocks come back in any order,
and are read as samplers become free."""


def _open_answers(recipe: GenerateRecipe, source: ModelSource, progress: Progress, workers: Workers) -> Answers:
    """Starts the samplers of a recipe, or connects to its server."""
    if recipe.sampler.openai is not None:
        return _server(recipe, source, recipe.sampler.openai, progress)
    return _samplers(recipe, source, progress, workers)


def _samplers(recipe: GenerateRecipe, source: ModelSource, progress: Progress, workers: Workers) -> Answers:
    """Answers by samplers in processes of their own, even a single one, so that bits do not depend on their number."""
    sampling = source.sampling(recipe.sampling)
    computation = choose_kernels(source.folder, recipe.sampler, recipe.learner, progress.note)
    spec = SamplerSpec(source.folder, recipe.sampler, computation, raw_logprobs=recipe.logprobs_are_raw)
    samplers = processes(spec, progress, workers)

    def answers(blocks: Iterator[Block]) -> Iterator[tuple[int, list[Reply]]]:
        for number, batch in samplers.blocks(blocks, sampling):
            yield number, replies_of(batch, source.decode, recipe.logprobs_are_wanted)

    return answers


def _server(recipe: GenerateRecipe, source: ModelSource, options: OpenAI, progress: Progress) -> Answers:
    """Answers by a server, one block after the other."""
    from lockstep.samplers.openai.client import OpenAIClient

    vocabulary = int(read_config(source.folder).get_text_config().vocab_size)
    client = OpenAIClient(options, recipe.sampler.timeout_s, vocabulary, progress.note)
    sampling = source.sampling(recipe.sampling)
    client.require(sampling, recipe.logprobs_are_wanted)

    def answers(blocks: Iterator[Block]) -> Iterator[tuple[int, list[Reply]]]:
        for number, requests in blocks:
            replies = dict(client.replies(requests, sampling, recipe.logprobs_are_wanted))
            yield number, [replies[place] for place in range(len(requests))]

    return answers


def replies_of(batch: Batch, decode: Callable[[Sequence[int]], str], logprobs: bool) -> list[Reply]:
    """Converts a sampler's batch to replies.

    Args:
        batch: See `Sampler.generate`.
        decode: Converts a response's tokens to text.
        logprobs: True if replies carry log-probabilities.
    """
    columns = zip(
        batch.sequences(), batch.sequences("mask"), batch.sequences("sampler_logprob"), batch["truncated"], strict=True
    )
    replies = []
    for sequence, mask, logprob, truncated in columns:
        tokens, cut = sequence[mask].tolist(), bool(truncated)
        text = decode(tokens if cut or batch.sampling is None else batch.sampling.drop_stop(tokens))
        own = tuple(logprob[mask].tolist()) if logprobs else None
        replies.append(Reply(text, len(tokens), "length" if cut else "stop", own))
    return replies


def line_of(prompt: Prompt, replies: Sequence[Reply]) -> str:
    """A prompt and its replies as a line of JSON; the row's numbers keep their form.

    Raises:
        TypeError: The row holds a type that JSON does not have.
    """
    record: dict[str, Any] = {"id": prompt.id, "prompt": prompt.text}
    if prompt.tokens_cut:
        record["truncated_prompt"] = True
    if prompt.messages is not None:
        record["messages"] = list(prompt.messages)
    record["responses"] = [reply.text for reply in replies]
    record["num_tokens"] = [reply.num_tokens for reply in replies]
    record["finish_reasons"] = [reply.finish_reason for reply in replies]
    if all(reply.logprobs is not None for reply in replies):
        record["logprobs"] = [list(reply.logprobs or ()) for reply in replies]
    record["metadata"] = dict(prompt.row)
    return as_written(record) + "\n"


def account(records: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Totals of records."""
    reasons = [reason for record in records for reason in record["finish_reasons"]]
    return {
        "prompts": len(records),
        "responses": len(reasons),
        "unfinished_responses": sum(reason != "stop" for reason in reasons),
        "tokens": sum(sum(record["num_tokens"]) for record in records),
        "truncated_prompts": sum("truncated_prompt" in record for record in records),
    }
