"""A disagreement under examination: two sides, what was drawn, and the counter-settings that are applied to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lockstep.batch import Batch
from lockstep.doctor.base import USUAL, Backend, Conditions, DType, Kernel, Scores, Side
from lockstep.types import Request, SamplingParams

FINEST: tuple[DType, ...] = ("fp32", "fp16", "bf16")
_DUST = 1.5e-5
"""Nats: what fp32 makes where sums are made in quite another order, as a recurrence does in place of a scan."""
_ANOTHER = 5
"""So many times farther from the exact numbers than the plain kernel, and a kernel computes another thing."""
_CLIP = 3.0
"""Nats: no single token weighs more than one that is off by so much."""


@dataclass(frozen=True)
class View:
    """A side, with the counter-settings that are applied to it.

    Attributes:
        backend: What computes.
        conditions: It computes under.
        tensors: It is given before it computes, and which are taken back afterwards.
        repeats: Passes that are averaged.
        noise: Size of the difference of two of them, nats.
        lag: Positions by which its numbers are moved to the right.
        prefill: Take the prefill scores of what it drew itself, too, not what its decoding said.
        corrections: Added to its numbers.
    """

    backend: Backend
    conditions: Conditions = USUAL
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    repeats: int = 1
    noise: float = 0.0
    lag: int = 0
    prefill: bool = False
    corrections: tuple[Correction, ...] = ()

    def under(self, conditions: Conditions) -> View:
        """The same under further conditions."""
        return replace(self, conditions=self.conditions.but(conditions))

    @property
    def dtype(self) -> DType:
        """It computes in."""
        return self.conditions.dtype or self.backend.settings()["dtype"]

    def can(self, *capabilities: str) -> bool:
        """Whether the backend has all of these."""
        return self.backend.capabilities.issuperset(capabilities)

    def scores(self, batch: Batch, conditions: Conditions = USUAL) -> Scores:
        """By prefill, under the view's conditions and these."""
        with self.holding():
            return self.backend.score(batch, self.conditions.but(conditions))

    def score(self, batch: Batch, conditions: Conditions = USUAL) -> Tensor:
        """The numbers, with all counter-settings but what only decoding has, [N]."""
        total = sum(self.scores(batch, conditions).logprob.double() for _ in range(self.repeats)) / self.repeats
        return self.corrected(batch, torch.as_tensor(total))

    def corrected(self, batch: Batch, column_N: Tensor) -> Tensor:
        """A column with the lag and the corrections."""
        moved = torch.roll(column_N.double(), self.lag) if self.lag else column_N.double()
        bare = replace(self, corrections=())
        return moved + sum((correction(bare, batch) for correction in self.corrections), torch.zeros_like(moved))

    def drawn(self, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions = USUAL) -> Batch:
        """Responses under the view's conditions and these."""
        with self.holding():
            return self.backend.generate(requests, sampling, self.conditions.but(conditions))

    def plus(self, correction: Correction) -> View:
        """The same with one correction more."""
        return replace(self, corrections=(*self.corrections, correction))

    def holding(self) -> AbstractContextManager[None]:
        """While the backend holds the view's tensors."""
        return self.backend.holding(self.tensors) if self.tensors else nullcontext()


Correction = Callable[[View, Batch], Tensor]
"""From a side, and what was drawn, to what has to be added to its numbers, float64 [N], nats."""


@dataclass(frozen=True)
class Case:
    """What is examined. Tensors of a case are never changed; another counter-setting is another case.

    Attributes:
        train: The side that trains.
        infer: The side that drew.
        witness: Plain `transformers`, the folder as it is.
        requests: What was asked for.
        sampling: How it was drawn.
        left_out: Tokens that are not compared any more, bool [N]; None: none.
        memo: What was drawn, and its floors, for cases made of this one.
    """

    train: View
    infer: View
    witness: Backend
    requests: Sequence[Request]
    sampling: SamplingParams
    left_out: Tensor | None = None
    memo: dict[Hashable, Any] = field(default_factory=dict)

    @cached_property
    def drawn(self) -> Batch:
        """What the inference side draws, its counter-settings applied."""
        key = ("drawn", self.infer.conditions, *((name, id(tensor)) for name, tensor in self.infer.tensors.items()))
        if key not in self.memo:
            self.memo[key] = self.infer.drawn(self.requests, self.sampling)
        return self.memo[key]

    @cached_property
    def train_N(self) -> Tensor:
        """What the training side says about it, float64 [N]."""
        return self.train.score(self.scored("train"))

    @cached_property
    def infer_N(self) -> Tensor:
        """What the inference side says about it, float64 [N]."""
        if self.infer.prefill:
            return self.infer.score(self.scored("infer"))
        return self.infer.corrected(self.drawn, self.drawn["sampler_logprob"])

    @cached_property
    def compared(self) -> Tensor:
        """Which tokens are compared, bool [N]."""
        return self.drawn.mask if self.left_out is None else self.drawn.mask & ~self.left_out

    @cached_property
    def delta(self) -> Tensor:
        """Δ, training side minus inference side, float64 [N]; 0 where nothing is compared."""
        return torch.where(self.compared, apart(self.train_N, self.infer_N), 0.0)

    @cached_property
    def gap(self) -> float:
        """Size of the disagreement, nats."""
        return size(self.delta[self.compared])

    @cached_property
    def floor_N(self) -> Tensor:
        """What rounding alone makes where both sides compute in the finer of their types, |Δ|, float64 [N]."""
        types: list[DType] = [view.dtype for view in (self.train, self.infer)]
        finer = min(types, key=FINEST.index)
        key = ("floor", id(self.drawn), finer)
        if key not in self.memo:
            self.memo[key] = math.sqrt(2) * rounding(self.witness, self.drawn, finer)
        return self.memo[key]

    @cached_property
    def floor(self) -> float:
        """Its size, nats, with what averaging leaves of noise."""
        noise = [view.noise / math.sqrt(view.repeats) for view in (self.train, self.infer)]
        return math.hypot(max(size(self.floor_N[self.compared]), _DUST), *noise)

    @property
    def farthest(self) -> Tensor:
        """The sequence that the sides disagree most about, [T]."""
        off_B = self.drawn.per_sample(self.delta.nan_to_num(_CLIP).clamp(-_CLIP, _CLIP).square())
        return self.drawn.sequences()[int(off_B.argmax())]

    def side(self, side: Side) -> View:
        """One of the two."""
        return self.train if side == "train" else self.infer

    def with_side(self, side: Side, view: View) -> Case:
        """The same with another view of a side."""
        return replace(self, train=view) if side == "train" else replace(self, infer=view)

    def without(self, tokens_N: Tensor) -> Case:
        """The same with fewer tokens compared."""
        return replace(self, left_out=tokens_N if self.left_out is None else self.left_out | tokens_N)

    def scored(self, side: Side) -> Batch:
        """The draw as a side scores it: under the distribution that was sampled from, where it can."""
        return self.drawn if self.side(side).can("shaped") else replace(self.drawn, sampling=None)

    def numbers(self, side: Side) -> Tensor:
        """What a side says, float64 [N]."""
        return self.train_N if side == "train" else self.infer_N


Counter = Callable[[Case], Case]
"""A counter-setting: what would have to be otherwise for a cause not to act."""


def apart(a: Tensor, b: Tensor) -> Tensor:
    """a − b, and 0 where both are the same infinity."""
    return torch.where(a == b, 0.0, a.double() - b.double())


def size(delta: Tensor) -> float:
    """Root mean square of |Δ|, each at most 3 nats; so it is robust, and infinities count."""
    if not delta.numel():
        return 0.0
    clipped = torch.nan_to_num(delta.double().abs(), nan=_CLIP, posinf=_CLIP).clamp(max=_CLIP)
    return float(clipped.square().mean().sqrt())


def rounding(witness: Backend, batch: Batch, dtype: DType) -> Tensor:
    """How far the witness moves if it computes in a type; in fp32, if it computes in another order. |Δ| [N].

    By its usual kernel; by the plain one where the usual one does something else than to round.
    """
    exact = witness.score(batch, Conditions(layout="alone", kernel="eager")).logprob.double()

    def moved(kernel: Kernel | None) -> Tensor:
        return (witness.score(batch, Conditions(dtype=dtype, kernel=kernel)).logprob.double() - exact).abs()

    usual = moved(None)
    if size(usual[batch.mask]) <= _ANOTHER * _DUST:
        return usual
    plain = moved("eager")
    return plain if size(usual[batch.mask]) > _ANOTHER * size(plain[batch.mask]) else usual


def first_drawn(batch: Batch) -> Tensor:
    """The first token of each response, bool [N]."""
    before = torch.cat([torch.zeros(1, dtype=torch.bool), batch.mask[:-1]])
    return batch.mask & (~before | (batch.position == 0))


def own_logits(view: View, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each sequence, from a side's own network alone: its logits [T, V], and its masked tokens' indices [M]."""
    with view.holding():
        network = view.backend.network(view.conditions)
        for tokens, mask in zip(batch.sequences(), batch.sequences("mask"), strict=True):
            yield network.logits(tokens), mask.nonzero().squeeze(-1)
