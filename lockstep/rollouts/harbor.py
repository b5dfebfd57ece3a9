"""Trials of Harbor as episodes: the tokens, verdict and failure in a trial's result folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lockstep.core.errors import InputError
from lockstep.rollouts.ledger import TracedTurn
from lockstep.rollouts.ledger_file import RecordedEpisode
from lockstep.system.records import read_record

_MAIN = "reward"
_CURE = "run the trial again, or leave it out"


@dataclass(frozen=True)
class _History:
    """A conversation, with an entry for each turn."""

    prompt_token_ids: list[list[int]] = field(default_factory=list[list[int]])
    completion_token_ids: list[list[int]] = field(default_factory=list[list[int]])
    logprobs: list[list[float]] = field(default_factory=list[list[float]])


@dataclass(frozen=True)
class _AgentResult:
    rollout_details: list[_History] | None = None


@dataclass(frozen=True)
class _VerifierResult:
    rewards: dict[str, float] | None = None


@dataclass(frozen=True)
class _TrialFailure:
    exception_type: str
    exception_message: str


@dataclass(frozen=True)
class _TrialResult:
    trial_name: str
    task_name: str
    schema_version: Literal[1] = 1
    agent_result: _AgentResult | None = None
    verifier_result: _VerifierResult | None = None
    exception_info: _TrialFailure | None = None


def read_harbor_trial(folder: Path) -> RecordedEpisode:
    """Reads `result.json` of a trial whose agent recorded `rollout_details`.

    An exception of the trial, or a missing reward, means no verdict, not a reward of 0.

    Raises:
        InputError: The file has another form, no tokens, or several rewards without one that is
            called `reward`.
    """
    file = folder / "result.json"
    trial = read_record(file, _TrialResult, _CURE)
    histories = (trial.agent_result and trial.agent_result.rollout_details) or []
    turns = [turn for place, one in enumerate(histories) for turn in _list_turns(file, place, one)]
    episode = RecordedEpisode({"task_name": trial.task_name}, turns, answer="")
    rewards = (trial.verifier_result and trial.verifier_result.rewards) or {}
    if trial.exception_info is not None:
        failure = trial.exception_info
        episode.fault = f"{failure.exception_type}: {failure.exception_message}"
    elif not turns:
        raise InputError(
            f"{file} has no rollout_details; set collect_rollout_details: true for the agent"
        )
    elif not rewards:
        episode.fault = "the verifier gave no reward"
    elif len(rewards) > 1 and rewards.get(_MAIN) is None:
        raise InputError(f"{file} has the rewards {', '.join(rewards)}, but none called reward")
    else:
        episode.score = rewards.get(_MAIN, next(iter(rewards.values())))
    return episode


def _list_turns(file: Path, place: int, history: _History) -> list[TracedTurn]:
    columns = history.prompt_token_ids, history.completion_token_ids, history.logprobs
    if len(set(map(len, columns))) != 1:
        raise InputError(
            f"{file}: rollout_details.{place} has columns of different lengths; {_CURE}"
        )
    turns = list[TracedTurn]()
    for number, (prompt, drawn, logprobs) in enumerate(zip(*columns, strict=True)):
        mask = [0] * len(prompt) + [1] * len(drawn)
        turns.append(TracedTurn(f"{place}-{number}", prompt, drawn, logprobs, mask))
    return turns
