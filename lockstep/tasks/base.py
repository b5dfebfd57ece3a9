"""The common part of toy tasks: their class, the files that they write, and random numbers. Imports no torch.

A task is one file, beside this one or anywhere (docs/guides/data.md). Its options are read from it wherever a recipe
names it, so it imports no torch at its top either.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt

from lockstep.config import Probability, Task, TaskFiles
from lockstep.config.section import rule
from lockstep.whole_files import write_changed

__all__ = [
    "Draws",
    "JudgingTask",
    "Task",
    "TaskFiles",
    "join_words",
    "permute",
    "sample_uniforms",
    "write_rows",
]


class JudgingTask(Task):
    """A task whose demonstrations are answers, judgements of answers, and comparisons of two judgements."""

    demonstrations: NonNegativeInt
    judge_share: Probability
    compare_share: Probability

    @property
    def idle_options(self) -> dict[str, str]:
        shares = ("judge_share", "compare_share")
        return {} if self.demonstrations else dict.fromkeys(shares, "where demonstrations is 0")

    @rule
    def _shares_leave_room(self) -> None:
        if self.judge_share + self.compare_share > 1:
            raise ValueError("judge_share and compare_share are shares of the same rows; together they are above 1")


class Draws:
    """Uniform numbers of a row, one after the other."""

    def __init__(self, numbers: Sequence[float]) -> None:
        self._numbers = iter(numbers)

    def chance(self, probability: float) -> bool:
        return self.share() < probability

    def pick(self, options: Sequence[str]) -> str:
        return options[int(self.share() * len(options))]

    def take(self, options: list[str]) -> str:
        """Removes a random option from the list and returns it."""
        return options.pop(int(self.share() * len(options)))

    def between(self, low: int, high: int) -> int:
        return low + int(self.share() * (high - low + 1))

    def share(self) -> float:
        return next(self._numbers)


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes JSONL aside and renames it into place, so that no one ever reads half a file.

    A file that already holds these rows is left alone, so that its readers are not disturbed.
    """
    write_changed(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def sample_uniforms(rows: Iterable[int], count: int, *key: int | str) -> list[list[float]]:
    """`count` uniform numbers in (0, 1) for each row, which depend on the key and the row's number alone."""
    import torch

    from lockstep import keyed

    keys = torch.tensor([keyed.key(*key, row) for row in rows])
    return keyed.uniforms(keys, torch.arange(count)).tolist()


def permute(length: int, *key: int | str) -> list[int]:
    """A random order of `range(length)` that depends on the key alone."""
    from lockstep import keyed

    return keyed.permutation(length, *key).tolist()


def join_words(words: Iterable[str]) -> str:
    """Joins words with a space in front of each, so that a word is the same token at any place."""
    return "".join(f" {word}" for word in words)
