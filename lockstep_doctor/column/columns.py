"""Two columns of log-probabilities of the same tokens, as plain arrays, as a dump of any program has them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep_doctor.statistics import Compared


@dataclass(frozen=True)
class TokenColumns:
    """Two sides' log-probabilities of N entries in B rows, one row behind the other.

    Attributes:
        train: Log-probabilities of the training side, nats, float64 [N].
        infer: Of the inference side, float64 [N].
        mask: True for tokens that were generated, bool [N]; the others are not compared.
        offsets: Where each row begins, and N: int64 [B + 1].
        ids: Token ids, int64 [N]; None where it is unknown, as for all that follows.
        starts: Position in its sequence of each row's first entry, int64 [B]; None: 0, the rows have their prompts.
        prompt_lengths: Tokens of each prompt, int64 [B]; None: what is in front of the first token generated.
        versions: Of the weights that generated each row, float64 [B].
        temperatures: Each row was sampled at, float64 [B].
        top_ps: Each row was sampled with, float64 [B].
        clusters: Rows with the same number answer the same prompt, int64 [B].
    """

    train: Tensor
    infer: Tensor
    mask: Tensor
    offsets: Tensor
    ids: Tensor | None = None
    starts: Tensor | None = None
    prompt_lengths: Tensor | None = None
    versions: Tensor | None = None
    temperatures: Tensor | None = None
    top_ps: Tensor | None = None
    clusters: Tensor | None = None

    def __post_init__(self) -> None:
        entries, rows = self.train.numel(), self.offsets.numel() - 1
        per_entry = {"infer": self.infer, "mask": self.mask, "ids": self.ids}
        per_row = {
            "starts": self.starts,
            "prompt_lengths": self.prompt_lengths,
            "versions": self.versions,
            "temperatures": self.temperatures,
            "top_ps": self.top_ps,
            "clusters": self.clusters,
        }
        for wanted, columns in ((entries, per_entry), (rows, per_row)):
            for name, column in columns.items():
                if column is not None and column.shape != (wanted,):
                    raise ValueError(f"{name} has shape {list(column.shape)} for {entries} entries in {rows} rows")
        if rows < 0 or int(self.offsets[0]) or int(self.offsets[-1]) != entries or bool((self.lengths < 0).any()):
            raise ValueError(f"offsets must rise from 0 to {entries}, the number of entries")

    @property
    def lengths(self) -> Tensor:
        """Entries of each row, int64 [B]."""
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def row(self) -> Tensor:
        """Row of each entry, int64 [N]."""
        return torch.repeat_interleave(torch.arange(self.lengths.numel()), self.lengths)

    @property
    def position(self) -> Tensor:
        """Position of each entry in its sequence, int64 [N]."""
        entry = torch.arange(self.train.numel()) - self.offsets[:-1][self.row]
        return entry if self.starts is None else entry + self.starts[self.row]

    def compare(self) -> Compared:
        """Both sides on the tokens that were generated."""
        lengths = torch.zeros_like(self.lengths).index_add_(0, self.row, self.mask.long())
        return Compared(
            self.train[self.mask].double(),
            self.infer[self.mask].double(),
            lengths,
            self.position[self.mask],
            self.clusters,
        )
