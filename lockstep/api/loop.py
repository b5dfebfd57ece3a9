"""Parts for custom training loops: `open_learner`, `open_sampler`, `sync`, `sample`, `rollout`.

A learner's methods are `forward_backward`, `last_logprobs`, `optim_step`, `logprobs`, `values`,
`save` and `load`; a loss is a frozen dataclass (`lockstep.losses`). Recipes run the same parts.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, get_args

from lockstep.algorithms.exactness import choose_kernels, choose_learner_kernels
from lockstep.api.short_errors import shorten_traceback
from lockstep.api.values import read_arguments, read_folder
from lockstep.cluster import open_models
from lockstep.cluster.sampler_pool import open_nearest_sampler
from lockstep.cluster.specs import LearnerSpec, SamplerSpec, require_sampler
from lockstep.cluster.workers import WorkerPool
from lockstep.config import (
    Cluster,
    Computation,
    LearnerSection,
    Optimizer,
    SamplerSection,
    Sampling,
    user_code,
)
from lockstep.config.hub import fetch_model
from lockstep.config.loading import load_section
from lockstep.core.batch import Batch
from lockstep.core.errors import InputError
from lockstep.core.types import HeadKind, Prompt, SamplingParams
from lockstep.learners.base import Learner
from lockstep.models.heads import scores_tokens
from lockstep.models.source import ModelSource, open_source
from lockstep.report.progress import show_notes
from lockstep.rollouts.rollout import RolloutCollector, Rollouts, build_requests
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.samplers.base import Sampler
from lockstep.system.paths import HUB
from lockstep.weight_sync.sync import random_probe, sync_weights

if TYPE_CHECKING:
    from lockstep.api.options import (
        LearnerSectionKeys,
        OptimizerKeys,
        SamplerSectionKeys,
        SamplingKeys,
    )

ScoreFunction = Callable[[str, str, str, Mapping[str, Any]], float | None]
"""A reward `f(prompt, response, answer, row)`; None means no verdict."""

_WORKERS = WorkerPool()
"""Learners and samplers opened here, with their processes."""


def close_all() -> None:
    """Closes all learners and samplers opened here, with their processes; also runs at exit."""
    _WORKERS.close()


atexit.register(close_all)


@shorten_traceback
def open_learner(
    model: str | Path,
    *,
    head: HeadKind = "logits",
    optimizer: OptimizerKeys | None = None,
    seed: int = 0,
    exact: bool = True,
    **options: Unpack[LearnerSectionKeys],
) -> Learner:
    """Opens a learner: a model with a head, and an optimizer to train it.

    Args:
        model: A Hugging Face folder, or `hf:owner/name` on the Hub.
        head: `logits` for a policy, `value` for a critic, `reward` for a reward model.
        optimizer: Options of the optimizer, such as `{"lr": 1e-5}`; None freezes the model.
        seed: Seed of a new head and of new adapters.
        exact: Use kernels that give each token the same log-probability as when it was sampled, bit
            for bit; if the model or machine cannot, a note explains why.
        options: Options of the section `learner`, such as `dtype="bf16"` or `parallel={"dp": 2}`.

    Raises:
        RecipeError: An option is invalid.
        ModelError: This machine does not compute the model correctly.
    """
    if head not in get_args(HeadKind):
        raise InputError(
            f"open_learner: head is {head!r}; choose one of: {', '.join(get_args(HeadKind))}"
        )
    section = load_section(LearnerSection, read_arguments("lockstep.open_learner", options))
    if optimizer is None:
        chosen = None
    else:
        chosen = load_section(Optimizer, read_arguments("optimizer", optimizer))
        if chosen.depends_on_run:
            raise InputError(
                "open_learner: a loop of your own has no number of optimizer steps; set "
                "schedule.decay_steps, and warmup_steps and cooldown_steps to whole numbers"
            )
    spec = LearnerSpec(str(_find_model(model)), head, section, chosen, seed)
    spec = spec if chosen is not None else spec.frozen
    progress = show_notes()
    if exact and scores_tokens(head):
        spec = replace(
            spec, section=choose_learner_kernels(spec.model, spec.section, progress.show_note)
        )
    return open_models.open_learner(spec, None, Cluster().timeout_s, progress, _WORKERS)


def _find_model(model: str | Path) -> Path:
    """The folder of a model; a model on the Hub is fetched first."""
    folder = read_folder(model)
    if folder.startswith(HUB):
        return fetch_model(folder)
    return Path(folder)


@shorten_traceback
def save(learner: Learner, folder: str | Path) -> None:
    """Writes a learner's weights, optimizer moments and counters; returns when done.

    Raises:
        InputError: The folder is not empty.
        NotSavedError: The state cannot be written.
    """
    path = Path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(
            f"{path} already exists and is not an empty folder; choose a different path"
        )
    path.mkdir(parents=True, exist_ok=True)
    learner.save(path)
    learner.poll_save(wait=True)


@shorten_traceback
def load(learner: Learner, folder: str | Path) -> None:
    """Restores the state that `save` wrote, bit for bit.

    Raises:
        InputError: The folder is empty.
    """
    path = Path(folder)
    if not path.is_dir() or not any(path.iterdir()):
        raise InputError(f"{path} has no learner; use a folder written by lockstep.save")
    learner.load(path)


@dataclass
class TextSampler:
    """A sampler and the tokenizer of its model.

    Attributes:
        sampler: The inference engine.
        source: Its model's folder and tokenizer.
        computation: Its device, dtype and kernels.
        version: Version of its weights: the number of syncs.
        learner: Learner whose weights it samples with; None before the first sync of a sampler
            that was opened without a learner.
        updates: Optimizer steps that the learner had taken at the last sync.
        requires_sync: Whether `rollout` and `sample` raise if the learner has trained since the
            last sync. False if the sampler shares the learner's weights; set it to False for an
            off-policy loop.
    """

    sampler: Sampler
    source: ModelSource
    computation: Computation
    version: int = 0
    learner: Learner | None = None
    updates: int = 0
    requires_sync: bool = True

    if not TYPE_CHECKING:  # or every attribute would exist for type checkers

        def __getattr__(self, name: str) -> Any:
            """Names the functions that sample, for users of libraries that have methods instead."""
            text = (
                f"a sampler has no {name}; lockstep.sample(sampler, [prompt], max_tokens=…) draws "
                "responses, and lockstep.rollout also scores them"
            )
            raise AttributeError(text, name="", obj=None)  # or Python would guess a name


@shorten_traceback
def open_sampler(
    model: str | Path, learner: Learner | None = None, **options: Unpack[SamplerSectionKeys]
) -> TextSampler:
    """Opens an inference engine, with batch-invariant kernels if the model and machine allow them.

    Args:
        model: A Hugging Face folder, or `hf:owner/name` on the Hub.
        learner: A learner of that model. The sampler takes its dtype and kernels, and shares its
            weights if both fit this process; else `sync` sends them, and sampling with weights of
            an earlier optimizer step raises (see `TextSampler.requires_sync`).
        options: Options of the section `sampler`, such as `backend="vllm"` or `replicas=2`.

    Raises:
        RecipeError: An option is invalid.
        ModelError: This machine does not compute the model correctly.
    """
    section = load_section(SamplerSection, read_arguments("lockstep.open_sampler", options))
    own = None if learner is None else open_models.find_section(learner)
    progress = show_notes()
    computation: Computation = own or LearnerSection()
    require_sampler(section, computation)
    folder = str(_find_model(model))
    if own is None or own.exact:
        computation = choose_kernels(folder, section, computation, progress.show_note)
    spec = SamplerSpec(folder, section, computation)
    shared = None
    spec.require_proof()  # includes decoding, which a learner's own proof omits
    if learner is not None and own is not None:
        shared = open_models.share_weights(learner, own, spec, _WORKERS)
    return TextSampler(
        shared or open_nearest_sampler(spec, progress, _WORKERS),
        open_source(folder),
        computation,
        learner=learner,
        requires_sync=shared is None,
    )


@dataclass(frozen=True)
class SyncProof:
    """Proof of a weight sync: the engine's tensors were compared with the learner's.

    Attributes:
        version: Version of the weights that the engine now holds.
        tensors: Number of compared tensors.
        probe_gap: Mean |Δ log π| of a probe that both scored, nats.
        exact: Whether learner and sampler now give each token bitwise equal log-probabilities.
    """

    version: int
    tensors: int
    probe_gap: float
    exact: bool


@shorten_traceback
def sync(learner: Learner, sampler: TextSampler) -> SyncProof:
    """Syncs the learner's weights to the sampler; returns the proof that they arrived.

    Raises:
        WeightSyncError: The engine holds different weights, or kept a stale cache; the message
            names the tensors.
    """
    dtypes = open_models.find_dtype(learner), sampler.computation.dtype
    probe = random_probe(sampler.source.vocabulary, sampler.source.context, *dtypes).score_with(
        learner
    )
    sampler.sampler.wake()
    found = sync_weights(learner, sampler.sampler, sampler.version + 1, probe).floats()
    sampler.version += 1
    sampler.learner = learner
    sampler.updates = open_models.count_updates(learner)
    exact = open_models.computes_exactly(learner, sampler.computation)
    return SyncProof(
        sampler.version, int(found["weight_sync/attested"]), found["weight_sync/probe_gap"], exact
    )


@shorten_traceback
def rollout(
    sampler: TextSampler,
    prompts: Sequence[str | Mapping[str, Any]],
    reward: ScoreFunction,
    *,
    num_generations: int = 1,
    seed: int = 0,
    **sampling: Unpack[SamplingKeys],
) -> Rollouts:
    """Samples responses and scores them.

    Args:
        sampler: The sampler, with the weights of its latest `sync`.
        prompts: Texts, or rows with `question` and, if the reward reads it, `answer`.
        reward: Scores a response.
        num_generations: Responses per prompt; they are neighbors in the batch.
        seed: Seed of the random numbers; pass a new one for each step.
        **sampling: Options of a recipe's section `sampling`: `max_tokens` (required), `temperature`
            and so on.

    Returns:
        Rollouts whose batch has `sampler_logprob` per token and `score` per sequence (NaN means no
            verdict).

    Raises:
        InputError: A prompt is neither text nor a row with `question`, the reward did not return a
            number, or the sampler's weights are older than the learner's.
        RecipeError: A sampling option is invalid.
    """
    _require_newest(sampler, "rollout")
    rows = _TextPrompts(sampler.source, _read_rows(prompts))
    drawn = _read_sampling(sampler, "lockstep.rollout", sampling)
    session = SamplerSession(sampler.sampler)
    collector = RolloutCollector(
        session, rows, _FunctionReward(reward), sampler.source.decode, seed
    )
    with session.at(sampler.version):
        return collector.collect(0, len(rows.rows), drawn, num_generations)


@shorten_traceback
def sample(
    sampler: TextSampler,
    prompts: Sequence[str | Sequence[int]],
    *,
    num_generations: int = 1,
    seed: int = 0,
    **sampling: Unpack[SamplingKeys],
) -> Batch:
    """Samples responses without scoring them; equal arguments draw the responses of `rollout`.

    Args:
        sampler: The sampler, with the weights of its latest `sync`.
        prompts: Texts, or lists of token ids, which the model reads as they are.
        num_generations: Responses per prompt; they are neighbors in the batch.
        seed: Seed of the random numbers; pass a new one for each step.
        **sampling: Options of a recipe's section `sampling`, as for `rollout`.

    Returns:
        A batch of prompts with their responses, with `mask` (True on response tokens) and
        `sampler_logprob` per token, and `truncated` per sequence.

    Raises:
        InputError: A token id is unknown to the model, a prompt is empty or too long, or the
            sampler's weights are older than the learner's.
        RecipeError: A sampling option is invalid.
    """
    _require_newest(sampler, "sample")
    drawn = _read_sampling(sampler, "lockstep.sample", sampling)
    _require_prompts("sample", prompts)
    known = range(sampler.source.vocabulary)
    read: list[Prompt] = []
    for number, prompt in enumerate(prompts):
        tokens = sampler.source.prompt_ids(prompt) if isinstance(prompt, str) else prompt
        if not isinstance(tokens, Sequence) or any(token not in known for token in tokens):
            raise InputError(
                f"sample: prompt {number} is {user_code.describe_object(prompt)}; pass a string, "
                f"or a list of token ids from 0 to {known[-1]}"
            )
        read.append(Prompt(str(number), "", tuple(tokens), {}))
    requests = build_requests(read, 0, num_generations, seed, "train")
    session = SamplerSession(sampler.sampler)
    with session.at(sampler.version):
        return session.generate(requests, drawn)


def _require_newest(sampler: TextSampler, caller: str) -> None:
    """Raises InputError if the learner has trained since the sampler's weights were synced."""
    if sampler.learner is None or not sampler.requires_sync:
        return
    updates = open_models.count_updates(sampler.learner)
    if updates != sampler.updates:
        raise InputError(
            f"{caller}: the sampler has the weights of optimizer step {sampler.updates}, but the "
            f"learner is at step {updates}; call lockstep.sync(learner, sampler) after each "
            "update, or set sampler.requires_sync = False for an off-policy loop"
        )


def _require_prompts(caller: str, prompts: Sequence[Any]) -> None:
    if isinstance(prompts, str):
        raise InputError(f"{caller}: prompts is a single string; pass a list")
    if not prompts:
        raise InputError(f"{caller}: prompts is empty; pass at least one")


def _read_sampling(sampler: TextSampler, caller: str, options: Mapping[str, Any]) -> SamplingParams:
    return sampler.source.sampling(load_section(Sampling, read_arguments(caller, options)))


def _read_rows(prompts: Sequence[str | Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns prompts as rows with a `question`.

    Raises:
        InputError: There are no prompts, or one is neither text nor a row with `question`.
    """
    _require_prompts("rollout", prompts)
    rows: list[Mapping[str, Any]] = []
    for one in prompts:
        rows.append({"question": one} if isinstance(one, str) else one)
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping) or not isinstance(row.get("question"), str):
            raise InputError(
                f"rollout: prompt {number} is {user_code.describe_object(row)}; pass a string, or "
                "a row with "
                "`question`"
            )
    return rows


@dataclass(frozen=True)
class _TextPrompts:
    """Prompts from the calling program, as a `PromptStream`."""

    source: ModelSource
    rows: Sequence[Mapping[str, Any]]

    def read_at(self, position: int, count: int, seed: int) -> list[Prompt]:
        prompts: list[Prompt] = []
        for number in range(position, position + count):
            row = self.rows[number]
            tokens = tuple(self.source.prompt_ids(row["question"]))
            prompts.append(Prompt(str(number), row["question"], tokens, row))
        return prompts

    def answer(self, prompt: Prompt) -> str:
        return str(prompt.row.get("answer", ""))


@dataclass(frozen=True)
class _FunctionReward:
    """A function from the calling program, as a `Reward`."""

    score: ScoreFunction

    def __call__(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> list[float | None]:
        judged = zip(prompts, responses, answers, strict=True)
        scores: list[float | None] = []
        for prompt, response, answer in judged:
            scores.append(self.score(prompt.text, response, answer, prompt.row))
        try:
            return list(map(user_code.read_reward, scores))
        except ValueError as error:
            raise InputError(f"rollout: the reward returned {error}") from None
