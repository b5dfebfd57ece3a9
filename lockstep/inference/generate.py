"""`lockstep generate`: writes a file with responses to every prompt, in row order.

    generations.jsonl    one prompt per line, with its responses
    summary.json         totals, once all prompts are answered
    recipe.yaml   every option
    inputs.json, environment.json   digests of model and data, versions and machine

Prompts are cut into fixed blocks. A block goes to one sampler, and blocks are written completely
and in order; so responses do not depend on the number of samplers, and a killed run resumes after
the last complete block.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.algorithms.columns import tell_options
from lockstep.algorithms.exactness import choose_kernels
from lockstep.algorithms.rows import group_files, open_prompts
from lockstep.cluster.sampler_pool import RequestBlock, SamplerPool, start_sampler_pool
from lockstep.cluster.specs import SamplerSpec
from lockstep.cluster.workers import open_worker_pool
from lockstep.config.hub import fetch_names
from lockstep.config.loading import LoadedRecipe
from lockstep.core.batch import Batch
from lockstep.core.types import Prompt
from lockstep.data.prompts import PromptRows
from lockstep.data.rows import DataError
from lockstep.data.templates import as_written
from lockstep.inference.generate_recipe import GenerateRecipe
from lockstep.inference.results import choose_results_folder, find_missing, raise_if_stopped
from lockstep.models.source import ModelSource, describe_template, open_source
from lockstep.report.progress import RunProgress, show_progress
from lockstep.rollouts.rollout import build_requests
from lockstep.run.folder.files import write_once
from lockstep.run.stop import StopRequests, stop_on_signals
from lockstep.system.printable import print_text
from lockstep.system.whole_files import append_lines

GENERATIONS = "generations.jsonl"
SUMMARY = "summary.json"


def generate(loaded: LoadedRecipe) -> Path:
    """Answers all remaining prompts.

    Returns:
        The folder of the results.

    Raises:
        Stopped: If a stop was requested.
        ChangedError: If the folder holds different generations.
        SamplerLost: If a sampler dies; written blocks are kept.
    """
    loaded = fetch_names(loaded)
    loaded = tell_options(loaded, loaded.expect_recipe(GenerateRecipe).data.in_order)
    recipe = loaded.expect_recipe(GenerateRecipe)
    source = open_source(recipe.model.path)
    rows = {"prompts": group_files(recipe.data.prompts)}
    results = choose_results_folder(
        loaded, recipe.model.path, rows, "generations", "other generations"
    )
    longest = recipe.data.max_prompt_tokens + recipe.sampling.max_tokens
    source.require_room({"data.max_prompt_tokens + sampling.max_tokens": longest})
    with results.open_locked() as started:
        if not (results.folder / SUMMARY).exists():
            _answer_and_summarize(recipe, source, results.folder, started)
    totals = json.loads((results.folder / SUMMARY).read_text(encoding="utf-8"))
    print_text(
        f"{totals['prompts']} prompts, {totals['responses']} responses "
        f"({totals['unfinished_responses']} truncated), {totals['tokens']} tokens: "
        f"{results.folder / GENERATIONS}"
    )
    return results.folder


def _answer_and_summarize(
    recipe: GenerateRecipe, source: ModelSource, folder: Path, started: Callable[[], None]
) -> None:
    """Answers the missing blocks and writes the summary."""
    log = folder / GENERATIONS
    size = recipe.run.save_every
    with show_progress(f"{recipe.model.path} → {folder}") as progress:
        remark = describe_template(source, recipe.data)
        if remark is not None:
            progress.show_remark(remark)
        prompts = open_prompts(
            group_files(recipe.data.prompts), recipe.data.in_order, source.tokenizer
        )
        count = len(range(len(prompts))[: recipe.data.max_prompts])
        missing = find_missing(log, count, size)
        if missing:
            with open_worker_pool(
                recipe.cluster, recipe.learner, progress, sampler=recipe.sampler
            ) as workers:
                computation = choose_kernels(
                    source.folder, recipe.sampler, recipe.learner, progress.show_remark
                )
                spec = SamplerSpec(source.folder, recipe.sampler, computation)
                # in separate processes, so that bits do not depend on their number
                samplers = start_sampler_pool(spec, progress, workers)
                started()
                progress.set_total(
                    count,
                    f"{count} prompts ({prompts.selection.skipped_summary}) → "
                    f"{count * recipe.num_generations} responses, in blocks of {size} prompts, by "
                    f"{recipe.sampler.replicas} × {recipe.sampler.backend}",
                    unit="prompts",
                )
                _answer_blocks(recipe, source, samplers, prompts, missing, log, progress)
        total = Counter(count_totals([]))
        with log.open("rb") as lines:
            for line in lines:
                total.update(count_totals([json.loads(line)]))
    summary = {**total, "skipped_rows": prompts.selection.skipped_count}
    write_once(folder / SUMMARY, json.dumps(summary, indent=1) + "\n")


def _answer_blocks(
    recipe: GenerateRecipe,
    source: ModelSource,
    samplers: SamplerPool,
    prompts: PromptRows,
    missing: Sequence[range],
    log: Path,
    progress: RunProgress,
) -> None:
    """Answers the missing blocks, given by prompt indices, and logs them in order.

    Raises:
        Stopped: If a stop was requested; the blocks in flight are finished first.
    """
    stop = StopRequests(None)
    answered = missing[0].start
    if answered:
        progress.show_note(f"resumes: {answered} prompts are already answered")
    under_way: dict[int, list[Prompt]] = {}
    waiting: dict[int, str] = {}
    written = 0

    def read_blocks() -> Iterator[RequestBlock]:
        for number, block in enumerate(missing):
            if stop.check_after_step() is not None:
                return
            own = prompts.read_at(block.start, len(block), seed=0)  # in file order, for any seed
            under_way[number] = own
            requests = build_requests(
                own, block.start, recipe.num_generations, recipe.seed, "generation"
            )
            yield number, requests

    with stop_on_signals(stop, progress.show_note), progress.phase("generate"):
        for number, batch in samplers.generate_blocks(
            read_blocks(), source.sampling(recipe.sampling)
        ):
            own = under_way.pop(number)
            waiting[number] = "".join(format_lines(own, batch, source.decode, recipe.logprobs))
            while written in waiting:
                append_lines(log, waiting.pop(written).encode())
                written += 1
            answered += len(own)
            progress.end_step(answered, {}, int(batch.mask.sum()), len(own))
    if written < len(missing):
        raise_if_stopped(stop, f"{answered} of {missing[-1].stop} prompts")


def format_lines(
    prompts: Sequence[Prompt], batch: Batch, decode: Callable[[Sequence[int]], str], logprobs: bool
) -> Iterator[str]:
    """Yields a JSON line per prompt with its responses, which are adjacent in the batch.

    Args:
        prompts: The prompts.
        batch: See `Sampler.generate`.
        decode: Converts a response's tokens to text.
        logprobs: True to include the log-probabilities of the sampled tokens.

    Raises:
        DataError: A row has a type that JSON does not support.
    """
    tokens: list[list[int]] = []
    scores: list[list[float]] = []
    texts: list[str] = []
    cut = batch["truncated"].tolist()
    drop_stop = list if batch.sampling is None else batch.sampling.drop_stop
    columns = batch.sequences(), batch.sequences("sampler_logprob"), batch.sequences("mask")
    for own, own_scores, mask, is_cut in zip(*columns, cut, strict=True):
        drawn = own[mask].tolist()
        tokens.append(drawn)
        scores.append(own_scores[mask].tolist())
        texts.append(decode(drawn if is_cut else drop_stop(drawn)))
    each = len(tokens) // len(prompts)
    for number, prompt in enumerate(prompts):
        own = slice(number * each, (number + 1) * each)
        record: dict[str, Any] = {"id": prompt.id, "prompt": prompt.text}
        if prompt.messages is not None:
            record["messages"] = list(prompt.messages)
        record["responses"] = texts[own]
        record["num_tokens"] = list(map(len, tokens[own]))
        record["finish_reasons"] = ["length" if is_cut else "stop" for is_cut in cut[own]]
        if logprobs:
            record["logprobs"] = scores[own]
        record["metadata"] = dict(prompt.row)
        try:
            yield as_written(record) + "\n"
        except TypeError as error:  # a table can contain dates and bytes
            raise DataError(
                f"{prompt.id}: cannot be written as JSON ({error}); remove that field"
            ) from error


def count_totals(records: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Numbers of prompts, responses and tokens in `records`."""
    reasons: list[str] = []
    for record in records:
        reasons += record["finish_reasons"]
    return {
        "prompts": len(records),
        "responses": len(reasons),
        "unfinished_responses": sum(reason != "stop" for reason in reasons),
        "tokens": sum(sum(record["num_tokens"]) for record in records),
    }
