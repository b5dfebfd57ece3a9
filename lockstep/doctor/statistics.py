"""What the log-probabilities of two sides say about the same tokens: figures, intervals, a verdict."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.batch import Batch


@dataclass(frozen=True)
class Compared:
    """Two sides on the same M tokens of B sequences, in order.

    Attributes:
        train: Log-probabilities of the training side, nats, float64 [M].
        infer: Of the inference side, float64 [M].
        lengths: Compared tokens of each sequence, int64 [B]; their sum is M.
        position: Of each token in its sequence, prompt included, int64 [M].
    """

    train: Tensor
    infer: Tensor
    lengths: Tensor
    position: Tensor

    @classmethod
    def of(cls, batch: Batch, train_N: Tensor, infer_N: Tensor) -> Compared:
        """The masked tokens of a batch."""
        mask = batch.mask
        counts = batch.per_sample(mask.long())
        return cls(train_N[mask].double(), infer_N[mask].double(), counts, batch.position[mask])

    @property
    def delta(self) -> Tensor:
        """Δ, training side minus inference side, nats, float64 [M]."""
        return self.train - self.infer

    @property
    def row(self) -> Tensor:
        """Of each token its sequence, int64 [M]."""
        return torch.repeat_interleave(torch.arange(self.lengths.numel()), self.lengths)

    @property
    def index(self) -> Tensor:
        """Of each token its place among the compared ones of its sequence, from 1, int64 [M]."""
        starts = torch.cumsum(self.lengths, 0) - self.lengths
        return torch.arange(self.train.numel()) - torch.repeat_interleave(starts, self.lengths) + 1
