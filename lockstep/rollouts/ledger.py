"""The ledger: the turns of a session as a graph by exact token prefix, and its paths.

A turn whose prompt begins with an earlier turn's prompt and completion continues that turn. A
conversation whose history was rewritten, as by a chat template that drops earlier thoughts, forks:
it becomes a path of its own. Nothing is rendered or tokenized again, so a path holds exactly the
tokens that the policy read and drew.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import ConfigDict

from lockstep.rollouts.turns import Turn

MISSING_LOGPROB = -9999.0
"""A log-probability at or below this is missing evidence, as in vLLM's dialect."""


@dataclass(frozen=True)
class TracedTurn:
    """One call of a model, in the form of OpenEnv's `TrainingTrace` (schema version 1).

    Attributes:
        node_id: Id of the call; unique in its trace.
        prompt_token_ids: What the policy read.
        completion_token_ids: What it drew.
        per_token_logps: Log-probability of each drawn token, nats.
        loss_mask: 1 for each token of prompt and completion that is trained on, else 0.
        request: Body of the request.
        response: Body of the answer.
        metadata: `session`, `finish_reason` and `weight_version` of the call, and what others add.
    """

    node_id: str
    prompt_token_ids: list[int]
    completion_token_ids: list[int]
    per_token_logps: list[float]
    loss_mask: list[int]
    request: dict[str, Any] = field(default_factory=dict)
    response: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    @classmethod
    def from_turn(cls, turn: Turn) -> TracedTurn:
        """A turn of the endpoint; all that the policy drew is trained on."""
        return cls(
            turn.request_id,
            list(turn.prompt_token_ids),
            list(turn.token_ids),
            list(turn.logprobs),
            [0] * len(turn.prompt_token_ids) + [1] * len(turn.token_ids),
            dict(turn.request),
            dict(turn.response),
            {
                "session": turn.session,
                "finish_reason": turn.finish_reason,
                "weight_version": turn.weight_version,
            },
        )

    @property
    def tokens(self) -> list[int]:
        """Prompt and completion."""
        return self.prompt_token_ids + self.completion_token_ids

    @property
    def fault(self) -> str | None:
        """The reason for not training on the turn; None: it can be trained on."""
        drawn = len(self.completion_token_ids)
        read = len(self.prompt_token_ids)
        if not drawn or not read:
            return "it has no prompt or no completion"
        if len(self.per_token_logps) != drawn:
            return f"it has {drawn} tokens and {len(self.per_token_logps)} log-probabilities"
        if len(self.loss_mask) != read + drawn or any(self.loss_mask[:read]):
            return "its loss_mask does not cover prompt and completion, or trains on the prompt"
        if not all(MISSING_LOGPROB < own < math.inf for own in self.per_token_logps):
            return "a log-probability is missing"
        return None


@dataclass(frozen=True)
class TurnPath:
    """One path of a session's graph, a sequence to train on.

    Attributes:
        token_ids: Its tokens.
        mask: True for tokens that are trained on in this path.
        logprobs: The sampler's log-probability of tokens that are trained on, else 0.
        turns: Numbers of its turns.
    """

    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    turns: tuple[int, ...]


@dataclass(frozen=True)
class LedgerCounts:
    """Counts of a session's turns.

    Attributes:
        turns: Number of turns.
        paths: Number of paths.
        forks: Number of turns that rewrote an earlier turn's history, or branched from it.
        roots: Number of conversations.
        dropped: Number of turns that the agent discarded and asked again.
        untrainable: Number of turns whose log-probabilities do not match their tokens.
        retokenized: Number of trained tokens that differ from the drawn ones; 0 by construction.
    """

    turns: int = 0
    paths: int = 0
    forks: int = 0
    roots: int = 0
    dropped: int = 0
    untrainable: int = 0
    retokenized: int = 0


class TurnGraph:
    """The graph of a session's turns, in the order in which they arrived.

    Args:
        turns: The turns.

    Attributes:
        parents: The turn that each turn continues; None: it begins with another history.
        dropped: Turns that were asked again and never continued, while the repetition was.
    """

    def __init__(self, turns: Sequence[TracedTurn]) -> None:
        self._turns = turns
        # as bytes, whose beginnings are compared at the speed of memory
        self._prompts = [array("q", turn.prompt_token_ids).tobytes() for turn in turns]
        self._wholes = [array("q", turn.tokens).tobytes() for turn in turns]
        self.parents = [self._find_parent(number) for number in range(len(turns))]
        self.dropped = self._find_dropped()

    def _find_parent(self, number: int) -> int | None:
        """The turn whose prompt and completion are the longest beginning of this one's prompt.

        It may have arrived later, since an agent can ask several questions at once.
        """
        best: int | None = None
        for other, whole in enumerate(self._wholes):
            longer = best is None or len(whole) > len(self._wholes[best])
            has_drawn = len(whole) > len(self._prompts[other])
            if longer and has_drawn and self._prompts[number].startswith(whole):
                best = other
        return best

    def _find_dropped(self) -> set[int]:
        continued = set(self.parents)
        asked: dict[bytes, list[int]] = {}
        for number, prompt in enumerate(self._prompts):
            asked.setdefault(prompt, []).append(number)
        dropped = set[int]()
        for same in asked.values():
            if not continued.isdisjoint(same):
                dropped |= set(same) - continued
        return dropped

    def list_paths(self) -> list[tuple[int, ...]]:
        """The turns of each path, from its first turn to its last, in order of the last ones."""
        continued = set(self.parents)
        paths: list[tuple[int, ...]] = []
        for last in range(len(self._turns)):
            if last not in continued and last not in self.dropped:
                paths.append(self._follow_back(last))
        return paths

    def count_forks(self) -> tuple[int, int]:
        """Number of forks, and of conversations."""
        forks = 0
        openings: list[tuple[Any, ...]] = []
        branched = set[int]()
        for number, parent in enumerate(self.parents):
            if number in self.dropped:
                continue
            if parent is not None:
                forks += parent in branched
                branched.add(parent)
                continue
            opening = _find_opening(self._turns[number])
            if any(opening[: len(known)] == known for known in openings):
                forks += 1
            else:
                openings.append(opening)
        return forks, len(openings)

    def _follow_back(self, last: int) -> tuple[int, ...]:
        path = [last]
        while (parent := self.parents[path[-1]]) is not None:
            path.append(parent)
        return tuple(reversed(path))


def build_paths(turns: Sequence[TracedTurn]) -> tuple[list[TurnPath], LedgerCounts]:
    """Builds a session's paths; each token that the policy drew is trained on in only one of them.

    A turn that several paths share is trained on in the first of them, and context in the others.

    Args:
        turns: The turns of one session, in the order in which they arrived.

    Returns:
        The paths, and counts. Turns that were dropped are in no path; an untrainable one is
        context.
    """
    graph = TurnGraph(turns)
    paths = list[TurnPath]()
    trained = {number for number, turn in enumerate(turns) if turn.fault is not None}
    for numbers in graph.list_paths():
        paths.append(_build_path(turns, numbers, trained))
        trained |= set(numbers)
    forks, roots = graph.count_forks()
    untrainable = sum(turn.fault is not None for turn in turns)
    retokenized = sum(_count_changed(turns, path) for path in paths)
    counts = LedgerCounts(
        len(turns), len(paths), forks, roots, len(graph.dropped), untrainable, retokenized
    )
    return paths, counts


def _build_path(
    turns: Sequence[TracedTurn], numbers: tuple[int, ...], trained: set[int]
) -> TurnPath:
    tokens = turns[numbers[-1]].tokens
    mask = [False] * len(tokens)
    logprobs = [0.0] * len(tokens)
    for number in numbers:
        if number in trained:
            continue
        turn = turns[number]
        begin = len(turn.prompt_token_ids)
        for index, logprob in enumerate(turn.per_token_logps, begin):
            if turn.loss_mask[index]:
                mask[index] = True
                logprobs[index] = logprob
    return TurnPath(tokens, mask, logprobs, numbers)


def _count_changed(turns: Sequence[TracedTurn], path: TurnPath) -> int:
    """Number of tokens of a path's turns that are not where they were drawn."""
    changed = 0
    for number in path.turns:
        whole = turns[number].tokens
        changed += sum(a != b for a, b in zip(whole, path.token_ids, strict=False))
    return changed


def _find_opening(turn: TracedTurn) -> tuple[Any, ...]:
    """The beginning of a conversation: its messages before the first answer, or its prompt."""
    messages = turn.request.get("messages")
    if not isinstance(messages, list):
        return tuple(turn.prompt_token_ids)
    opening: list[Any] = []
    for message in messages:
        if isinstance(message, Mapping) and message.get("role") == "assistant":
            break
        opening.append(message)
    return tuple(opening)
