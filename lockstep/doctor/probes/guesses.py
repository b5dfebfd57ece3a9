"""What a side may have done with its logits: for each known mistake, the numbers that it would have given."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lockstep.distributed.sampling import token_scores
from lockstep.doctor.case import apart, size
from lockstep.types import SamplingParams
from lockstep_logprobs.support import support_floor

_ROWS = 8
"""Sequences that a number is fitted to."""
_HALVINGS = 30
_MANY, _DUST = 32, 1e-4
_ON_A_SUM = 0.05
"""Of the next token's probability: so near to a sum of the likeliest ones that it is no other."""
"""Tokens that have to lie on one side; nats by which each may still lie on the other."""

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

    def heated(self, asked: SamplingParams) -> Tensor:
        """The same, divided by the temperature that was asked for, fp32 [M, V]."""
        return self.logits / asked.divisor

    def beside(self, step: int) -> Tensor:
        """Logits so many positions to the right of those, fp32 [M, V]."""
        return self.raw[(self.described + step).clamp(0, len(self.raw) - 1)].float()


def guesses(rows: Sequence[Row], asked: SamplingParams) -> Iterator[tuple[str, str, Guess]]:
    """Causes, what they are called, and what they would give."""
    yield from _temperatures(rows, asked)
    if not asked.full_support:
        yield from _without_supports(asked)
    yield from _other_supports(rows, asked)
    yield from _penalties(rows, asked)
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        yield "softmax_precision", f"with a log-softmax in {name}", _low(asked, dtype)
    for said, guess in _beside(asked):
        yield "off_by_one", said, guess
    rows_of_padding = _padding(rows)
    if rows_of_padding > 0:
        said = f"with {rows_of_padding:.0f} more logits of 0 in the denominator"
        yield "padded_vocabulary", said, lambda row: _padded(row, asked, rows_of_padding)


def other_denominator(rows: Sequence[Row], asked: SamplingParams) -> tuple[str, str] | None:
    """A cause and what it is called, where every number is too small or too large: the denominator has more, or less.

    Where it has more, though limits were asked for, and all tokens together would make the numbers smaller yet, it is
    tokens that those limits exclude.
    """
    if _one_sided(rows, lambda row: row.asked, 1):
        if _cut_off(rows, asked):
            return "top_p", "with only the likeliest tokens in the denominator, as behind a limit such as min_p"
        return "penalty", "with fewer tokens in the denominator, as if some were barred"
    if not _one_sided(rows, lambda row: row.asked, -1):
        return None
    if asked.full_support or _one_sided(rows, _scored(replace(asked, top_k=0, top_p=1.0)), -1):
        return "padded_vocabulary", "with more in the denominator"
    return "top_k" if asked.top_k else "top_p", "with more tokens in the denominator than were to be kept"


def _cut_off(rows: Sequence[Row], asked: SamplingParams) -> bool:
    """Whether the tokens left out are the least likely ones each time: what is kept is a sum of the likeliest."""
    off: list[Tensor] = []
    for row in rows:
        kept_M = (row.asked - row.said).exp()
        heated_MV = row.heated(asked)
        floor_M = support_floor(heated_MV, top_k=asked.top_k, top_p=asked.top_p)
        heated_MV = heated_MV.masked_fill(heated_MV < floor_M[:, None], -torch.inf)
        each_MV = heated_MV.softmax(-1).sort(-1, descending=True).values.double()
        away_M, place_M = (each_MV.cumsum(-1) - kept_M[:, None]).abs().min(-1)
        next_M = each_MV.gather(-1, (place_M + 1).clamp(max=each_MV.shape[1] - 1)[:, None])[:, 0]
        told_M = torch.isfinite(kept_M) & (kept_M < 1 - _DUST) & (next_M > _DUST)
        off.append((away_M / next_M)[told_M])
    every = torch.cat(off)
    return len(every) >= _MANY and float(every.median()) < _ON_A_SUM


def _one_sided(rows: Sequence[Row], numbers: Guess, sign: int) -> bool:
    """Whether all that is said lies on one side of some numbers: above (1) or below (−1)."""
    off = sign * unexplained(rows, numbers)
    return len(off) >= _MANY and bool((off >= -_DUST).all()) and float(off.median()) > 0


def _temperatures(rows: Sequence[Row], asked: SamplingParams) -> Iterator[tuple[str, str, Guess]]:
    """Those that a side may have used: none, the inverse, the square, and what fits; of logits, or of the result."""
    now = asked.divisor
    tried = {one for one in (1.0, 1 / now, now**2) if abs(one - now) > 1e-3}
    best = _fitted(0.3, 3.0, lambda one: size(unexplained(rows[:_ROWS], _scored(replace(asked, temperature=one)))))
    tried |= {best} if abs(best - now) > 5e-3 else set()
    for temperature in tried:
        yield "temperature", f"at temperature {temperature:.3g}", _scored(replace(asked, temperature=temperature))
    for temperature in {1.0, now}:
        usual = _scored(replace(asked, temperature=temperature))
        factor = _factor(rows, usual)
        if abs(factor - 1) > 5e-3:
            said = f"at temperature {temperature:.3g}, times {factor:.3g}"
            yield "temperature", said, lambda row, usual=usual, factor=factor: factor * usual(row)


def _factor(rows: Sequence[Row], usual: Guess) -> float:
    """What log-probabilities have to be multiplied with to be nearest to what is said."""
    said, own = torch.cat([row.said for row in rows]), torch.cat([usual(row) for row in rows])
    sure = torch.isfinite(said) & torch.isfinite(own)
    return float((said * own)[sure].sum() / own[sure].square().sum().clamp(min=1e-12))


def _without_supports(asked: SamplingParams) -> Iterator[tuple[str, str, Guess]]:
    """Without one of the limits that were asked for, or with both found in another way."""
    if asked.top_p < 1:
        yield "top_p", "without top_p", _scored(replace(asked, top_p=1.0))
        yield "top_p", "without the token that reaches top_p", _short_of(asked)
        nucleus = replace(asked, top_k=0)
        yield "top_p", "with top_p among all tokens, top_k or not", _kept_by(asked, nucleus, replace(asked, top_p=1.0))
        for temperature in {1.0, asked.temperature**2}:
            yield (
                "top_p",
                f"with top_p at temperature {temperature:.3g}",
                _kept_by(asked, replace(asked, temperature=temperature)),
            )
        for temperature in {1.0, asked.temperature}:
            yield "top_p", "with top_p twice", _nested(asked, replace(asked, temperature=temperature))
    if asked.top_k:
        yield "top_k", "without top_k", _scored(replace(asked, top_k=0))
    bare = replace(asked, top_p=1.0, top_k=0, temperature=1.0)
    cause = "top_p" if asked.top_p < 1 else "top_k"
    yield cause, "without anything that was asked for", _scored(bare)


def _other_supports(rows: Sequence[Row], asked: SamplingParams) -> Iterator[tuple[str, str, Guess]]:
    """With other limits than were asked for."""
    for top_k in _kept_counts(rows, asked):
        yield "top_k", f"with top_k = {top_k}", _scored(replace(asked, top_k=top_k))
    for top_p in _kept_shares(rows, asked):
        yield "top_p", f"with top_p = {top_p:.3g}", _scored(replace(asked, top_p=top_p))


def _penalties(rows: Sequence[Row], asked: SamplingParams) -> Iterator[tuple[str, str, Guess]]:
    """With other logits of tokens that were there before: anywhere, among what was drawn, or in the prompt."""
    few = rows[:_ROWS]
    for where, times in (("that were there", _times), ("that it drew", _times_drawn), ("of the prompt", _times_asked)):
        penalty = _fitted(0.5, 3.0, lambda one, times=times: size(unexplained(few, _penalised(asked, one, times))))
        yield "penalty", f"with tokens {where} penalised by a factor {penalty:.3g}", _penalised(asked, penalty, times)
        for each, count in (("", _once(times)), (" each time", times)):
            change = _fitted(0.02, 50.0, lambda one, count=count: size(unexplained(few, _favoured(asked, one, count))))
            said = f"with the odds of tokens {where} times {change:.3g}{each}"
            yield "penalty", said, _favoured(asked, change, count)


def _beside(asked: SamplingParams) -> Iterator[tuple[str, Guess]]:
    """What it would say one position off: of its own token by logits beside it, or of the token beside it."""
    for step in (-1, 1):
        said = f"one position to the {'left' if step < 0 else 'right'}"
        yield said, lambda row, step=step: token_scores(row.beside(step), row.token, asked)[0].double()
        said = f"of the token {'after' if step < 0 else 'before'} it"
        yield said, lambda row, step=step: _moved(row, step)


def _moved(row: Row, step: int) -> Tensor:
    """What it should say of the next or the last masked token; of the one at the end, of itself."""
    index = torch.arange(len(row.asked)) - step
    return row.asked[index.clamp(0, len(row.asked) - 1)]


def _scored(sampling: SamplingParams) -> Guess:
    return lambda row: token_scores(row.logits, row.token, sampling)[0].double()


def _kept_by(asked: SamplingParams, *supports: SamplingParams) -> Guess:
    """The distribution that was asked for, over tokens that all of some limits keep."""

    def numbers(row: Row) -> Tensor:
        out_MV = torch.zeros_like(row.logits, dtype=torch.bool)
        for one in supports:
            floor_M = support_floor(row.logits, top_k=one.top_k, top_p=one.top_p, temperature=one.temperature)
            out_MV |= row.logits < floor_M[:, None]
        return _inside(row, asked, out_MV)

    return numbers


def _nested(asked: SamplingParams, first: SamplingParams) -> Guess:
    """The limits that were asked for, found among the tokens that others had kept."""

    def numbers(row: Row) -> Tensor:
        kept_MV = row.logits
        for one in (first, asked):
            floor_M = support_floor(kept_MV, top_k=one.top_k, top_p=one.top_p, temperature=one.temperature)
            kept_MV = kept_MV.masked_fill(kept_MV < floor_M[:, None], -torch.inf)
        return _inside(row, asked, kept_MV == -torch.inf)

    return numbers


def _inside(row: Row, asked: SamplingParams, out_MV: Tensor) -> Tensor:
    """Without some tokens; but one that was drawn can be drawn."""
    heated = row.heated(asked)
    out_MV = out_MV.scatter(-1, row.token[:, None], False)
    return heated.masked_fill(out_MV, -torch.inf).log_softmax(-1).gather(-1, row.token[:, None])[:, 0].double()


def _short_of(asked: SamplingParams) -> Guess:
    """Only likeliest tokens that together stay below top_p, but always one."""

    def numbers(row: Row) -> Tensor:
        heated = row.heated(asked)
        sorted_MV, order_MV = heated.sort(-1, descending=True)
        out_MV = sorted_MV.softmax(-1).cumsum(-1) > asked.top_p
        out_MV[:, 0] = False
        out_MV = torch.zeros_like(out_MV).scatter_(-1, order_MV, out_MV)
        return _inside(row, asked, out_MV)

    return numbers


def _penalised(asked: SamplingParams, penalty: float, times: Count) -> Guess:
    """Logits of tokens that count are divided by the penalty, or multiplied where negative."""

    def numbers(row: Row) -> Tensor:
        changed = torch.where(row.logits > 0, row.logits / penalty, row.logits * penalty)
        return token_scores(torch.where(times(row) > 0, changed, row.logits), row.token, asked)[0].double()

    return numbers


Count = Callable[["Row"], Tensor]
"""How often each token of the vocabulary counts before each masked token, [M, V]."""


def _favoured(asked: SamplingParams, odds: float, count: Count) -> Guess:
    """Odds are multiplied for each time that counts."""
    return lambda row: token_scores(row.logits + math.log(odds) * count(row), row.token, asked)[0].double()


def _times(row: Row) -> Tensor:
    """Anywhere before it."""
    there_TV = torch.zeros(len(row.tokens), row.raw.shape[1]).scatter_(1, row.tokens[:, None], 1.0)
    return there_TV.cumsum(0)[row.own - 1]


def _times_drawn(row: Row) -> Tensor:
    """Among the masked tokens before it."""
    drawn_MV = torch.zeros(len(row.own), row.raw.shape[1]).scatter_(1, row.token[:, None], 1.0)
    return drawn_MV.cumsum(0) - drawn_MV


def _times_asked(row: Row) -> Tensor:
    """In the prompt: anything before it that is not masked."""
    return _times(row) - _times_drawn(row)


def _once(times: Count) -> Count:
    """Whether at all."""
    return lambda row: (times(row) > 0).float()


def _low(asked: SamplingParams, dtype: torch.dtype) -> Guess:
    def numbers(row: Row) -> Tensor:
        heated = row.raw[row.described] / asked.divisor
        return heated.to(dtype).log_softmax(-1).gather(-1, row.token[:, None])[:, 0].double()

    return numbers


def _padded(row: Row, asked: SamplingParams, count: float) -> Tensor:
    heated = row.heated(asked)
    total = torch.logaddexp(heated.logsumexp(-1), torch.tensor(count).log())
    return (heated.gather(-1, row.token[:, None])[:, 0] - total).double()


def _padding(rows: Sequence[Row]) -> float:
    """How many logits of 0 would have to be in the denominator besides; the median over tokens, 0 where not many."""
    each = torch.cat(
        [((row.asked - row.said).exp() - 1).clamp(min=0) * row.logits.logsumexp(-1).exp().double() for row in rows]
    )
    count = float(each.median())
    return count if count > 0.5 else 0.0


def _fitted(low: float, high: float, left: Callable[[float], float]) -> float:
    """Where what is left is least, by thirds on a logarithmic scale; it has one minimum."""
    for _ in range(_HALVINGS):
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
        heated = row.heated(asked)[sure]
        mass = heated.softmax(-1).sort(-1, descending=True).values.cumsum(-1).double()
        kept = (row.asked - row.said)[sure].exp()[:, None]
        counts.append((mass - kept).abs().argmin(-1) + 1)
    return [] if not counts else [int(torch.cat(counts).mode().values)]


def _kept_shares(rows: Sequence[Row], asked: SamplingParams) -> list[float]:
    """The top_p that the numbers imply, if one: the least probability that is kept."""
    kept = torch.cat([(row.asked - row.said).exp() for row in rows])
    least = float(kept[torch.isfinite(kept)].quantile(0.001)) if bool((kept < 0.9995).any()) else 1.0
    return [share for share in {round(least, 2), round(least, 1)} if 0 < share < 1 and share != asked.top_p]


def unexplained(rows: Sequence[Row], numbers: Guess) -> Tensor:
    """What a guess does not explain, [M] of all rows."""
    return torch.cat([apart(row.said, numbers(row)) for row in rows])
