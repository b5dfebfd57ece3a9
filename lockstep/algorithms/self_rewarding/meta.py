"""Meta-Rewarding (Wu et al. 2024): judges judgments and trains on the better ones.

The answers whose verdicts differ most are used. Every two judgments of an answer battle in both
orders, without their final scores, and the strongest and the weakest form a training pair.
Everything happens within a step, so there is no queue. Pairs are trained on only while the
iteration's comparisons show skill (`MetaJudgeSkill`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, permutations
from pathlib import Path
from typing import Any

import torch

from lockstep.algorithms.self_rewarding.answers import RankedAnswers
from lockstep.core.batch import Batch
from lockstep.core.metrics import LastValue, Mean, Metrics, Sum
from lockstep.core.types import Prompt
from lockstep.data.answers import build_batch
from lockstep.judge.asking import ModelAnswer
from lockstep.judge.build import meta_case
from lockstep.judge.judge import CaseJudgments, JudgeCase, LLMJudge, judge_metrics, score_variance
from lockstep.judge.options import MetaJudgeSection
from lockstep.judge.verdicts import PairWinner
from lockstep.objectives.battles import (
    BattleResults,
    BattleWinner,
    bradley_terry,
    consistent_wins,
    position_weighted_wins,
)
from lockstep.objectives.order_consistency import ComparisonCounts, count_comparisons
from lockstep.objectives.pairing import balance_classes

_SPARE = 2
"""Number of answers to compare per wanted pair, since not every answer gives a pair."""
_EQUAL = 1e-9
_ELO = 400 / math.log(10)
_WINS = {"order_consistency": consistent_wins, "position": position_weighted_wins}


@dataclass(frozen=True)
class MetaJudging:
    """The meta-judge and its rules for comparing judgments.

    Attributes:
        judge: Decides which of two judgments is better.
        section: The meta-judge's options.
        reasons: Strips the score from a judgment.
        max_class_share: Maximum share of a step's pairs that prefer judgments of the same score.
    """

    judge: LLMJudge[PairWinner]
    section: MetaJudgeSection
    reasons: Callable[[str], str]
    max_class_share: float


@dataclass(frozen=True)
class ScoredJudgment:
    """A finished judgment with a score.

    Attributes:
        score: The score.
        reasons: The text without the score.
        answer: The full judgment, with its tokens.
    """

    score: float
    reasons: str
    answer: ModelAnswer


@dataclass(frozen=True)
class DisputedResponse:
    """A response whose judgments disagree.

    Attributes:
        index: Index among a step's answers.
        prompt: The prompt.
        response: The response.
        judgments: Judgments with distinct reasons.
    """

    index: int
    prompt: Prompt
    response: str
    judgments: Sequence[ScoredJudgment]

    @property
    def battle_orders(self) -> list[tuple[int, int]]:
        """Indices of the first and second judgment of each battle."""
        return list(permutations(range(len(self.judgments)), 2))


@dataclass(frozen=True)
class JudgePair:
    """A pair of judgments of one response.

    Attributes:
        doubted: The response.
        chosen: The strongest judgment.
        rejected: The weakest judgment.
        elo_gap: Difference of their Elo ratings.
    """

    doubted: DisputedResponse
    chosen: ScoredJudgment
    rejected: ScoredJudgment
    elo_gap: float


def judge_pairs(
    ranked: RankedAnswers, room: int, meta: MetaJudging, step: int
) -> tuple[list[JudgePair], Metrics, ComparisonCounts]:
    """Builds at most `room` pairs of judgments; returns metrics and counts of battles."""
    varied = _pick_disputed_responses(ranked, meta.reasons)
    fitting = [one for one in varied if meta.judge.are_within_limit(_build_battle_cases(one, step))]
    doubted = fitting[: _SPARE * room]
    judged = meta.judge([case for one in doubted for case in _build_battle_cases(one, step)])
    fought = iter(judged)
    battles: list[BattleResults] = []
    pairs: list[JudgePair] = []
    for one in doubted:
        own: dict[tuple[int, int], BattleWinner | None] = {}
        for order in one.battle_orders:
            own[order] = next(iter(next(fought).values), None)
        battles.append(own)
        pair = _best_and_worst(one, own, meta)
        if pair is not None:
            pairs.append(pair)
    kept = balance_classes([round(pair.chosen.score) for pair in pairs], room, meta.max_class_share)
    compared = count_comparisons(battles)
    winners = [winner for own in battles for winner in own.values() if winner is not None]
    metrics = judge_metrics(judged) + Metrics(
        first_wins=Mean(winners.count("A"), len(winners)),
        consistent=Mean(compared.consistent, compared.total),
        undecided=Mean(len(doubted) - len(pairs), len(doubted)),
        elo_gap=Mean(sum(pair.elo_gap for pair in pairs), len(pairs)),
        too_long=Sum(len(varied) - len(fitting)),
    )
    return [pairs[index] for index in kept], metrics, compared


def judge_batch(pairs: Sequence[JudgePair]) -> Batch:
    """Builds a batch of judgment pairs, the better judgment first.

    The scores in judgments are about the response, so for losses that read scores each pair is one
    point apart.
    """
    judgments = chain.from_iterable((pair.chosen, pair.rejected) for pair in pairs)
    batch = build_batch([_read_judgment_tokens(one.answer) for one in judgments])
    sample = {
        "score": torch.tensor([1.0, 0.0]).repeat(len(pairs)),
        "judge_pair": torch.ones(len(batch)).bool(),
    }
    return replace(batch.with_columns(sample=sample), group_size=2)


def judge_pair_row(pair: JudgePair, decode: Callable[[Sequence[int]], str]) -> dict[str, Any]:
    """A pair of judgments as a row of JSON types."""
    prompt, _ = _read_judgment_tokens(pair.chosen.answer)
    row: dict[str, Any] = {
        "id": f"{pair.doubted.prompt.id}, judged",
        "prompt": decode(prompt),
        "status": "judge_pair",
    }
    row["scores"] = [one.score for one in pair.doubted.judgments]
    for name, one in (("chosen", pair.chosen), ("rejected", pair.rejected)):
        row |= {name: one.answer.text, f"{name}_score": one.score}
    return row


def _read_judgment_tokens(answer: ModelAnswer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Tokens of the question and of the reply."""
    prompt = answer.prompt_tokens
    reply = answer.tokens
    assert prompt is not None, "the judge is the policy, whose tokens are known"
    assert reply is not None, "the tokens of its reply are known, too"
    return prompt, reply


def _pick_disputed_responses(
    ranked: RankedAnswers, reasons: Callable[[str], str]
) -> list[DisputedResponse]:
    """Picks each prompt's finished answer with the most varied verdicts, most varied first.

    Answers with equal verdicts, or shortened for the judge, are not picked.
    """
    rollouts = ranked.rollouts
    judged = ranked.judged
    cut = rollouts.batch["truncated"].tolist()
    variances = [
        0.0 if cut[i] or one.shortened else score_variance(one) or 0.0
        for i, one in enumerate(judged)
    ]
    indices: list[int] = []
    for start in range(0, len(variances), ranked.group_size):
        group = range(start, start + ranked.group_size)
        indices.append(max(group, key=variances.__getitem__))
    disputed: list[DisputedResponse] = []
    for i in sorted(indices, key=variances.__getitem__, reverse=True):
        if variances[i] > 0:
            distinct = _select_distinct(judged[i], reasons)
            if len(distinct) > 1:
                disputed.append(
                    DisputedResponse(i, rollouts.prompts[i], rollouts.responses[i], distinct)
                )
    return disputed


def _select_distinct(
    judged: CaseJudgments[float], reasons: Callable[[str], str]
) -> list[ScoredJudgment]:
    """Finished judgments without duplicate reasons."""
    found: dict[str, ScoredJudgment] = {}
    for one in judged.judgments:
        if one.verdict.value is not None and one.answer is not None and one.answer.finished:
            text = reasons(one.answer.text)
            found.setdefault(text, ScoredJudgment(one.verdict.value, text, one.answer))
    return list(found.values())


def _build_battle_cases(doubted: DisputedResponse, step: int) -> list[JudgeCase]:
    """Builds all battles: prompt, response, and the reasons of two judgments in one order."""
    prompt = doubted.prompt
    texts = [one.reasons for one in doubted.judgments]
    cases: list[JudgeCase] = []
    for i, j in doubted.battle_orders:
        key = step, prompt.id, doubted.index, i, j
        cases.append(
            meta_case(prompt.conversation, doubted.response, texts[i], texts[j], key, prompt.text)
        )
    return cases


def _best_and_worst(
    doubted: DisputedResponse, battles: BattleResults, meta: MetaJudging
) -> JudgePair | None:
    """The strongest and the weakest judgment; None if tied or of equal score."""
    count_wins = _WINS[meta.section.battles]
    strength_P = bradley_terry(count_wins(battles, len(doubted.judgments)))
    order = strength_P.argsort(descending=True, stable=True).tolist()
    ranked = strength_P[order].tolist()
    if min(ranked[0] - ranked[1], ranked[-2] - ranked[-1]) < _EQUAL:
        return None
    chosen = doubted.judgments[order[0]]
    rejected = doubted.judgments[order[-1]]
    _, reply = _read_judgment_tokens(chosen.answer)
    limit = meta.section.max_judgment_tokens
    if (limit is not None and len(reply) > limit) or chosen.score == rejected.score:
        return None
    return JudgePair(doubted, chosen, rejected, _ELO * (ranked[0] - ranked[-1]))


_FILE = "skill.json"


class MetaJudgeSkill:
    """Tracks whether the meta-judge's comparisons show skill in an iteration; checkpointed.

    An iteration has one meta-judge; the next iteration has a new one, which must show its own
    skill.

    Args:
        note: Shows a persistent line.
    """

    def __init__(self, note: Callable[[str], object]) -> None:
        self._note = note
        self._iteration, self._seen = 0, ComparisonCounts()

    def add_comparisons(self, iteration: int, found: ComparisonCounts) -> bool:
        """True if the iteration's comparisons, including the newest, show skill."""
        if iteration != self._iteration:
            self._iteration, self._seen = iteration, ComparisonCounts()
        is_first = not self._seen.total
        self._seen += found
        if is_first and found.total and not self._seen.show_skill:
            self._note(
                f"iteration {iteration}: the meta-judge picked the same winner in both orders "
                f"in {found.consistent} of {found.total} comparisons; {found.by_chance:.0%} are "
                "expected by chance; its pairs of judgments are left out until meta_judge/luck is "
                "at most 0.01; if that does not happen, train it to compare judgments first, or "
                "set use_meta_judge=false"
            )
        return self._seen.show_skill

    def compute_metrics(self) -> Metrics:
        """Metrics of the iteration so far."""
        metrics = Metrics(luck=LastValue(self._seen.luck_probability))
        if self._seen.total:
            metrics["consistent_by_chance"] = LastValue(self._seen.by_chance)
        return metrics

    def save(self, folder: Path) -> None:
        """Saves the counts; see `Learner.save`."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {"iteration": self._iteration, "seen": asdict(self._seen)}
        (folder / _FILE).write_text(json.dumps(state), encoding="utf-8")

    def poll_save(self, wait: bool) -> bool:
        return True

    def load(self, folder: Path) -> None:
        """Restores the counts; see `Learner.load`.

        A run that started without a meta-judge has none.
        """
        if folder.exists():
            state = json.loads((folder / _FILE).read_text(encoding="utf-8"))
            self._iteration, self._seen = state["iteration"], ComparisonCounts(**state["seen"])
