"""Probes that ask what is done with the logits: which distribution the numbers of a side are of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.batch import Batch
from lockstep.distributed.sampling import token_scores
from lockstep.doctor.base import Conditions, Side
from lockstep.doctor.case import Case, View, apart, own_logits, size
from lockstep.doctor.probes.base import SIDES, Clean, Finding, Outcome, Probe
from lockstep.doctor.probes.guesses import Guess, Row, guesses, other_denominator, unexplained
from lockstep.doctor.probes.logit_bias import fitted_bias
from lockstep.models.heads import PLAIN
from lockstep.types import SamplingParams
from lockstep_logprobs.support import support_floor

_ALONE = Conditions(layout="alone")
_DUST, _FLOORS = 1e-4, 0.5
_EXPLAINS, _EXACTLY, _WHOLLY = 0.55, 0.2, 0.03
"""What a guess may leave of a side's difference, at most: where that is no more than rounding makes, or the guess was
fitted to other rows; usually, since what is right leaves nothing; and where it may choose for each token."""
_ROUNDING = 1.5
"""Times the floor."""
_FEW = 8
"""Tokens that a guess has to explain."""


def _undone(row: Row, guessed: Tensor) -> Tensor:
    """From what was guessed to what was asked for, where a sequence is nearer to the former, [M]."""
    nearer = size(apart(row.said, guessed)) < size(apart(row.said, row.asked))
    return row.asked - guessed if nearer else torch.zeros_like(guessed)


def semantics(case: Case, refused: Sequence[str]) -> Outcome:
    """Whether a side's numbers are those of the distribution that was asked for, given its own logits."""
    looked = []
    for side in SIDES:
        rows = _rows(case, side)
        off = size(unexplained(rows, lambda row: row.asked))
        least = max(_DUST, _FLOORS * case.floor)
        hit = [row for row in rows if size(apart(row.said, row.asked)) > least]
        enough = sum(len(row.said) for row in hit) >= _FEW
        guess = None
        if enough:
            own = size(unexplained(hit, lambda row: row.asked))
            guess = _best(hit, case.sampling, own, _ROUNDING * case.floor) or _hidden(case, side)
        if guess is not None and guess.cause not in refused:
            return _finding(case, side, guess, off)
        looked.append(f"{side} is {off:.2g} nats off its own logits under what was asked for")
    return Clean("; ".join(looked))


def _finding(case: Case, side: Side, guess: Explained, off: float) -> Finding:
    sampling = _sampling(case, side)

    def correction(view: View, batch: Batch) -> Tensor:
        decoded = side == "infer" and not view.prefill
        said_N = batch["sampler_logprob"].double() if decoded else view.score(batch)
        column = torch.zeros(batch.tokens.numel(), dtype=torch.float64)
        own = rows_of(_network(case, view), batch, sampling, said_N)
        column[batch.mask] = torch.cat([_undone(row, guess.numbers(row)) for row in own])
        return column

    return Finding(
        guess.cause,
        side,
        (
            f"its numbers are {off:.2g} nats off what its own logits give under what was asked for, and "
            f"{guess.left:.2g} off what they give {guess.said}",
        ),
        "score its own logits under the distribution that was asked for",
        lambda case: case.with_side(side, case.side(side).plus(correction)),
    )


@dataclass(frozen=True)
class Explained:
    """A guess that explains what a side says.

    Attributes:
        cause: That it stands for.
        said: The same for people.
        numbers: What it gives.
        left: What it leaves unexplained, nats.
    """

    cause: str
    said: str
    numbers: Guess
    left: float


def _rows(case: Case, side: Side) -> list[Row]:
    """Of the compared tokens."""
    view = case.side(side)
    said_N = case.numbers(side)
    if (side == "train" or view.prefill) and view.can("layout"):
        said_N = view.score(case.scored(side), _ALONE)
    compared = case.drawn.with_columns({"mask": case.compared})
    return list(rows_of(_network(case, view), compared, _sampling(case, side), said_N))


def rows_of(view: View, batch: Batch, sampling: SamplingParams, said_N: Tensor | None = None) -> Iterator[Row]:
    """The masked tokens of a batch by a side's own logits; what the side says is 0 where that is not given."""
    said_N = torch.zeros(batch.tokens.numel(), dtype=torch.float64) if said_N is None else said_N
    numbers = zip(torch.split(said_N, batch.lengths.tolist()), batch.sequences("mask"), strict=True)
    for (raw, own), tokens, (said, mask) in zip(own_logits(view, batch), batch.sequences(), numbers, strict=True):
        asked = token_scores(raw[own - 1].float(), tokens[own], sampling)[0].double()
        first = max(int(own[0]) - 2, 0) if len(own) else len(raw)
        yield Row(raw[first:].clone(), tokens, own, said[mask], asked)  # prompts can be long, and vocabularies large


def _network(case: Case, view: View) -> View:
    """A side's own logits, or the witness's where it shows none."""
    return view if view.can("modules") else View(case.witness)


def _sampling(case: Case, side: Side) -> SamplingParams:
    """The distribution that a side's numbers should be of."""
    if side == "infer" and not case.infer.prefill:
        return case.sampling
    return case.scored(side).sampling or PLAIN


def _best(rows: Sequence[Row], asked: SamplingParams, off: float, rounding: float) -> Explained | None:
    """The guess that leaves least, if it explains enough; rounding leaves so many nats."""
    found = [
        Explained(cause, said, numbers, size(unexplained(rows, numbers)))
        for cause, said, numbers in guesses(rows, asked)
    ]
    best = min(found, key=lambda guess: guess.left, default=None)
    if best is not None and best.left <= max(_EXACTLY * off, min(rounding, _EXPLAINS * off)):
        return best
    best = min((_partly(guess, rows) for guess in found), key=lambda guess: guess.left, default=None)
    if best is not None and best.left < _WHOLLY * off:
        return best
    if (found := other_denominator(rows, asked)) is not None:
        return Explained(*found, lambda row: row.said, 0.0)
    biased = _biased(rows, asked)
    return biased if biased is not None and biased.left < _EXPLAINS * off else None


def _biased(rows: Sequence[Row], asked: SamplingParams) -> Explained | None:
    """Other logits for some tokens, wherever they stand: fitted to three rows of four, and checked on the others."""
    fitted, checked = [row for place, row in enumerate(rows) if place % 4], rows[::4]
    if not fitted:
        return None
    heat = asked.divisor
    logits_MV, token_M = (torch.cat(x) for x in zip(*((row.logits, row.token) for row in fitted), strict=True))
    said_M = torch.cat([row.said for row in fitted])
    sure = torch.isfinite(said_M)
    logits_MV, token_M, said_M = logits_MV[sure] / heat, token_M[sure], said_M[sure]
    bias_V = torch.zeros(logits_MV.shape[1])
    for _ in range(1 if asked.full_support else 2):  # what is kept depends on the biases
        bias_V = fitted_bias(_kept(logits_MV, bias_V, token_M, asked), token_M, said_M)
    bias_V = bias_V * heat
    numbers: Guess = lambda row: token_scores(row.logits + bias_V, row.token, asked)[0].double()  # noqa: E731
    most = bias_V.abs().topk(min(4, len(bias_V)))
    shown = ", ".join(f"{bias_V[token]:+.2g} for {token}" for token in most.indices.tolist())
    said = f"with other logits for some tokens ({shown} and so on)"
    return Explained("penalty", said, numbers, size(unexplained(checked, numbers)))


def _kept(logits_MV: Tensor, bias_V: Tensor, token_M: Tensor, asked: SamplingParams) -> Tensor:
    """Logits of the tokens that limits keep once biases are added; that of the token which was drawn is always kept."""
    biased_MV = logits_MV + bias_V
    kept_MV = biased_MV >= support_floor(biased_MV, top_k=asked.top_k, top_p=asked.top_p)[:, None]
    return logits_MV.masked_fill(~kept_MV.scatter(-1, token_M[:, None], True), -torch.inf)


def _hidden(case: Case, side: Side) -> Explained | None:
    """What a side says, where its masks were seen to hide tokens that it is given by itself."""
    scores = case.side(side).scores(case.scored(side))
    hidden = sum(map(len, scores.tokens)) - scores.effective.get("attended", len(case.drawn.tokens))
    if hidden <= 0:
        return None
    return Explained("attention", f"with {hidden} tokens hidden by its masks", lambda row: row.said, 0.0)


def _partly(guess: Explained, rows: Sequence[Row]) -> Explained:
    """The same for a side that does so at some tokens only."""
    numbers = _at_some(guess.numbers)
    return Explained(guess.cause, f"{guess.said}, at some of its tokens", numbers, size(unexplained(rows, numbers)))


def _at_some(guess: Guess) -> Guess:
    """Each token by the guess or by what was asked for, whichever is nearer."""

    def numbers(row: Row) -> Tensor:
        guessed = guess(row)
        nearer = apart(row.said, guessed).abs() < apart(row.said, row.asked).abs()
        return torch.where(nearer, guessed, row.asked)

    return numbers


SEMANTICS = Probe("sampling semantics", semantics)
