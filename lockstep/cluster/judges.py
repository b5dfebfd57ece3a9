"""Judges of responses: the policy's own sampler, another model in a folder, or a server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lockstep.algorithms.exactness import choose_kernels
from lockstep.algorithms.setup import PolicyJudge
from lockstep.cluster.sampler_pool import open_nearest_sampler
from lockstep.cluster.specs import SamplerSpec
from lockstep.cluster.turns import DeviceTurns
from lockstep.cluster.workers import WorkerPool
from lockstep.config import Computation, SamplerSection
from lockstep.config.model_recipe import find_weights_folder
from lockstep.core.batch import Batch
from lockstep.core.types import Request, SamplingParams, ServerReply
from lockstep.judge.asking import (
    ChatConversation,
    ConversationEncoder,
    GenerateFunction,
    JudgeModel,
    ModelAnswer,
    SamplerAnswers,
)
from lockstep.judge.build import score_judge
from lockstep.judge.options import AskedSection
from lockstep.judge.remembered import RememberedAnswers
from lockstep.judge.templates import COMMON_CONTROLS, build_escape
from lockstep.models.digests import model_files
from lockstep.models.source import ModelSource, open_source
from lockstep.report.progress import RunProgress
from lockstep.rewards.judge_reward import JudgeReward
from lockstep.rewards.options import RewardJudge
from lockstep.samplers.base import Sampler


def policy_answers(section: AskedSection, policy: PolicyJudge, name: str) -> JudgeModel:
    """The policy as judge, with its existing sampler.

    Raises:
        ValueError: As `judge_answers`.
    """
    _require_room(section, policy.source, name)
    return _build_answers(section, policy.generate, policy.source, name)


def judge_answers(
    section: AskedSection,
    computation: Computation,
    progress: RunProgress,
    workers: WorkerPool,
    name: str = "judge",
    turns: DeviceTurns | None = None,
) -> JudgeModel:
    """Starts another model as judge, or connects to a server, and checks that it answers.

    Args:
        section: Names the judge.
        computation: Device and type of a model in a folder.
        progress: Reports to the user.
        workers: Owner of the started processes; ends them.
        name: Name of the section, for messages.
        turns: Turns of learners that leave the judge's GPU before it works; None: it always stays
            awake.

    Raises:
        ValueError: The section's questions do not fit the model, or the chat template is missing.
        ServerError: The server is unusable.
    """
    engine = section.engine_section
    if engine.openai is not None:
        return _open_server(section, engine, progress)
    assert section.path is not None, "a judge must be the policy, a folder, or a server"
    source = open_source(section.path)
    _require_room(section, source, name)
    kernels = choose_kernels(source.folder, engine, computation, progress.show_remark)
    own = engine if turns is None else engine.take_turns()
    start = partial(
        open_nearest_sampler, SamplerSpec(source.folder, own, kernels), progress, workers
    )
    if turns is not None:
        return _build_answers(
            section, AwakeWhenAsked(turns.start_engine(start)).generate, source, name
        )
    sampler = start()
    sampler.wake()
    return _build_answers(section, sampler.generate, source, name)


@dataclass(frozen=True)
class AwakeWhenAsked:
    """A sampler with its own weights, awake only while it answers; the policy's engine may be
    awake, too.
    """

    sampler: Sampler

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        self.sampler.wake()
        batch = self.sampler.generate(requests, sampling)
        self.sampler.sleep()  # not after an error, which matters more
        return batch


def _build_answers(
    section: AskedSection, generate: GenerateFunction, source: ModelSource, name: str
) -> SamplerAnswers:
    reader = ConversationEncoder(
        source.tokenizer, section.chat, section.max_prompt_tokens, name, section.template_args
    )
    return SamplerAnswers(generate, reader, source.sampling(section.sampling))


def _require_room(section: AskedSection, source: ModelSource, name: str) -> None:
    tokens = section.max_prompt_tokens + section.sampling.max_tokens
    source.require_room({f"{name}.max_prompt_tokens + {name}.sampling.max_tokens": tokens})


def open_judge_reward(
    section: RewardJudge,
    key: str,
    folder: Path,
    seed: int,
    answer: Callable[[RewardJudge, str], JudgeModel],
) -> JudgeReward:
    """Opens a judge as a reward; caches its replies in a folder.

    Args:
        section: The judge; its model is in a folder or behind a server.
        key: Key of the section in the recipe.
        folder: Folder of the run or of the results.
        seed: Seed of the random numbers.
        answer: Opens the judge model or server.

    Raises:
        ValueError, ServerError: As `judge_answers`, or if the template has the wrong fields.
    """
    # by model and distribution, but not by a server's address
    server = section.engine_section.openai
    served = None if server is None else server.model
    weights = None if section.path is None else find_weights_folder(section.path)
    files = {} if weights is None or served is not None else model_files(weights)
    sampling = section.sampling.model_dump(mode="json")
    identity = json.dumps(
        [served, files, section.chat, dict(section.template_args), sampling], sort_keys=True
    )
    remembered = RememberedAnswers(
        answer(section, key), folder / f"judges/{key}.replies.jsonl", identity
    )
    scorer = score_judge(section, remembered, seed, key)
    return JudgeReward(scorer, section.judge_score_low, section.judge_score_high)


def _open_server(
    section: AskedSection, sampler: SamplerSection, progress: RunProgress
) -> JudgeModel:
    from lockstep.samplers.openai.client import OpenAIClient

    assert sampler.openai is not None, "a server must have an address"
    client = OpenAIClient(sampler.openai, sampler.timeout_s, note=progress.show_note)
    source = None if section.path is None else open_source(section.path)
    if source is None:
        reader = None
    else:
        reader = ConversationEncoder(source.tokenizer, section.chat, section.max_prompt_tokens)
    stops = () if source is None else source.stop_token_ids
    sampling = section.sampling.params(stops)
    client.require_supported(sampling)
    return ServerAnswers(
        client.chat, sampling, sampler.openai.max_concurrency, reader, progress.show_note
    )


ChatFunction = Callable[..., Iterator[tuple[int, ServerReply]]]
"""`OpenAIClient.chat`."""


@dataclass(frozen=True)
class ServerAnswers:
    """A server as judge; implements `JudgeModel`.

    Attributes:
        chat: Sends conversations to it.
        sampling: Sampling distribution of the replies.
        patience: Number of failures before the first answer after which the judge fails.
        reader: Tokenizer and template of the server's model; None if unknown.
        note: Shows the user a line.
    """

    chat: ChatFunction
    sampling: SamplingParams
    patience: int
    reader: ConversationEncoder | None
    note: Callable[[str], object]

    def escape_controls(self, text: str) -> str:
        """Escapes the judge's control tokens, or common ones if its tokenizer is unknown."""
        if self.reader is None:
            return _escaped_in_general(text)
        return self.reader.escaped(text)

    def count_excess_tokens(self, conversations: Sequence[ChatConversation]) -> list[int]:
        """Number of tokens by which each conversation exceeds the limit; 0 without a tokenizer."""
        if self.reader is None:
            return [0] * len(conversations)
        return self.reader.count_excess_tokens(conversations)

    def answer_conversations(
        self, conversations: Sequence[ChatConversation], keys: Sequence[int]
    ) -> list[ModelAnswer | None]:
        """See `JudgeModel`.

        Raises:
            ServerError: No conversation was answered.
        """
        failures: list[RuntimeError] = []
        found: dict[int, ModelAnswer] = {}

        def note_lost(index: int, error: RuntimeError) -> None:
            failures.append(error)
            if not found and len(failures) >= self.patience:
                raise error

        for index, reply in self.chat(conversations, self.sampling, keys, note_lost):
            found[index] = ModelAnswer(reply.text, reply.finish_reason == "stop")
        if failures and not found:
            raise failures[0]
        if failures:
            self.note(
                f"{len(failures)} of {len(conversations)} questions got no answer; last failure: "
                f"{failures[-1]}"
            )
        return list(map(found.get, range(len(conversations))))


_escaped_in_general = build_escape(COMMON_CONTROLS)
