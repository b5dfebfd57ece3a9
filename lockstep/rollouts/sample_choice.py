"""Chooses the few responses of a step that go into the sample log: those that a reader would look for first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Reason = Literal["most different scores", "best score", "worst score", "cut off", "no verdict", "next in order"]


@dataclass(frozen=True)
class _Step:
    """The responses of a step.

    Attributes:
        score: Scores; NaN: no verdict.
        truncated: True where a response was cut off.
        group: The number of each row's group: neighbors that answer one prompt.
    """

    score: NDArray[np.float64]
    truncated: NDArray[np.bool_]
    group: NDArray[np.int64]

    @property
    def has_verdict(self) -> NDArray[np.bool_]:
        """True where there is a verdict."""
        return np.isfinite(self.score)

    @property
    def spread(self) -> NDArray[np.float64]:
        """Distance between the best and the worst score of each group; 0 where it has none."""
        highest = np.full(self.group[-1] + 1, -np.inf)
        lowest = -highest
        np.maximum.at(highest, self.group[self.has_verdict], self.score[self.has_verdict])
        np.minimum.at(lowest, self.group[self.has_verdict], self.score[self.has_verdict])
        return np.where(highest >= lowest, highest - np.where(np.isinf(lowest), 0.0, lowest), 0.0)

    def find(self, wanted: NDArray[np.bool_]) -> list[int]:
        """Returns the groups that contain one of the rows where `wanted` is True, ascending."""
        return np.unique(self.group[wanted]).tolist()


def choose_rows(
    score: NDArray[np.float64], truncated: NDArray[np.bool_], prompts: Sequence[str], count: int
) -> dict[int, Reason]:
    """Chooses rows from the responses alone, so that every parallel layout of a run logs the same ones.

    Whole groups (responses to one prompt) are chosen, in this order: the group whose scores differ most, which is what
    the update learns from, or, if scores differ in no group, those with the best and the worst score; one with a
    truncated response, and one with a response without a verdict, unless a group before has them; then groups from the
    first of the step on. If a group does not fit, its best, worst, truncated and unjudged responses come first.

    Args:
        score: A score for each row; NaN: no verdict. Round them first, so that noise in the last bits decides nothing.
        truncated: True where a response was cut off.
        prompts: The name of each row's prompt.
        count: Number of rows, or fewer if there are fewer.

    Returns:
        Rows in their order, each with the reason for which its group was chosen.
    """
    changes = [own != before for own, before in itertools.pairwise(prompts)]
    step = _Step(score, truncated, np.cumsum([0, *changes], dtype=np.int64)[: len(prompts)])
    chosen: dict[int, Reason] = {}
    for number, reason in _rank_groups(step) if prompts else ():
        rows = _rank_rows(step, np.flatnonzero(step.group == number).tolist())
        for row in rows[: count - len(chosen)]:
            chosen.setdefault(row, reason)
        if len(chosen) >= count:
            break
    return dict(sorted(chosen.items()))


def _rank_groups(step: _Step) -> Iterator[tuple[int, Reason]]:
    """Yields groups, the most informative first, with the reason; a group can come again."""
    shown: list[int] = []
    for number, reason in _find_extremes(step):
        shown.append(number)
        yield number, reason
    telling: tuple[tuple[NDArray[np.bool_], Reason], ...] = (
        (step.truncated, "cut off"),
        (~step.has_verdict, "no verdict"),
    )
    for wanted, reason in telling:
        found = step.find(wanted)
        if found and not set(found) & set(shown):
            shown.append(found[0])
            yield found[0], reason
    for number in range(int(step.group[-1]) + 1):
        yield number, "next in order"


def _find_extremes(step: _Step) -> Iterator[tuple[int, Reason]]:
    """Yields the group whose scores differ most, or those with the best and the worst score, as far as any differ."""
    spread, known = step.spread, step.score[step.has_verdict]
    if spread.max() > 0:
        yield int(spread.argmax()), "most different scores"
    elif known.size and known.max() > known.min():
        yield step.find(step.score == known.max())[0], "best score"
        yield step.find(step.score == known.min())[0], "worst score"


def _rank_rows(step: _Step, rows: list[int]) -> list[int]:
    """Returns the rows of a group: best, worst, first truncated, first unjudged, then the rest."""
    has_verdict = step.has_verdict
    judged = [row for row in rows if has_verdict[row]]
    ends = [max(judged, key=step.score.__getitem__), min(judged, key=step.score.__getitem__)] if judged else []
    cut = [row for row in rows if step.truncated[row]]
    unjudged = [row for row in rows if not has_verdict[row]]
    return list(dict.fromkeys([*ends, *cut[:1], *unjudged[:1], *rows]))
