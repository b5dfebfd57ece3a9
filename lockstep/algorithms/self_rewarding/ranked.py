"""Ranked answers: their scores, and the pair of each prompt that is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lockstep.algorithms.self_rewarding.scoring import Scored
from lockstep.batch import Batch
from lockstep.judge.judge import Judged, disagreement
from lockstep.objectives.pairing import AnswerPair, Candidate, choose
from lockstep.rollouts.rollout import Rollouts


@dataclass(frozen=True)
class RankedAnswers:
    """Scored answers, and the chosen pair of each prompt.

    Attributes:
        rollouts: All answers, those to one prompt next to each other.
        scored: Their scores, and the scorers.
        pairs: One for each prompt.
    """

    rollouts: Rollouts
    scored: Scored
    pairs: Sequence[AnswerPair]

    @property
    def judged(self) -> Sequence[Judged[float]]:
        """Judgements of each answer."""
        return self.scored.judged

    @property
    def group(self) -> int:
        """Number of answers to each prompt."""
        return len(self.judged) // len(self.pairs)

    @property
    def usable(self) -> int:
        """Number of pairs to learn from."""
        return sum(pair.status == "ok" for pair in self.pairs)

    def batch(self) -> Batch:
        """The chosen and the rejected answer of each pair to learn from, next to each other, with their scores.

        The policy itself is trained, at temperature 1 over all tokens, not the distribution that was sampled from.
        """
        rows = [
            prompt * self.group + place
            for prompt, pair in enumerate(self.pairs)
            if pair.status == "ok" and pair.chosen is not None and pair.rejected is not None
            for place in (pair.chosen, pair.rejected)
        ]
        batch = self.rollouts.batch.select(rows)
        return Batch(batch.tokens, batch.lengths, {"mask": batch.mask}, {"score": batch["score"]}, group_size=2)

    def sample_rows(self, count: int) -> list[dict[str, Any]]:
        """The first prompts with their chosen pair, as rows of JSON types."""
        return [_sample_row(self, prompt, pair) for prompt, pair in enumerate(self.pairs[:count])]


def choose_pairs(rollouts: Rollouts, found: Scored, length_control: float, group: int) -> RankedAnswers:
    """Chooses pairs from answers, `group` to each prompt, with length control ρ; see `objectives.pairing`."""
    sequences = zip(rollouts.batch.sequences(), rollouts.batch.sequences("mask"), strict=True)
    tokens = [tuple(sequence[mask].tolist()) for sequence, mask in sequences]
    cut = rollouts.batch["truncated"].tolist()
    answers = [
        Candidate(own, not unfinished, score, disagreement(one))
        for own, unfinished, score, one in zip(tokens, cut, found.scores, found.judged, strict=True)
    ]
    pairs = [choose(answers[start : start + group], length_control) for start in range(0, len(answers), group)]
    score_B = torch.tensor([float("nan") if answer.score is None else answer.score for answer in answers])
    batch = rollouts.batch.with_columns(sample={"score": score_B})
    return RankedAnswers(Rollouts(batch, rollouts.prompts, rollouts.responses), found, pairs)


def _sample_row(own: RankedAnswers, prompt: int, pair: AnswerPair) -> dict[str, Any]:
    first = prompt * own.group
    scores = own.scored.scores[first : first + own.group]
    asked = own.rollouts.prompts[first]
    row = {"id": asked.id, "prompt": asked.text, "status": pair.status, "scores": list(scores)}
    row |= {"scored_by": own.scored.scorer(first)}
    for name, place in (("chosen", pair.chosen), ("rejected", pair.rejected)):
        if place is not None:
            replies = [one.answer.text for one in own.judged[first + place].judgements if one.answer is not None]
            row |= {name: own.rollouts.responses[first + place], f"{name}_score": scores[place]}
            row |= {f"{name}_judgements": replies}
    return row
