"""How far apart the two sides of a case with a fault are, by plain scoring."""

from __future__ import annotations

from torch import Tensor

from benchmarks.doctor_faults.fault import Case
from benchmarks.doctor_faults.sides import Undo
from lockstep.doctor.base import USUAL, Conditions
from lockstep.types import Request

ALONE = Undo(batch_size=1, what="alone")


def some(requests: tuple[Request, ...]) -> list[Request]:
    """The shortest and the longest: one pass of rows that are padded, some of which fill windows, tables and splits."""
    ordered = sorted(requests, key=lambda request: len(request.tokens))
    return ordered[:2] + ordered[-6:]


def gaps(case: Case, train: Conditions = USUAL, infer: Conditions = USUAL) -> Tensor:
    """|Δ| of what the one side drew with and what the other scores, nats, of each generated token."""
    batch = case.infer.generate(some(case.requests), case.sampling, infer)
    return (case.train.score(batch, train) - batch["sampler_logprob"])[batch.mask].abs()


def mean(gap_N: Tensor) -> float:
    return float(gap_N.mean())
