"""Generates responses to blocks of requests, by samplers in processes of their own or by a running server."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lockstep.algorithms.exactness import choose_kernels
from lockstep.cluster.sampler_pool import Block, processes
from lockstep.cluster.specs import SamplerSpec
from lockstep.cluster.workers import Workers
from lockstep.config import OpenAI
from lockstep.inference.generate_options import GenerateRecipe
from lockstep.models.folder import read_config
from lockstep.models.source import ModelSource
from lockstep.report.progress import Progress
from lockstep.rollouts.generation import replies_of
from lockstep.types import Reply

Answers = Callable[[Iterator[Block]], Iterator[tuple[int, list[Reply]]]]
"""Maps blocks to their numbers and replies, these in the order of a block's requests. Blocks come back in any order,
and are read as samplers become free."""


def answering(recipe: GenerateRecipe, source: ModelSource, progress: Progress, workers: Workers) -> Answers:
    """Starts the samplers of a recipe, or connects to its server.

    Args:
        recipe: Names the backend and the distribution of responses.
        source: The model.
        progress: Reports to the user.
        workers: Own the processes that are started.
    """
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
