"""The ledger of a run on disk: all that came from outside, written before it is used.

One line of JSON for each beginning of an episode, turn, answer and verdict, in the order of their
arrival. An episode that began anew, as in a resumed run, counts from its last beginning.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict

from lockstep.core.errors import InputError
from lockstep.rollouts.ledger import TracedTurn
from lockstep.system.records import check_shape, refuse_other
from lockstep.system.whole_files import append_lines, write_whole

LEDGER = "ledger.jsonl"
"""The ledger in a run's folder."""

_CURE = "restore the file, or leave it out"


@dataclass(frozen=True)
class LedgerLine:
    """A line of the ledger; what it does not tell is None.

    Attributes:
        episode: Name of the episode, which is also its session.
        row: Data row of an episode that begins.
        turn: A turn.
        answer: What the program answered.
        fault: Why the episode has no verdict; empty: it has one.
        score: Verdict on the answer; None: no verdict.
    """

    episode: str
    row: dict[str, Any] | None = None
    turn: TracedTurn | None = None
    answer: str | None = None
    fault: str | None = None
    score: float | None = None

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")


@dataclass
class RecordedEpisode:
    """An episode as the ledger has it.

    Attributes:
        row: Its data row.
        turns: Its turns, in the order in which they arrived.
        answer: What the program answered; None: it has not ended.
        fault: Why it has no verdict; empty: it has one.
        score: Verdict on the answer; None: no verdict.
    """

    row: dict[str, Any]
    turns: list[TracedTurn] = field(default_factory=list)
    answer: str | None = None
    fault: str = ""
    score: float | None = None


class LedgerFile:
    """Appends to a ledger, from any thread.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def append(self, *lines: LedgerLine) -> None:
        """Appends lines; after it returns, a kill of the process loses none of them.

        Raises:
            RunError: The disk is full.
        """
        texts = list[str]()
        for line in lines:
            told = {name: value for name, value in asdict(line).items() if value is not None}
            texts.append(json.dumps(told, separators=(",", ":")) + "\n")
        with self._lock:
            append_lines(self._path, "".join(texts).encode())


def read_ledger(path: Path) -> dict[str, RecordedEpisode]:
    """Reads the episodes of a ledger, by name, each from its last beginning.

    An incomplete last line, as a full disk or a loss of power leaves it, is ignored.

    Raises:
        InputError: The file is not a ledger.
    """
    refuse_other(path)
    episodes = dict[str, RecordedEpisode]()
    lines = path.read_bytes().split(b"\n")[:-1]
    for number, text in enumerate(lines, 1):
        line = check_shape(text, LedgerLine, f"{path}, line {number}, is not a ledger's", _CURE)
        if line.row is not None:
            episodes.pop(line.episode, None)
            episodes[line.episode] = RecordedEpisode(line.row)
        elif line.episode not in episodes:
            raise InputError(f"{path}, line {number}: episode {line.episode} never began; {_CURE}")
        else:
            _add_line(episodes[line.episode], line)
    return episodes


def _add_line(episode: RecordedEpisode, line: LedgerLine) -> None:
    if line.turn is not None:
        episode.turns.append(line.turn)
    if line.answer is not None:
        episode.answer = line.answer
        episode.fault = line.fault or ""
    if line.score is not None:
        episode.score = line.score


@dataclass(frozen=True)
class _Trace:
    schema_version: Literal[1]
    turns: list[TracedTurn]

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")


def write_trace(path: Path, turns: Sequence[TracedTurn]) -> int:
    """Writes turns as a `TrainingTrace` of OpenEnv, schema version 1.

    Returns:
        Number of turns that were left out because they cannot be trained on.
    """
    kept = [turn for turn in turns if turn.fault is None]
    trace = {"schema_version": 1, "turns": [asdict(turn) for turn in kept]}
    write_whole(path, [json.dumps(trace).encode(), b"\n"])
    return len(turns) - len(kept)


def read_trace(path: Path) -> list[TracedTurn]:
    """Reads a `TrainingTrace`, strictly.

    Raises:
        InputError: It has another schema, two turns with one id, or a turn whose tokens,
            log-probabilities and mask do not match.
    """
    refuse_other(path)
    refusal = f"{path} is not a TrainingTrace of schema version 1"
    trace = check_shape(path.read_bytes(), _Trace, refusal, _CURE)
    known = set[str]()
    for turn in trace.turns:
        if turn.node_id in known:
            raise InputError(f"{path}: two turns have the id {turn.node_id!r}; {_CURE}")
        known.add(turn.node_id)
        why = turn.fault or _find_bad_value(turn)
        if why is not None:
            raise InputError(f"{path}: turn {turn.node_id!r}: {why}; {_CURE}")
    return trace.turns


def _find_bad_value(turn: TracedTurn) -> str | None:
    if not set(turn.loss_mask) <= {0, 1}:
        return "loss_mask must be 0 or 1"
    if min(turn.tokens) < 0:
        return "a token id is negative"
    return None


def describe_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A data row as JSON types."""
    return json.loads(json.dumps(dict(row), default=str))
