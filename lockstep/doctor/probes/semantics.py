"""Probes that ask what is done with the logits: which distribution the numbers of a side are of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lockstep.batch import Batch
from lockstep.distributed.sampling import token_scores
from lockstep.doctor.base import Conditions, Side
from lockstep.doctor.case import Case, View, apart, own_logits, size
from lockstep.doctor.probes.base import SIDES, Clean, Finding, Outcome, Probe
from lockstep.doctor.probes.logit_bias import fitted_bias
from lockstep.models.heads import PLAIN
from lockstep.types import SamplingParams

_ALONE = Conditions(layout="alone")
_DUST, _FLOORS = 1e-4, 0.5
_EXPLAINS = 0.3
"""A guess explains a side's numbers if it leaves less than this share of their difference (of its variance)."""
_WHOLLY = 1e-3
"""The same for a guess that may choose for each token."""
_FEW, _MANY = 8, 32
"""Tokens that a guess has to explain; that have to lie on one side for there to be more in the denominator."""

Guess = Callable[["Row"], Tensor]
"""The numbers of a row, [M], if the guess were right."""


@dataclass(frozen=True)
class Row:
    """One sequence as a side's own network sees it.

    Attributes:
        raw: Logits from two positions before the first masked token on, in the type that the network gives, [R, V].
        tokens: Of the sequence [T].
        own: Indices of its masked tokens [M].
        said: What the side says of them, nats, float64 [M].
        asked: What it should say, given these logits, float64 [M].
    """

    raw: Tensor
    tokens: Tensor
    own: Tensor
    said: Tensor
    asked: Tensor

    @property
    def token(self) -> Tensor:
        """The masked tokens [M]."""
        return self.tokens[self.own]

    @property
    def described(self) -> Tensor:
        """Which of the logits describe the masked tokens [M]."""
        return self.own - 1 - (len(self.tokens) - len(self.raw))

    @property
    def logits(self) -> Tensor:
        """That describe the masked tokens, fp32 [M, V]."""
        return self.beside(0)

    def beside(self, step: int) -> Tensor:
        """Logits so many positions to the right of those, fp32 [M, V]."""
        return self.raw[(self.described + step).clamp(0, len(self.raw) - 1)].float()


def _undone(row: Row, guessed: Tensor) -> Tensor:
    """From what was guessed to what was asked for, where a sequence is nearer to the former, [M]."""
    nearer = size(apart(row.said, guessed)) < size(apart(row.said, row.asked))
    return row.asked - guessed if nearer else torch.zeros_like(guessed)


def semantics(case: Case, refused: Sequence[str]) -> Outcome:
    """Whether a side's numbers are those of the distribution that was asked for, given its own logits."""
    looked = []
    for side in SIDES:
        rows = _rows(case, side)
        off = size(_left(rows, lambda row: row.asked))
        least = max(_DUST, _FLOORS * case.floor)
        hit = [row for row in rows if size(apart(row.said, row.asked)) > least]
        enough = sum(len(row.said) for row in hit) >= _FEW
        guess = _best(hit, case.sampling, size(_left(hit, lambda row: row.asked))) if enough else None
        guess = guess or (_hidden(case, side) if enough else None)
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


def _best(rows: Sequence[Row], asked: SamplingParams, off: float) -> Explained | None:
    """The guess that leaves least, if it explains enough."""
    found = [
        Explained(cause, said, numbers, size(_left(rows, numbers))) for cause, said, numbers in _guesses(rows, asked)
    ]
    best = min(found, key=lambda guess: guess.left, default=None)
    if best is not None and best.left**2 < _EXPLAINS * off**2:
        return best
    best = min((_partly(guess, rows) for guess in found), key=lambda guess: guess.left, default=None)
    if best is not None and best.left**2 < _WHOLLY * off**2:
        return best
    left = _left(rows, lambda row: row.asked)
    if len(left) >= _MANY and bool((left <= 1e-4).all()) and float(left.median()) < 0:
        return Explained("padded_vocabulary", "with more in the denominator", lambda row: row.said, 0.0)
    biased = _biased(rows, asked)
    return biased if biased is not None and biased.left**2 < _EXPLAINS * off**2 else None


def _biased(rows: Sequence[Row], asked: SamplingParams) -> Explained | None:
    """Other logits for some tokens, wherever they stand: fitted to three rows of four, and checked on the others."""
    fitted, checked = [row for place, row in enumerate(rows) if place % 4], rows[::4]
    if not (fitted and asked.full_support):
        return None
    heat = 1.0 if asked.greedy else asked.temperature
    logits_MV, token_M = (torch.cat(x) for x in zip(*((row.logits, row.token) for row in fitted), strict=True))
    said_M = torch.cat([row.said for row in fitted])
    sure = torch.isfinite(said_M)
    bias_V = fitted_bias(logits_MV[sure] / heat, token_M[sure], said_M[sure]) * heat
    numbers: Guess = lambda row: token_scores(row.logits + bias_V, row.token, asked)[0].double()  # noqa: E731
    most = bias_V.abs().topk(min(4, len(bias_V)))
    shown = ", ".join(f"{bias_V[token]:+.2g} for {token}" for token in most.indices.tolist())
    said = f"with other logits for some tokens ({shown} and so on)"
    return Explained("penalty", said, numbers, size(_left(checked, numbers)))


def _hidden(case: Case, side: Side) -> Explained | None:
    """What a side says, where its masks were seen to hide tokens that it is given by itself."""
    scores = case.side(side).scores(case.scored(side))
    hidden = sum(map(len, scores.tokens)) - scores.effective.get("attended", len(case.drawn.tokens))
    if hidden <= 0:
        return None
    return Explained("attention", f"with {hidden} tokens hidden by its masks", lambda row: row.said, 0.0)


def _guesses(rows: Sequence[Row], asked: SamplingParams) -> Iterator[tuple[str, str, Guess]]:
    """Causes, what they are called, and what they would give."""
    for temperature in _temperatures(rows, asked):
        yield "temperature", f"at temperature {temperature:.3g}", _scored(replace(asked, temperature=temperature))
    if asked.top_p < 1:
        yield "top_p", "without top_p", _scored(replace(asked, top_p=1.0))
    if asked.top_k:
        yield "top_k", "without top_k", _scored(replace(asked, top_k=0))
    if not asked.full_support:
        bare = replace(asked, top_p=1.0, top_k=0, temperature=1.0)
        cause = "top_p" if asked.top_p < 1 else "top_k"
        yield cause, "without anything that was asked for", _scored(bare)
    for top_k in _kept_counts(rows, asked):
        yield "top_k", f"with top_k = {top_k}", _scored(replace(asked, top_k=top_k))
    if asked.top_p < 1:
        yield "top_p", "without the token that reaches top_p", _short_of(asked)
    for top_p in _kept_shares(rows, asked):
        yield "top_p", f"with top_p = {top_p:.3g}", _scored(replace(asked, top_p=top_p))
    few = rows[:8]
    penalty = _fitted(0.5, 3.0, lambda one: size(_left(few, _penalised(asked, one))))
    yield "penalty", f"with a repetition penalty of {penalty:.3g}", _penalised(asked, penalty)
    for name, count in (("presence", _there), ("presence of what it drew as a", _drawn_there)):
        presence = _fitted(0.01, 4.0, lambda one, count=count: size(_left(few, _lowered(asked, one, count))))
        yield "penalty", f"with a {name} penalty of {presence:.3g}", _lowered(asked, presence, count)
    for name, count in (("frequency", _times), ("frequency of what it drew as a", _times_drawn)):
        frequency = _fitted(0.001, 4.0, lambda one, count=count: size(_left(few, _lowered(asked, one, count))))
        yield "penalty", f"with a {name} penalty of {frequency:.3g}", _lowered(asked, frequency, count)
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        yield "softmax_precision", f"with a log-softmax in {name}", _low(asked, dtype)
    for said, guess in _beside(asked):
        yield "off_by_one", said, guess
    rows_of_padding = _padding(rows)
    if rows_of_padding > 0:
        said = f"with {rows_of_padding:.0f} more logits of 0 in the denominator"
        yield "padded_vocabulary", said, lambda row: _padded(row, asked, rows_of_padding)


def _beside(asked: SamplingParams) -> Iterator[tuple[str, Guess]]:
    """What it would say one position off: of its own token by logits beside it, or of the token beside it."""
    for step in (-1, 1):
        said = f"one position to the {'left' if step < 0 else 'right'}"
        yield said, lambda row, step=step: token_scores(row.beside(step), row.token, asked)[0].double()
        said = f"of the token {'after' if step < 0 else 'before'} it"
        yield said, lambda row, step=step: _moved(row, step)


def _partly(guess: Explained, rows: Sequence[Row]) -> Explained:
    """The same for a side that does so at some tokens only."""
    numbers = _at_some(guess.numbers)
    return Explained(guess.cause, f"{guess.said}, at some of its tokens", numbers, size(_left(rows, numbers)))


def _at_some(guess: Guess) -> Guess:
    """Each token by the guess or by what was asked for, whichever is nearer."""

    def numbers(row: Row) -> Tensor:
        guessed = guess(row)
        nearer = apart(row.said, guessed).abs() < apart(row.said, row.asked).abs()
        return torch.where(nearer, guessed, row.asked)

    return numbers


def _moved(row: Row, step: int) -> Tensor:
    """What it should say of the next or the last masked token; of the one at the end, of itself."""
    index = torch.arange(len(row.asked)) - step
    return row.asked[index.clamp(0, len(row.asked) - 1)]


def _scored(sampling: SamplingParams) -> Guess:
    return lambda row: token_scores(row.logits, row.token, sampling)[0].double()


def _penalised(asked: SamplingParams, penalty: float) -> Guess:
    """Logits of tokens that were there before are divided by the penalty, or multiplied where negative."""

    def numbers(row: Row) -> Tensor:
        changed = torch.where(row.logits > 0, row.logits / penalty, row.logits * penalty)
        return token_scores(torch.where(_there(row) > 0, changed, row.logits), row.token, asked)[0].double()

    return numbers


Count = Callable[["Row"], Tensor]
"""How often each token of the vocabulary counts before each masked token, [M, V]."""


def _lowered(asked: SamplingParams, penalty: float, count: Count) -> Guess:
    """Logits are lowered by the penalty for each time that counts."""
    return lambda row: token_scores(row.logits - penalty * count(row), row.token, asked)[0].double()


def _times(row: Row) -> Tensor:
    """Anywhere before it."""
    there_TV = torch.zeros(len(row.tokens), row.raw.shape[1]).scatter_(1, row.tokens[:, None], 1.0)
    return there_TV.cumsum(0)[row.own - 1]


def _times_drawn(row: Row) -> Tensor:
    """Among the masked tokens before it."""
    drawn_MV = torch.zeros(len(row.own), row.raw.shape[1]).scatter_(1, row.token[:, None], 1.0)
    return drawn_MV.cumsum(0) - drawn_MV


def _there(row: Row) -> Tensor:
    return (_times(row) > 0).float()


def _drawn_there(row: Row) -> Tensor:
    return (_times_drawn(row) > 0).float()


def _short_of(asked: SamplingParams) -> Guess:
    """Only likeliest tokens that together stay below top_p, but always one."""

    def numbers(row: Row) -> Tensor:
        heated = row.logits if asked.greedy else row.logits / asked.temperature
        sorted_MV, order_MV = heated.sort(-1, descending=True)
        out_MV = sorted_MV.softmax(-1).cumsum(-1) > asked.top_p
        out_MV[:, 0] = False
        out_MV = torch.zeros_like(out_MV).scatter_(-1, order_MV, out_MV)
        # A token that was drawn can be drawn.
        out_MV = out_MV.scatter(-1, row.token[:, None], False)
        return heated.masked_fill(out_MV, -torch.inf).log_softmax(-1).gather(-1, row.token[:, None])[:, 0].double()

    return numbers


def _low(asked: SamplingParams, dtype: torch.dtype) -> Guess:
    def numbers(row: Row) -> Tensor:
        raw = row.raw[row.described]
        heated = raw if asked.greedy else raw / asked.temperature
        return heated.to(dtype).log_softmax(-1).gather(-1, row.token[:, None])[:, 0].double()

    return numbers


def _padded(row: Row, asked: SamplingParams, count: float) -> Tensor:
    heated = row.logits if asked.greedy else row.logits / asked.temperature
    total = torch.logaddexp(heated.logsumexp(-1), torch.tensor(count).log())
    return (heated.gather(-1, row.token[:, None])[:, 0] - total).double()


def _padding(rows: Sequence[Row]) -> float:
    """How many logits of 0 would have to be in the denominator besides; the median over tokens, 0 where not many."""
    each = torch.cat(
        [((row.asked - row.said).exp() - 1).clamp(min=0) * row.logits.logsumexp(-1).exp().double() for row in rows]
    )
    count = float(each.median())
    return count if count > 0.5 else 0.0


def _temperatures(rows: Sequence[Row], asked: SamplingParams) -> Iterator[float]:
    """Those that a side may have used: none, the inverse, the square, and what fits best."""
    now = 1.0 if asked.greedy else asked.temperature
    yield from {one for one in (1.0, 1 / now, now**2) if abs(one - now) > 1e-3}
    few = rows[:8]
    best = _fitted(0.3, 3.0, lambda one: size(_left(few, _scored(replace(asked, temperature=one)))))
    if abs(best - now) > 5e-3:
        yield best


def _fitted(low: float, high: float, left: Callable[[float], float]) -> float:
    """Where what is left is least, by thirds on a logarithmic scale; it has one minimum."""
    for _ in range(40):
        a, b = (low**2 * high) ** (1 / 3), (low * high**2) ** (1 / 3)
        low, high = (low, b) if left(a) < left(b) else (a, high)
    return (low * high) ** 0.5


def _kept_counts(rows: Sequence[Row], asked: SamplingParams) -> list[int]:
    """The top_k that the numbers imply, if one: how many likeliest tokens have the probability that is missing."""
    counts = []
    for row in rows:
        sure = (row.said - row.asked) > 1e-3
        if not bool(sure.any()):
            continue
        heated = row.logits[sure] / (1.0 if asked.greedy else asked.temperature)
        mass = heated.softmax(-1).sort(-1, descending=True).values.cumsum(-1).double()
        kept = (row.asked - row.said)[sure].exp()[:, None]
        counts.append((mass - kept).abs().argmin(-1) + 1)
    return [] if not counts else [int(torch.cat(counts).mode().values)]


def _kept_shares(rows: Sequence[Row], asked: SamplingParams) -> list[float]:
    """The top_p that the numbers imply, if one: the least probability that is kept."""
    kept = torch.cat([(row.asked - row.said).exp() for row in rows])
    least = float(kept[torch.isfinite(kept)].quantile(0.001)) if bool((kept < 0.9995).any()) else 1.0
    return [share for share in {round(least, 2), round(least, 1)} if 0 < share < 1 and share != asked.top_p]


def _left(rows: Sequence[Row], numbers: Guess) -> Tensor:
    """What a guess does not explain, [M] of all rows."""
    return torch.cat([apart(row.said, numbers(row)) for row in rows])


SEMANTICS = Probe("sampling semantics", semantics)
