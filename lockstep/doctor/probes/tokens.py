"""Probes that ask what is scored: the token ids, and the position they are scored at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lockstep.doctor.base import Side
from lockstep.doctor.case import Case, first_drawn, size
from lockstep.doctor.probes.base import SIDES, Clean, Finding, Outcome, Probe

_LAGS = (-2, -1, 1, 2)
_BELOW, _ABOVE = 0.6, 0.9
_FIRST_SHARE = 0.9
_FEW = 16
"""Tokens; so many have to be there for numbers to correlate."""


def token_ids(case: Case, refused: Sequence[str]) -> Outcome:
    """Whether each side scores the ids that were drawn."""
    drawn = [tuple(tokens.tolist()) for tokens in case.drawn.sequences()]
    for side in SIDES:
        scored = case.side(side).scores(case.scored(side)).tokens
        differs = torch.tensor([a != b for a, b in zip(scored, drawn, strict=True)])
        if bool((differs[case.drawn.row] & case.compared).any()):
            return _retokenised(side, differs, case.drawn.row)
    return Clean("both sides score the ids that were drawn")


def _retokenised(side: Side, differs_B: Tensor, row_N: Tensor) -> Finding:
    said = f"{int(differs_B.sum())} of {len(differs_B)} sequences are scored with other ids than were drawn"
    return Finding(
        "retokenised",
        side,
        (said,),
        "compare only sequences whose ids are equal",
        lambda case: case.without(differs_B[row_N]),
    )


def lag(case: Case, refused: Sequence[str]) -> Outcome:
    """Whether one side's numbers are the other's, some positions off."""
    here = _correlation(case.train_N, case.infer_N, case.compared)
    moved = {k: _correlation(torch.roll(case.train_N, k), case.infer_N, _within(case, k)) for k in _LAGS}
    best = max(_LAGS, key=lambda k: moved[k])
    said = f"the sides correlate by {here:.3f}, and by {moved[best]:.3f} where one is moved by {best}"
    if not (here < _BELOW and moved[best] > _ABOVE):
        return Clean(said)
    witness = case.witness.score(case.drawn).logprob.double()
    agrees = {side: _correlation(case.numbers(side), witness, case.compared) for side in SIDES}
    side: Side = "train" if agrees["train"] < agrees["infer"] else "infer"
    step, outside = (best if side == "train" else -best), ~_within(case, best)

    def counter(case: Case) -> Case:
        view = case.side(side)
        return case.with_side(side, replace(view, lag=view.lag + step)).without(outside)

    return Finding("off_by_one", side, (said,), f"move its log-probabilities by {step}", counter)


def first_token(case: Case, refused: Sequence[str]) -> Outcome:
    """Whether nothing but the first token of each response disagrees."""
    first = first_drawn(case.drawn) & case.compared
    share = _squares(case, first) / (_squares(case, case.compared) or 1.0)
    said = f"{share:.0%} of the gap lies on first tokens"
    if share < _FIRST_SHARE or torch.equal(first, case.compared):
        return Clean(said)
    return Finding(
        "first_token", farther(case, first), (said,), "leave first tokens out", lambda case: case.without(first)
    )


def farther(case: Case, where: Tensor | None = None) -> Side | None:
    """The side that is much farther from the witness, on some tokens or on all; None where neither is."""
    witness = case.witness.score(case.drawn).logprob.double()
    where = case.compared if where is None else where
    gaps = {side: size((case.numbers(side) - witness)[where]) for side in SIDES}
    wrong = max(SIDES, key=lambda side: gaps[side])
    return wrong if gaps[wrong] > 2 * min(gaps.values()) else None


def _squares(case: Case, where: Tensor) -> float:
    return size(case.delta[where]) ** 2 * int(where.sum())


def _within(case: Case, step: int) -> Tensor:
    """Compared tokens that are compared, in the same sequence, `step` positions before too."""
    row = case.drawn.row
    return case.compared & torch.roll(case.compared, step) & (torch.roll(row, step) == row)


def _correlation(a_N: Tensor, b_N: Tensor, where_N: Tensor) -> float:
    if int(where_N.sum()) < _FEW:
        return 0.0
    both = torch.nan_to_num(torch.stack([a_N[where_N], b_N[where_N]]), neginf=-50.0)
    return float(torch.corrcoef(both)[0, 1].nan_to_num())


TOKEN_IDS = Probe("token ids", token_ids, facts=True)
LAG = Probe("lag", lag)
FIRST_TOKEN = Probe("first token", first_token)
