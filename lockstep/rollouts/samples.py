"""Rollouts for the sample log: one row per response, with what the algorithm computed for each of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lockstep.batch import Batch
from lockstep.rollouts.episodes import PART
from lockstep.rollouts.rollout import RolloutCollector, Rollouts
from lockstep.rollouts.sample_choice import choose_rows

# Columns of the batch that are logged, and their names there.
_SHOWN = {
    "logprob": "old_logprob",
    "gap": "gap",
    "value": "old_value",
    "advantage": "advantage",
    "reward": "reward",
    "return": "return",
    "kl": "kl",
}
_POWERS = np.array([float(f"1e{power}") for power in range(23)])  # exact as floats


def sample_rows(rollouts: Rollouts, batch: Batch, collector: RolloutCollector, count: int) -> list[dict[str, Any]]:
    """Returns the most informative rollouts of a step (`choose_rows`) as rows of JSON types. NaN scores: no verdict.

    `logged_as` in a row is the reason for which it was chosen, so means over logged rows are not those of the step.
    Parts of a summed reward are `reward/<name>`.
    `token` in a row has columns over the response, from the first token that the policy chose: `text`, `mask` (1:
    trained on), `logprob` (of the learner before the update), `gap` (that minus the sampler's log-probability, before
    rounding), and `value`, `advantage`, `reward`, `return`, `kl` if the batch has them. Per-token numbers have five
    significant digits.

    Args:
        rollouts: The rollouts as sampled.
        batch: The same sequences with the algorithm's columns, and with the mask of training.
        collector: The collector that sampled them.
        count: Number of rows, or fewer if there are fewer.
    """
    chosen = choose_rows(
        round_significant(rollouts.batch["score"].cpu().numpy()),
        rollouts.batch["truncated"].cpu().numpy(),
        [prompt.id for prompt in rollouts.prompts],
        count,
    )
    rows = list(chosen)
    sampled, batch = rollouts.batch.select(rows).to("cpu"), batch.select(rows).to("cpu")
    spans = [slice(int(start), int(start + length)) for start, length in zip(*_responses(sampled), strict=True)]
    texts = _texts([sampled.tokens[span].tolist() for span in spans], collector.decode)
    columns, scores = _token_columns(sampled, batch), _sample_columns(sampled, batch)
    return [
        {
            "id": rollouts.prompts[row].id,
            "prompt": rollouts.prompts[row].text,
            "response": rollouts.responses[row],
            "answer": collector.prompts.answer(rollouts.prompts[row]),
            "logged_as": reason,
            **{name: column[place] for name, column in scores.items()},
            "token": {"text": texts[place], **{name: column[spans[place]] for name, column in columns.items()}},
        }
        for place, (row, reason) in enumerate(chosen.items())
    ]


def round_significant(values: NDArray[Any], digits: int = 5) -> NDArray[np.float64]:
    """Rounds to a number of significant digits, also in print; at most 22 digits after the point."""
    exact = values.astype(np.float64)
    magnitude = np.abs(np.where(np.isfinite(exact) & (exact != 0), exact, 1.0))
    scale = _POWERS[np.clip(digits - 1 - np.floor(np.log10(magnitude)), 0, 22).astype(np.int64)]
    return np.rint(exact * scale) / scale + 0.0  # no −0


def _responses(sampled: Batch) -> tuple[Tensor, Tensor]:
    """Start of each response in the flat tokens, and its length, [B] each."""
    end_B = sampled.starts + sampled.lengths
    first_B = end_B.clone()
    chosen_M = sampled.mask.nonzero().squeeze(-1)
    first_B.scatter_reduce_(0, sampled.row[chosen_M], chosen_M, "amin")
    return first_B, end_B - first_B


def _token_columns(sampled: Batch, batch: Batch) -> dict[str, list[Any]]:
    gap_N = (batch["old_logprob"].float() - batch["sampler_logprob"].float()) * sampled.mask
    batch = batch.with_columns({"gap": gap_N})
    present = {name: batch[source] for name, source in _SHOWN.items() if source in batch.token}
    numbers = {name: round_significant(column.float().numpy()).tolist() for name, column in present.items()}
    return {"mask": batch.mask.int().tolist(), **numbers}


def _sample_columns(sampled: Batch, batch: Batch) -> dict[str, list[Any]]:
    shaped = (
        {"shaped_score": round_significant(batch["shaped_score"].numpy()).tolist()}
        if "shaped_score" in batch.sample
        else {}
    )
    return {
        "score": batch["score"].tolist(),
        **shaped,
        "tokens": sampled.per_sample(sampled.mask.long()).tolist(),
        "truncated": batch["truncated"].tolist(),
        **({"tampering": sampled["tampering"].tolist()} if "tampering" in sampled.sample else {}),
        **{name: column.tolist() for name, column in sampled.sample.items() if name.startswith(PART)},
    }


def _texts(responses: Sequence[Sequence[int]], decode: Callable[[Sequence[int]], str]) -> list[list[str]]:
    """The text that each token adds to its response; a token with only part of a character becomes U+FFFD."""
    text = cache(lambda token: decode([token]))
    return [[text(token) for token in response] for response in responses]
