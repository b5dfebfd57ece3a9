"""Multi-turn episodes: responses and observations until the environment or a limit ends them.

Token ids are only appended, never re-tokenized: the policy continues from exactly the tokens that
it sampled, an observation is tokenized separately, and its tokens are masked. An environment that
raises, hangs, ends its process or returns an invalid value fails only its own episode, which then
has no verdict; the failure is counted and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lockstep.config.trust import log_code_file
from lockstep.core.batch import Batch
from lockstep.core.errors import InputError
from lockstep.core.types import Prompt, Request, SamplingParams
from lockstep.environments import environment
from lockstep.environments.options import EnvironmentSection
from lockstep.environments.tools import ToolSchema
from lockstep.helpers.in_process import build_child
from lockstep.helpers.process import ChildDied, ChildError, ChildHangs, HelperProcess
from lockstep.rollouts.episode_record import (
    UNKNOWN,
    EpisodeObservation,
    EpisodeRecord,
    begin_episode,
    count_calls,
    make_batch,
    make_part_columns,
)
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.system.background import run_in_background, wait_for_all

_ENDING_S = 5.0  # seconds for threads to notice killed processes


ObservationEncoder = Callable[[EpisodeObservation, int], Sequence[int]]
"""Converts an observation, and the token that ended the previous turn, to tokens."""

_AskFunction = Callable[[HelperProcess, Sequence[EpisodeRecord]], None]
"""Asks a process for the answers to its episodes and applies them."""


class EnvironmentFault(InputError):
    """An environment cannot be created or fails too often; the message names it."""


class EpisodeRunner:
    """Runs episodes concurrently with environments in separate processes.

    Args:
        section: The environment and its limits.
        stops: The tokens of `section.stop`.
        decode: Converts a response to text.
        observed: Builds an encoder of observations from the tools' schemas.
        note: Shows a line about failures.

    Attributes:
        tools: JSON schemas of the environment's tools; prompts must list them
            (`DataSection.with_tools`).
        cut_off_reward: The reward of an episode that a limit ends; AS_IS: the sum so far; None: no
            verdict.
        is_declared: True if the class declares `cut_off_reward`; otherwise it is 0, and no reward
            may be negative.
        best_reward: Mean reward of the best policy; None: not declared.

    Raises:
        EnvironmentFault: The environment cannot be found.
    """

    def __init__(
        self,
        section: EnvironmentSection,
        stops: tuple[int, ...],
        decode: Callable[[Sequence[int]], str],
        observed: Callable[[Sequence[ToolSchema]], ObservationEncoder],
        note: Callable[[str], None],
    ) -> None:
        self._section = section
        self._stops = stops
        self._decode = decode
        self._note = note
        self._together = False
        class_name = section.class_name
        assert class_name is not None, "an agent has an AgentRunner"
        log_code_file("environment.class_name", class_name)
        options = () if section.tool_format is None else (section.tool_format,)
        self._children = [
            build_child(environment.__name__, class_name, *options)
            for _ in range(section.max_concurrency)
        ]
        self._start_process(self._children[0])
        with self._children[0].ask_streaming(environment.DECLARED) as reply:
            declared = reply(section.timeout_s)
        self.tools: list[ToolSchema] = declared["schemas"]
        self.is_declared = "cut_off_reward" in declared
        self.cut_off_reward: float | str | None = declared.get("cut_off_reward", 0.0)
        self.best_reward: float | None = declared.get("best_reward")
        self._negative = ""
        self._observed = observed(self.tools)

    @property
    def keeps_rewards(self) -> bool:
        """True if an episode that a limit ends keeps the sum of its rewards so far."""
        return self.cut_off_reward == environment.AS_IS

    def describe_cut_off(self) -> str:
        """Describes the reward of an episode that a limit ends."""
        if self.keeps_rewards:
            return "a truncated episode keeps its rewards so far"
        if self.cut_off_reward is None:
            return "a truncated episode has no verdict"
        return f"the reward of a truncated episode is {self.cut_off_reward:g}"

    def require_declared(self) -> None:
        """Raises EnvironmentFault for a negative reward without a declared `cut_off_reward`."""
        if self._negative:
            raise EnvironmentFault(
                f"{self._negative}, so a truncated episode could earn more than a finished one; "
                "set the "
                "class attribute cut_off_reward to the reward of a truncated episode: a number, "
                "such as the lowest "
                f'reward of an episode, "{environment.AS_IS}" to keep the sum so far, or None to '
                "leave it out of training"
            )

    def run_episodes(
        self,
        engine: SamplerSession,
        prompts: Sequence[Prompt],
        requests: Sequence[Request],
        sampling: SamplingParams,
        group_size: int = 1,
    ) -> Batch:
        """Runs an episode for each request.

        Args:
            engine: Open session that samples responses.
            prompts: The prompt of each request.
            requests: Requests for the first turns.
            sampling: The sampling distribution of each turn; `max_tokens` is per response.
            group_size: Number of requests per prompt, which are neighbors.

        Returns:
            See `Sampler.generate`; `mask` is off at observations, and `truncated` is on if a limit
            ended an episode. Also, per sample, `environment_reward` (NaN: no verdict),
            `environment_fault` and `turns`; with tools, `tool_calls` and `malformed_calls`;
            `reward/…` for named rewards.

        Raises:
            EnvironmentFault: More episodes failed than the recipe allows.
        """
        sampling = replace(sampling, stop_token_ids=(*sampling.stop_token_ids, *self._stops))
        sharing = group_size if self._section.shares_seed else 1
        episodes = [
            begin_episode(number, prompt, request, requests[number - number % sharing].key)
            for number, (prompt, request) in enumerate(zip(prompts, requests, strict=True))
        ]
        versions = self._run_turns(episodes, engine, sampling)
        if failures := self._describe_failures(episodes):
            self._note(failures)
        negative = next((episode for episode in episodes if episode.lowest < 0), None)
        if negative is not None and not self.is_declared:
            self._negative = (
                f"{negative.prompt.id}: {self._section.reference} returned "
                f"the reward {negative.lowest:g}"
            )
        batch = make_batch(episodes, versions, sampling, list(map(self._final_reward, episodes)))
        counts = count_calls(episodes) if self.tools else {}
        return batch.with_columns(sample=counts | make_part_columns(episodes))

    def _final_reward(self, episode: EpisodeRecord) -> float:
        """The reward of an episode; NaN: no verdict."""
        reward = episode.reward
        replaced = episode.is_cut_off and not self.keeps_rewards
        if reward is None:
            return UNKNOWN
        if not replaced:
            return reward
        if self.cut_off_reward is None:
            return UNKNOWN
        return float(self.cut_off_reward)

    def _run_turns(
        self, episodes: Sequence[EpisodeRecord], engine: SamplerSession, sampling: SamplingParams
    ) -> Tensor:
        """Runs turns until all episodes have ended.

        Returns the versions of the weights, int64 [B].
        """
        under_way = episodes
        versions = torch.zeros(len(episodes), dtype=torch.int64)
        ask = partial(self._ask_process, episodes)
        for _ in range(self._section.max_turns):
            versions[[episode.number for episode in under_way]] = self._run_turn(
                under_way, ask, engine, sampling
            )
            under_way = [episode for episode in under_way if not episode.ended]
            if not under_way:
                break
        for episode in under_way:
            episode.truncated = True
        return versions

    def _run_turn(
        self,
        episodes: Sequence[EpisodeRecord],
        ask: _AskFunction,
        engine: SamplerSession,
        sampling: SamplingParams,
    ) -> Tensor:
        """Runs one turn of each episode: a response and its answer.

        Returns the versions of the weights, int64 [B].
        """
        batch = engine.generate([episode.next_request() for episode in episodes], sampling).to(
            "cpu"
        )
        columns = zip(
            batch.sequences(),
            batch.sequences("mask"),
            batch.sequences("sampler_logprob"),
            strict=True,
        )
        cut_off = batch["truncated"].tolist()
        model_stops = tuple(set(sampling.stop_token_ids) - set(self._stops))
        model_sampling = replace(sampling, stop_token_ids=model_stops)
        for episode, (tokens, mask, logprob), cut in zip(episodes, columns, cut_off, strict=True):
            episode.append_tokens(tokens[mask], logprob[mask])
            episode.responses.append(self._decode(model_sampling.drop_stop(tokens[mask].tolist())))
            episode.truncated = cut
        answers: list[Future[None]] = []
        try:
            for number, child in enumerate(self._children):
                # an episode always has the same process
                share = [one for one in episodes if one.number % len(self._children) == number]
                answers.append(run_in_background(partial(ask, child, share)))
            for answer in wait_for_all(answers):
                answer.result()  # raises the thread's error
        except BaseException:
            for child in self._children:
                child.kill()
            wait(answers, _ENDING_S)
            raise
        for episode in episodes:
            self._append_observation(episode, sampling.max_tokens)
        return batch["version"]

    def _append_observation(self, episode: EpisodeRecord, max_tokens: int) -> None:
        """Appends the observation if the episode continues and has room for the next response."""
        episode.ended |= episode.truncated
        if episode.ended:
            return
        observation = torch.tensor(
            self._observed(episode.observations[-1], int(episode.tokens[-1][-1])), dtype=torch.int64
        )
        limit = len(episode.prompt.tokens) + self._section.max_tokens
        if episode.token_count + len(observation) + max_tokens > limit:
            episode.ended = episode.truncated = True
        else:
            episode.append_tokens(observation)

    def _ask_process(
        self,
        everyone: Sequence[EpisodeRecord],
        child: HelperProcess,
        episodes: Sequence[EpisodeRecord],
    ) -> None:
        """Asks a process for answers; restarts it without the episode that hung or crashed.

        Raises:
            EnvironmentFault: More episodes of `everyone` failed than the recipe allows; checked
                after each lost process, since each hang takes the full timeout.
        """
        groups = [episodes] if episodes else []
        while groups:
            self._start_process(child)
            left, is_known = self._ask_once(child, groups.pop(0))
            if left and is_known:
                groups.insert(0, left)
            else:
                groups[:0] = [[episode] for episode in left]
            self._describe_failures(everyone)

    def _ask_once(
        self, child: HelperProcess, episodes: Sequence[EpisodeRecord]
    ) -> tuple[list[EpisodeRecord], bool]:
        """Asks a process once for the answers to these episodes.

        Returns:
            The episodes without an answer because the process was lost; and False if the cause is
            unknown because they ran concurrently, so that each must be asked again separately.
        """
        left = list(episodes)
        try:
            limit = {"timeout_s": self._section.timeout_s}
            with child.ask_streaming(
                [episode.environment_message | limit for episode in episodes]
            ) as reply:
                while left:
                    left[0].take_reply(self._await_answer(reply))
                    left.pop(0)
        except (ChildHangs, ChildDied) as error:
            if self._together and len(episodes) > 1:
                return left, False
            fault = f"crashed its process ({error})"
            if isinstance(error, ChildHangs):
                fault = f"timed out after {self._section.timeout_s:g} s"
            left.pop(0).mark_failed(fault)
        return left, True

    def _await_answer(self, reply: Callable[[float], Any]) -> dict[str, Any]:
        while (message := reply(self._section.timeout_s)) in (
            environment.CALLED,
            environment.TOGETHER,
        ):
            self._together |= message == environment.TOGETHER
        if not isinstance(message, dict):
            raise ChildDied("it wrote to the pipe of its process")
        return message

    def _start_process(self, child: HelperProcess) -> None:
        try:
            child.start()
        except ChildError as error:
            raise EnvironmentFault(str(error)) from None

    def _describe_failures(self, episodes: Sequence[EpisodeRecord]) -> str:
        """Describes the number of failed episodes and the first failure; empty without failures.

        Raises:
            EnvironmentFault: More episodes failed than the recipe allows.
        """
        failed = [episode for episode in episodes if episode.fault is not None]
        limit = self._section.max_no_verdict_rate
        if not failed:
            return ""
        first = failed[0]
        failures = (
            f"{len(failed)} of {len(episodes)} episodes failed; the first: {first.prompt.id}, turn "
            f"{len(first.responses)}: {self._section.reference} "
            f"{first.fault}"
        )
        if len(failed) > limit * len(episodes):
            raise EnvironmentFault(f"{failures}, above environment.max_no_verdict_rate={limit:g}")
        return failures
