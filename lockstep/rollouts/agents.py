"""Agents as environments: programs that ask the policy over HTTP, each an episode.

The policy answers at an endpoint on this machine that is open only during rollouts. The ledger
turns the requests of an episode into paths; the recipe's reward judges what the program answers. A
program that crashes, hangs or never asks loses only its own episode, which has no verdict.
"""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from itertools import islice, repeat
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from lockstep.config.trust import log_code_file
from lockstep.core.batch import PATH, Batch
from lockstep.core.errors import RunError
from lockstep.core.types import Prompt, Request, SamplingParams
from lockstep.environments import agents
from lockstep.environments.options import EnvironmentSection
from lockstep.helpers.process import ChildDied, ChildError, ChildHangs, HelperProcess
from lockstep.rollouts.episode_record import UNKNOWN
from lockstep.rollouts.episodes import EnvironmentFault
from lockstep.rollouts.ledger import LedgerCounts, TracedTurn, TurnPath, build_paths
from lockstep.rollouts.ledger_file import LEDGER, LedgerFile, LedgerLine, describe_row
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.rollouts.turns import Turn, TurnListener

SEED = "LOCKSTEP_SEED"
"""Environment variable: seed of the agent's own random choices."""

_HELPER_S = 60.0  # without a sign of life
_NO_PROXY = "127.0.0.1,localhost"


class EpisodeServer(Protocol):
    """An endpoint that answers for the policy while episodes run."""

    @property
    def base_url(self) -> str:
        """The address for clients, up to `/v1`."""
        ...

    @property
    def model(self) -> str:
        """The name that requests give the policy."""
        ...

    def open_session(self, name: str) -> str:
        """Opens a session, whose name is the key of its random numbers; returns its API key."""
        ...

    def close_session(self, name: str) -> bool:
        """Ends a session: its key is refused from now on.

        Returns:
            True if a limit of the recipe refused one of its requests.

        Raises:
            Exception: The error that ended the engine, if one did.
        """
        ...


OpenEpisodeServer = Callable[
    [SamplerSession, SamplingParams, TurnListener], AbstractContextManager[EpisodeServer]
]
"""Opens an endpoint that samples by a distribution and reports each turn before it is answered."""


@dataclass
class AgentEpisode:
    """An episode of an agent so far; `name` is that of its session."""

    number: int
    name: str
    prompt: Prompt
    turns: list[TracedTurn] = field(default_factory=list)
    answer: str = ""
    fault: str | None = None
    is_cut_off: bool = False
    paths: list[TurnPath] = field(default_factory=list)
    counts: LedgerCounts = field(default_factory=LedgerCounts)

    @property
    def truncated(self) -> bool:
        """True if a limit ended the episode or its last response."""
        last = self.turns[-1].metadata["finish_reason"] if self.turns else None
        return self.is_cut_off or last == "length"

    @property
    def version(self) -> int | None:
        """Version of the weights that answered; None without turns."""
        return self.turns[0].metadata["weight_version"] if self.turns else None


class AgentRunner:
    """Runs an agent for each episode, many at once, in one helper process.

    Args:
        section: The agent and its limits.
        open_server: Opens the endpoint.
        folder: The run's folder, for the ledger.
        note: Shows a line about failures.

    Raises:
        EnvironmentFault: The program cannot be found.
    """

    def __init__(
        self,
        section: EnvironmentSection,
        open_server: OpenEpisodeServer,
        folder: Path,
        note: Callable[[str], None],
    ) -> None:
        self._section = section
        self._open_server = open_server
        self._ledger = LedgerFile(folder / LEDGER)
        self._note = note
        if section.agent is None:
            command = shlex.split(section.command or "")
        else:
            log_code_file("environment.agent", section.agent)
            command = agents.call_function_command(section.agent)
        self._helper = HelperProcess(agents.__name__, str(section.max_concurrency), *command)
        try:
            self._helper.start()
        except ChildError as error:
            raise EnvironmentFault(str(error)) from None

    def run_episodes(
        self,
        engine: SamplerSession,
        prompts: Sequence[Prompt],
        requests: Sequence[Request],
        sampling: SamplingParams,
        group_size: int = 1,
    ) -> tuple[Batch, list[str]]:
        """Runs an episode for each request.

        Args:
            engine: Open session that samples responses.
            prompts: The prompt of each request, whose row the agent gets.
            requests: Their keys are those of the episodes' random numbers.
            sampling: The sampling distribution of each turn; `max_tokens` is per response.
            group_size: Number of requests per prompt, which are neighbors.

        Returns:
            A batch with a row per episode, its paths end to end (column `PATH`), and what the
            agents answered. `mask` is on at each drawn token once. Columns are as in
            `EpisodeRunner.run_episodes`, and the fields of `LedgerCounts`.

        Raises:
            EnvironmentFault: More episodes failed than the recipe allows.
        """
        sharing = group_size if self._section.shares_seed else 1
        episodes = [
            AgentEpisode(number, _name_session(request), prompt)
            for number, (prompt, request) in enumerate(zip(prompts, requests, strict=True))
        ]
        listener = _TurnRecorder(self._ledger, episodes)
        with self._open_server(engine, sampling, listener) as server:
            questions = list[dict[str, Any]]()
            for episode in episodes:
                row = describe_row(episode.prompt.row)
                self._ledger.append(LedgerLine(episode.name, row=row))
                key = server.open_session(episode.name)
                seed = requests[episode.number - episode.number % sharing].key
                variables = _describe_endpoint(server, key, seed)
                if self._section.command is not None:  # it may have another Python than the helper
                    variables["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
                questions.append({"number": episode.number, "row": row, "variables": variables})
            for reply in self._ask_helper(questions):
                self._take_reply(episodes[reply["number"]], reply, server)
        if failures := self._describe_failures(episodes):
            self._note(failures)
        for episode in episodes:
            episode.paths, episode.counts = build_paths(episode.turns)
        return _make_batch(episodes, sampling), [episode.answer for episode in episodes]

    def record_scores(self, requests: Sequence[Request], score_B: Tensor) -> None:
        """Writes verdicts to the ledger, before they are used."""
        lines = list[LedgerLine]()
        for request, score in zip(requests, score_B.tolist(), strict=True):
            known = score if score == score else None
            lines.append(LedgerLine(_name_session(request), score=known))
        self._ledger.append(*lines)

    def _ask_helper(self, questions: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yields a reply for each episode as it ends."""
        question = {"timeout_s": self._section.timeout_s, "episodes": questions}
        try:
            with self._helper.ask_streaming(question) as reply:
                messages = map(reply, repeat(_HELPER_S))
                replies = filter(lambda message: message != agents.ALIVE, messages)
                yield from islice(replies, len(questions))
        except (ChildDied, ChildError, ChildHangs) as error:
            raise RunError(
                f"the process that runs the agents ended ({error}); rerun the command to resume"
            ) from None

    def _take_reply(
        self, episode: AgentEpisode, reply: dict[str, Any], server: EpisodeServer
    ) -> None:
        episode.is_cut_off = server.close_session(episode.name)
        episode.answer = reply.get("answer", "")
        episode.fault = reply.get("wrong")
        if episode.is_cut_off:
            episode.fault = None
        elif episode.fault is None and not episode.turns:
            episode.fault = "made no request to OPENAI_BASE_URL with OPENAI_API_KEY"
        line = LedgerLine(episode.name, answer=episode.answer, fault=episode.fault or "")
        self._ledger.append(line)

    def _describe_failures(self, episodes: Sequence[AgentEpisode]) -> str:
        """Describes the failed episodes; empty without failures.

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
            f"{len(first.turns)}: {self._section.reference} {first.fault}"
        )
        if len(failed) > limit * len(episodes):
            raise EnvironmentFault(f"{failures}, above environment.max_no_verdict_rate={limit:g}")
        return failures


def _name_session(request: Request) -> str:
    """The name of an episode's session: the key of its random numbers."""
    return f"{request.key & (2**64 - 1):016x}"


class _TurnRecorder:
    """Writes each turn to the ledger, then adds it to its episode; called from any thread."""

    def __init__(self, ledger: LedgerFile, episodes: Iterable[AgentEpisode]) -> None:
        self._ledger = ledger
        self._episodes = {episode.name: episode for episode in episodes}
        self._lock = threading.Lock()

    def __call__(self, turn: Turn) -> None:
        traced = TracedTurn.from_turn(turn)
        with self._lock:  # so that both have the same order
            self._ledger.append(LedgerLine(turn.session, turn=traced))
            self._episodes[turn.session].turns.append(traced)


def _describe_endpoint(server: EpisodeServer, key: str, seed: int) -> dict[str, str]:
    """The environment variables of an agent, which the openai client reads."""
    known = os.environ.get("NO_PROXY", os.environ.get("no_proxy", ""))
    no_proxy = ",".join(filter(None, (known, _NO_PROXY)))
    return {
        "OPENAI_BASE_URL": server.base_url,
        "OPENAI_API_KEY": key,
        "OPENAI_MODEL": server.model,
        "NO_PROXY": no_proxy,
        "no_proxy": no_proxy,
        SEED: str(seed & (2**31 - 1)),
    }


def _make_batch(episodes: Sequence[AgentEpisode], sampling: SamplingParams) -> Batch:
    tokens, numbers, mask, logprobs, lengths = [list[Any]() for _ in range(5)]
    versions = [episode.version for episode in episodes if episode.version is not None]
    for episode in episodes:
        prompt = list(episode.prompt.tokens)
        nothing = TurnPath(prompt, [False] * len(prompt), [0.0] * len(prompt), ())
        paths = episode.paths or [nothing]
        for number, path in enumerate(paths):
            tokens += path.token_ids
            mask += path.mask
            logprobs += path.logprobs
            numbers += [number] * len(path.token_ids)
        lengths.append(sum(len(path.token_ids) for path in paths))
    sample = {
        "truncated": [episode.truncated for episode in episodes],
        "version": [episode.version or max(versions, default=0) for episode in episodes],
        "environment_reward": [UNKNOWN] * len(episodes),
        "environment_fault": [episode.fault is not None for episode in episodes],
    }
    for name in asdict(LedgerCounts()):
        sample[name] = [getattr(episode.counts, name) for episode in episodes]
    token = {"mask": mask, "sampler_logprob": logprobs, PATH: numbers}
    return Batch(
        torch.tensor(tokens),
        torch.tensor(lengths),
        {name: torch.tensor(column) for name, column in token.items()},
        {name: torch.tensor(column) for name, column in sample.items()},
        sampling,
    )
