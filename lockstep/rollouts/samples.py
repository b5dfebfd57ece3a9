"""Rollouts for the sample log: one row per response, with the algorithm's per-token values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, groupby
from typing import Any, Literal

from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.rollouts.episode_record import PART
from lockstep.rollouts.rollout import RolloutCollector, Rollouts

SampleReason = Literal[
    "most different scores", "best score", "worst score", "cut off", "no verdict", "next in order"
]

# Batch columns to log, and their names in the log.
_SHOWN = {
    "logprob": "old_logprob",
    "gap": "gap",
    "value": "old_value",
    "advantage": "advantage",
    "reward": "reward",
    "return": "return",
    "kl": "kl",
}


def sample_rows(
    rollouts: Rollouts, batch: Batch, collector: RolloutCollector, count: int
) -> list[dict[str, Any]]:
    """Returns the most informative rollouts of a step (`choose_rows`) as rows of JSON types.

    NaN scores: no verdict.

    `logged_as` in a row is the reason for choosing it; means over logged rows are not the step's
    means. Parts of a summed reward are `reward/<name>`. `token` in a row has columns over the
    response, from the first token that the policy chose: `text`, `mask` (1: trained on), `logprob`
    (of the learner before the update), `gap` (that minus the sampler's log-probability, before
    rounding), and `value`, `advantage`, `reward`, `return`, `kl` if the batch has them. Per-token
    numbers have five significant digits.

    Args:
        rollouts: The rollouts as sampled.
        batch: The same sequences with the algorithm's columns and the training mask.
        collector: The collector that sampled them.
        count: Maximum number of rows.
    """
    chosen = choose_rows(
        round_significant(rollouts.batch["score"]),
        rollouts.batch["truncated"].tolist(),
        [prompt.id for prompt in rollouts.prompts],
        count,
    )
    rows = list(chosen)
    sampled = rollouts.batch.select(rows).to("cpu")
    batch = batch.select(rows).to("cpu")
    end_B = sampled.starts + sampled.lengths
    start_B = end_B.clone()
    chosen_M = sampled.mask.nonzero().squeeze(-1)
    start_B.scatter_reduce_(0, sampled.row[chosen_M], chosen_M, "amin")
    spans = list(map(slice, start_B.tolist(), end_B.tolist()))
    columns = _token_columns(sampled, batch)
    scores = _sample_columns(sampled, batch)
    text = cache(lambda token: collector.decode([token]))  # U+FFFD for partial characters
    logged = list[dict[str, Any]]()
    for index, (row, reason) in enumerate(chosen.items()):
        prompt = rollouts.prompts[row]
        span = spans[index]
        token = {name: column[span] for name, column in columns.items()}
        logged.append(
            {
                "id": prompt.id,
                "prompt": prompt.text,
                "response": rollouts.responses[row],
                "answer": collector.prompts.answer(prompt),
                "logged_as": reason,
                **{name: column[index] for name, column in scores.items()},
                "token": {"text": list(map(text, sampled.tokens[span].tolist())), **token},
            }
        )
    return logged


def round_significant(values: Tensor) -> list[float]:
    """Rounds to five significant digits, including in print."""
    return [float(f"{value:.5g}") + 0.0 for value in values.tolist()]  # no −0


def _token_columns(sampled: Batch, batch: Batch) -> dict[str, list[Any]]:
    gap_N = (batch["old_logprob"].float() - batch["sampler_logprob"].float()) * sampled.mask
    batch = batch.with_columns({"gap": gap_N})
    present = {name: batch[source] for name, source in _SHOWN.items() if source in batch.token}
    numbers = {name: round_significant(column) for name, column in present.items()}
    return {"mask": batch.mask.int().tolist(), **numbers}


def _sample_columns(sampled: Batch, batch: Batch) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {"score": batch["score"].tolist()}
    if "shaped_score" in batch.sample:
        columns["shaped_score"] = round_significant(batch["shaped_score"])
    columns["tokens"] = sampled.per_sample(sampled.mask.long()).tolist()
    columns["truncated"] = batch["truncated"].tolist()
    for name, column in sampled.sample.items():
        if name.startswith(PART):
            columns[name] = column.tolist()
    return columns


def choose_rows(
    scores: Sequence[float], truncated: Sequence[bool], prompts: Sequence[str], count: int
) -> dict[int, SampleReason]:
    """Chooses rows by responses only, so that every parallel layout logs the same ones.

    Whole groups (responses to one prompt) are chosen, in this order: the group whose scores differ
    most, which contributes most to the update, or, if no group has differing scores, the groups
    with the best and the worst score; one with a truncated response, and one with a response
    without a verdict, unless an earlier group has them; then groups in the order of the step. If a
    group does not fit, its best, worst, truncated and unjudged responses come first.

    Args:
        scores: Score of each row; NaN: no verdict. Round them first, so that noise in the last bits
            has no effect.
        truncated: True for truncated responses.
        prompts: Name of each row's prompt; rows of one prompt are neighbors.
        count: Maximum number of rows.

    Returns:
        Rows in order, each with the reason for choosing its group.
    """
    groups = [list(rows) for _, rows in groupby(range(len(prompts)), key=prompts.__getitem__)]
    known = {row: score for row, score in enumerate(scores) if math.isfinite(score)}
    cut = {row for row, is_cut in enumerate(truncated) if is_cut}
    chosen: dict[int, SampleReason] = {}
    for group, reason in _rank_groups(groups, known, cut):
        for row in _rank_rows(group, known, cut)[: count - len(chosen)]:
            chosen.setdefault(row, reason)
    return dict(sorted(chosen.items()))


def _rank_groups(
    groups: Sequence[list[int]], known: Mapping[int, float], cut: set[int]
) -> Iterator[tuple[list[int], SampleReason]]:
    """Yields groups with the reason, most informative first; a group can repeat."""
    shown: list[int] = []
    for group, reason in _find_extremes(groups, known):
        shown += group
        yield group, reason
    unjudged = set(chain.from_iterable(groups)) - known.keys()
    special: tuple[tuple[set[int], SampleReason], ...] = (
        (cut, "cut off"),
        (unjudged, "no verdict"),
    )
    for wanted, reason in special:
        if wanted and wanted.isdisjoint(shown):
            group = next(group for group in groups if not wanted.isdisjoint(group))
            shown += group
            yield group, reason
    for group in groups:
        yield group, "next in order"


def _find_extremes(
    groups: Sequence[list[int]], known: Mapping[int, float]
) -> Iterator[tuple[list[int], SampleReason]]:
    """Yields the group whose scores differ most, else the groups with best and worst score."""
    if not known:
        return

    def score_spread(group: list[int]) -> float:
        own = [known[row] for row in group if row in known]
        return max(own, default=0.0) - min(own, default=0.0)

    widest = max(groups, key=score_spread)
    best = max(known, key=known.__getitem__)
    worst = min(known, key=known.__getitem__)
    if score_spread(widest) > 0:
        yield widest, "most different scores"
    elif known[best] > known[worst]:
        yield next(group for group in groups if best in group), "best score"
        yield next(group for group in groups if worst in group), "worst score"


def _rank_rows(group: list[int], known: Mapping[int, float], cut: set[int]) -> list[int]:
    """Returns the rows of a group: best, worst, first truncated, first unjudged, then the rest."""
    judged = [row for row in group if row in known]
    if judged:
        ends = [max(judged, key=known.__getitem__), min(judged, key=known.__getitem__)]
    else:
        ends = []
    truncated = [row for row in group if row in cut]
    unjudged = [row for row in group if row not in known]
    return list(dict.fromkeys([*ends, *truncated[:1], *unjudged[:1], *group]))
