"""The half behind the logits: a side's column recomputed from its own logits, stage by stage.

    logits → processed logits → logsumexp → gathered value → column

Each stage is given the side's own value of the one before it, so a stage that differs is wrong by itself. A side that
hands out only its logits and its column has one stretch from the one to the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from lockstep_doctor.statistics import CAP

ROUNDING = 2e-4
"""Nats that an fp32 softmax over a large vocabulary may be off."""

_EXPLAINS = 0.9


@dataclass(frozen=True)
class Processing:
    """The changes to logits before the softmax, in this order.

    Attributes:
        repetition_penalty: Divides positive logits of tokens that were there before, and multiplies negative ones.
        frequency_penalty: Is subtracted from the logit of a generated token for each time that it was.
        presence_penalty: The same, once.
        temperature: Divides; 0 means greedy, and log-probabilities are then those of temperature 1.
        min_p: Drops tokens less likely than this share of the likeliest one.
        top_k: Keeps so many, and those as likely as the last; 0: all.
        top_p: Keeps the fewest whose probability reaches this; 1: all.
    """

    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    temperature: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    top_p: float = 1.0


@dataclass(frozen=True)
class Stages:
    """The values behind the logits of one row, of M generated tokens; None: the side does not hand it out.

    Attributes:
        logits: That each token was chosen from, [M, V].
        processed: The same after `Processing`, minus infinity for tokens outside of the support, [M, V].
        logsumexp: Of the processed logits, [M].
        gathered: The token's processed logit, [M].
        column: Log-probabilities as they are delivered, [M].
    """

    logits: Tensor
    processed: Tensor | None = None
    logsumexp: Tensor | None = None
    gathered: Tensor | None = None
    column: Tensor | None = None


@dataclass(frozen=True)
class StageDifference:
    """A stretch of stages that gives other values than float64 does, given the same inputs.

    Attributes:
        start: The stage before it.
        end: The stage behind it.
        error: Root mean square difference at its end, nats, each at most 3.
        tokens: Which tokens differ, bool [M].
        equals: What the values are equal to instead, each by a recomputation that removes 90 % of the difference.
    """

    start: str
    end: str
    error: float
    tokens: Tensor
    equals: tuple[str, ...] = ()

    def __str__(self) -> str:
        first = int(self.tokens.nonzero()[0])
        hit = f"{int(self.tokens.sum())} of {self.tokens.numel()} tokens, the first {first}"
        same = f"; it equals {' and '.join(self.equals)}" if self.equals else ""
        return f"{self.start} → {self.end}: off by {self.error:.2g} nats in {hit}{same}"


def process(logits_MV: Tensor, ids_M: Tensor, processing: Processing, prompt: Tensor | None = None) -> Tensor:
    """Returns processed logits in float64, [M, V]; the chosen token always belongs to the support.

    Args:
        logits_MV: That each token was chosen from.
        ids_M: The tokens.
        processing: What is done.
        prompt: Ids in front of the first token; None: none.
    """
    z = _penalize(logits_MV.double().clone(), ids_M, processing, prompt)
    z /= processing.temperature or 1.0
    floor = torch.full_like(z[:, :1], -torch.inf)
    if processing.min_p > 0:
        floor = z.amax(1, keepdim=True) + torch.tensor(processing.min_p, dtype=z.dtype).log()
    if 0 < processing.top_k < z.shape[1]:
        floor = torch.maximum(floor, z.topk(processing.top_k).values[:, -1:])
    if processing.top_p < 1:
        kept = z.masked_fill(z < floor, -torch.inf).sort(1, descending=True).values
        probability = kept.softmax(1)
        last = (probability.cumsum(1) - probability < processing.top_p).sum(1, keepdim=True).clamp(min=1) - 1
        floor = torch.maximum(floor, kept.gather(1, last))
    own = z.gather(1, ids_M[:, None])
    return z.masked_fill(z < floor, -torch.inf).scatter(1, ids_M[:, None], own)


def _penalize(z: Tensor, ids: Tensor, processing: Processing, prompt: Tensor | None) -> Tensor:
    neutral = Processing()
    names = ("repetition_penalty", "frequency_penalty", "presence_penalty")
    if all(getattr(processing, name) == getattr(neutral, name) for name in names):
        return z
    chosen = torch.nn.functional.one_hot(ids, z.shape[1]).double()
    before = chosen.cumsum(0) - chosen
    seen = before > 0
    if prompt is not None:
        seen = seen | torch.zeros(z.shape[1], dtype=torch.bool).index_fill(0, prompt, True)
    factor = torch.where(z > 0, 1 / processing.repetition_penalty, processing.repetition_penalty)
    z = torch.where(seen, z * factor, z)
    return z - processing.frequency_penalty * before - processing.presence_penalty * (before > 0)


def recompute(logits_MV: Tensor, ids_M: Tensor, processing: Processing, prompt: Tensor | None = None) -> Stages:
    """Returns all stages from the logits, in float64."""
    processed = process(logits_MV, ids_M, processing, prompt)
    logsumexp, gathered = processed.logsumexp(1), processed.gather(1, ids_M[:, None])[:, 0]
    return Stages(logits_MV, processed, logsumexp, gathered, gathered - logsumexp)


def compare_stages(
    own: Stages, ids_M: Tensor, processing: Processing, prompt: Tensor | None = None, tolerance: float = ROUNDING
) -> list[StageDifference]:
    """Finds the stages that give other values than their own inputs imply, in order; empty where the half is right.

    Args:
        own: What the side hands out; its logits at least.
        ids_M: The tokens, one for each row of the logits.
        processing: How the side is to process them.
        prompt: Ids in front of the first token, for penalties.
        tolerance: Nats that rounding explains.

    Raises:
        ValueError: A stage speaks of another number of tokens, or of another vocabulary.
    """
    _check(own, ids_M)
    right = recompute(own.logits, ids_M, processing, prompt)
    found, start = list[StageDifference](), "logits"
    for stage in ("processed", "logsumexp", "gathered", "column"):
        value: Tensor | None = getattr(own, stage)
        wanted: Tensor | None = getattr(right, stage)
        if value is None or wanted is None:
            continue
        off = _off(value, wanted)
        hit = (off > tolerance) if off.dim() == 1 else (off > tolerance).any(1)
        if bool(hit.any()):
            error = float(off.square().mean().sqrt())
            equals = tuple(_equals(own, ids_M, processing, prompt, value)) if stage == "column" else ()
            found.append(StageDifference(_NAMES[start], _NAMES[stage], error, hit, equals))
        right, start = _continue(right, stage, value, ids_M), stage
    return found


_NAMES = {
    "logits": "logits",
    "processed": "processed logits",
    "logsumexp": "logsumexp",
    "gathered": "gathered value",
    "column": "column",
}


def _check(own: Stages, ids_M: Tensor) -> None:
    for field in fields(own):
        value: Tensor | None = getattr(own, field.name)
        shape = own.logits.shape if field.name in ("logits", "processed") else ids_M.shape
        if value is not None and (value.shape != shape or value.shape[0] != ids_M.numel()):
            raise ValueError(f"{field.name} has shape {list(value.shape)} for {ids_M.numel()} tokens")


def _continue(right: Stages, stage: str, value: Tensor, ids_M: Tensor) -> Stages:
    """The stages that follow from the side's own value of a stage."""
    own = value.double()
    if stage == "processed":
        gathered, logsumexp = own.gather(1, ids_M[:, None])[:, 0], own.logsumexp(1)
        return replace(right, processed=own, gathered=gathered, logsumexp=logsumexp, column=gathered - logsumexp)
    right = replace(right, **{stage: own})
    if right.gathered is None or right.logsumexp is None:
        return right
    return replace(right, column=right.gathered - right.logsumexp)


def _off(a: Tensor, b: Tensor) -> Tensor:
    """|difference|, each at most 3; 0 where both are the same infinity."""
    a, b = a.double(), b.double()
    return torch.where(a == b, 0.0, (a - b).abs().nan_to_num(CAP)).clamp(max=CAP)


def _equals(own: Stages, ids_M: Tensor, processing: Processing, prompt: Tensor | None, column: Tensor) -> Iterator[str]:
    """Names for what a column equals: of other settings, other ids, or fewer digits. Measured by recomputing."""
    right = recompute(own.logits, ids_M, processing, prompt).column
    before = float(_off(column, right).square().sum()) if right is not None else 0.0
    for name, guess in _guesses(own.logits, ids_M, processing, prompt):
        left = float(_off(column, guess).square().sum())
        if left <= (1 - _EXPLAINS) * before:
            yield f"{name} ({1 - left / before:.0%} of it)"


def _guesses(
    logits_MV: Tensor, ids_M: Tensor, processing: Processing, prompt: Tensor | None
) -> Iterator[tuple[str, Tensor]]:
    neutral, full = Processing(), logits_MV.double()
    changed = [one.name for one in fields(processing) if getattr(processing, one.name) != getattr(neutral, one.name)]
    settings: Sequence[tuple[str, Processing]] = [
        (f"that without {name}", replace(processing, **{name: getattr(neutral, name)})) for name in changed
    ]
    if len(changed) > 1:
        settings = [*settings, ("that of the raw logits", neutral)]
    for name, one in settings:
        yield name, _column(logits_MV, ids_M, one, prompt)
    for step in (-1, 1):
        yield f"that of the token {step:+d} from it", _column(logits_MV, ids_M.roll(-step), processing, prompt)
    right = _column(logits_MV, ids_M, processing, prompt)
    yield "that of the position before", right.roll(1)
    yield "that of the position behind", right.roll(-1)
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        yield f"its own numbers in {name}", right.to(dtype).double()
        yield f"that of logits in {name}", _column(full.to(dtype), ids_M, processing, prompt)
    yield "the logit itself", process(logits_MV, ids_M, processing, prompt).gather(1, ids_M[:, None])[:, 0]
    yield "the probability", right.exp()


def _column(logits_MV: Tensor, ids_M: Tensor, processing: Processing, prompt: Tensor | None) -> Tensor:
    z = process(logits_MV, ids_M, processing, prompt)
    return z.gather(1, ids_M[:, None])[:, 0] - z.logsumexp(1)
