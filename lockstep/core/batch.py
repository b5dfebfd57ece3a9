"""Ragged batches: flat tokens plus lengths, with named columns; no padding between processes.

Legend: N flat tokens of all sequences, B sequences. Every per-token column describes its own token
(see `align`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from lockstep.core.types import SamplingParams, ValuePositions

PATH = "path"
"""The per-token column of episodes whose history was rewritten: the number of the path in its row.

A row then holds its paths end to end, each a sequence that the policy read from its beginning; the
column rises from 0. Losses and advantages are of rows, while models and samplers read paths.
"""


@dataclass(frozen=True)
class TokenPlaces:
    """The place of each token: its sequence and its position in that sequence, int64 [N] each."""

    row: Tensor
    position: Tensor

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> TokenPlaces:
        """The same with `change` applied to each tensor."""
        return TokenPlaces(change(self.row), change(self.position))


@dataclass(frozen=True)
class Batch:
    """Sequences laid end to end.

    Attributes:
        tokens: Token ids, int64 [N].
        lengths: Tokens of each sequence, int64 [B], on the CPU; they sum to N.
        token: Per-token columns, [N] or [N, …]. `mask` is True for tokens that the policy chose and
            is trained on.
        sample: Per-sequence columns, each [B].
        sampling: The distribution that the masked tokens were sampled from; a learner scores under
            the same distribution.
        group_size: Number of neighboring sequences that belong together, such as 2 for a pair;
            micro-batches and rank shares never split a group.
        top_k: 0 if a learner scores the tokens themselves; else the number of likeliest tokens that
            it returns at each position.
        entropy: Whether a learner also returns the entropy at each masked token.
        values: The values that a critic returns, see `ValuePositions`.
        places: Row and position of each token, cached on the tokens' device; None means computed at
            each use.
    """

    tokens: Tensor
    lengths: Tensor
    token: dict[str, Tensor] = field(default_factory=dict)
    sample: dict[str, Tensor] = field(default_factory=dict)
    sampling: SamplingParams | None = None
    group_size: int = 1
    top_k: int = 0
    entropy: bool = True
    values: ValuePositions = "all"
    places: TokenPlaces | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if int(self.lengths.sum()) != self.tokens.numel():
            raise ValueError(
                f"lengths add up to {int(self.lengths.sum())}, but there are "
                f"{self.tokens.numel()} tokens"
            )
        if len(self) % self.group_size:
            raise ValueError(
                f"{len(self)} sequences are not divisible into groups of {self.group_size}"
            )
        for name, column in self.token.items():
            if column.shape[0] == len(self) != self.tokens.numel():
                raise ValueError(
                    f"token column '{name}' has one value for each of {len(self)} sequences, but "
                    f"needs one for each of {self.tokens.numel()} tokens, such as "
                    f"{name}[batch.row]"
                )
            if column.shape[0] != self.tokens.numel():
                raise ValueError(
                    f"token column '{name}' has {column.shape[0]} rows for {self.tokens.numel()} "
                    "tokens"
                )
        for name, column in self.sample.items():
            if column.shape[0] != len(self):
                raise ValueError(
                    f"sample column '{name}' has {column.shape[0]} rows for {len(self)} sequences"
                )

    def __len__(self) -> int:
        return self.lengths.numel()

    def __getitem__(self, name: str) -> Tensor:
        """A column by name, [N] or [B]."""
        for columns in (self.token, self.sample):
            if name in columns:
                return columns[name]
        raise KeyError(
            f"no column '{name}'; token columns: {sorted(self.token)}; sample columns: "
            f"{sorted(self.sample)}"
        )

    @property
    def mask(self) -> Tensor:
        """Trainable tokens, bool [N]."""
        return self["mask"]

    @property
    def mask_indices(self) -> Tensor:
        """Indices of trainable tokens, int64 [M], on the mask's device; synchronizes with it."""
        return self.mask.nonzero().squeeze(-1)

    @property
    def starts(self) -> Tensor:
        """Index of each sequence's first token, int64 [B], on the CPU."""
        return torch.cumsum(self.lengths, 0) - self.lengths

    @property
    def row(self) -> Tensor:
        """Sequence index of each token, int64 [N], on the device of the tokens."""
        if self.places is not None:
            return self.places.row
        return find_rows(self.lengths, self.tokens.numel()).to(self.tokens.device)

    @property
    def position(self) -> Tensor:
        """Index of each token within its sequence or path, int64 [N], on the tokens' device."""
        if self.places is not None:
            return self.places.position
        lengths = self.path_lengths
        return find_positions(lengths, self.tokens.numel()).to(self.tokens.device)

    @property
    def path_lengths(self) -> Tensor:
        """Tokens of each path, int64, on the CPU; without the column `PATH`, the lengths."""
        if PATH not in self.token:
            return self.lengths
        pair_N2 = torch.stack(
            [find_rows(self.lengths, self.tokens.numel()), self.token[PATH].cpu()]
        )
        return torch.unique_consecutive(pair_N2, dim=1, return_counts=True)[1]

    @property
    def group_lengths(self) -> Tensor:
        """Tokens of each group of sequences, int64 [B / group_size], on the CPU."""
        return self.lengths.view(-1, self.group_size).sum(1)

    def keep_places(self) -> Self:
        """The same batch with `places` cached."""
        if self.places is not None:
            return self
        return replace(self, places=TokenPlaces(self.row, self.position))

    def rows_of(self, groups: Sequence[int]) -> list[int]:
        """The sequences of these groups, in order."""
        rows = list[int]()
        for group in groups:
            rows += range(group * self.group_size, (group + 1) * self.group_size)
        return rows

    def split_paths(self) -> Batch:
        """The paths as sequences of their own, with the per-token columns only."""
        if PATH not in self.token:
            return self
        token = {name: column for name, column in self.token.items() if name != PATH}
        lengths = self.path_lengths
        return replace(self, lengths=lengths, token=token, sample={}, group_size=1, places=None)

    def with_columns(
        self, token: dict[str, Tensor] | None = None, sample: dict[str, Tensor] | None = None
    ) -> Batch:
        """The same sequences with columns added or replaced."""
        return replace(
            self, token={**self.token, **(token or {})}, sample={**self.sample, **(sample or {})}
        )

    def select(self, rows: Tensor | Sequence[int]) -> Batch:
        """The sequences `rows`, in that order, with all their columns.

        Raises:
            ValueError: The selection would split a group.
        """
        rows = torch.as_tensor(rows, dtype=torch.int64)
        if self.group_size > 1:
            groups = rows[:: self.group_size] // self.group_size
            if not torch.equal(rows, torch.tensor(self.rows_of(groups.tolist()))):
                raise ValueError(f"groups of {self.group_size} sequences must stay together")
        lengths = self.lengths[rows]
        starts = torch.repeat_interleave(
            self.starts[rows] - (torch.cumsum(lengths, 0) - lengths), lengths
        )
        index = (torch.arange(int(lengths.sum())) + starts).to(self.tokens.device)
        return replace(
            self,
            tokens=self.tokens[index],
            lengths=lengths,
            token={name: column[index.to(column.device)] for name, column in self.token.items()},
            sample={name: column[rows.to(column.device)] for name, column in self.sample.items()},
            places=None,
        )

    def split(self, rows: int) -> list[Batch]:
        """Consecutive pieces of `rows` sequences; the last may be smaller."""
        return [self.select(range(i, min(i + rows, len(self)))) for i in range(0, len(self), rows)]

    def sequences(self, name: str | None = None) -> list[Tensor]:
        """The tokens, or a per-token column, as one tensor per sequence."""
        return list(
            torch.split(self.tokens if name is None else self.token[name], self.lengths.tolist())
        )

    def per_sample(self, column_N: Tensor) -> Tensor:
        """Sums a per-token column over each sequence. Returns [B]."""
        return column_N.new_zeros(len(self)).index_add_(0, self.row, column_N)

    def to(self, device: torch.device | str) -> Self:
        """The batch with tokens and columns on `device`; lengths stay on the CPU."""
        return self.map(lambda column: column.to(device))

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same batch with `change` applied to each tensor except the lengths."""
        return replace(
            self,
            tokens=change(self.tokens),
            token={name: change(column) for name, column in self.token.items()},
            sample={name: change(column) for name, column in self.sample.items()},
            places=None if self.places is None else self.places.map_tensors(change),
        )


def find_rows(lengths: Tensor, size: int) -> Tensor:
    """Sequence index of each of `size` tokens, on the CPU. Returns int64 [N]."""
    return torch.repeat_interleave(torch.arange(lengths.numel()), lengths, output_size=size)


def find_positions(lengths: Tensor, size: int) -> Tensor:
    """Position of each of `size` tokens within its sequence, on the CPU. Returns int64 [N]."""
    starts = torch.repeat_interleave(torch.cumsum(lengths, 0) - lengths, lengths, output_size=size)
    return torch.arange(size) - starts


def concat_batches(batches: Sequence[Batch]) -> Batch:
    """Lays batches end to end; all must have the same columns and request the same outputs."""
    first = batches[0]
    if any(_read_join_key(other) != _read_join_key(first) for other in batches[1:]):
        raise ValueError(
            "batches with different columns, groups, sampling parameters or outputs cannot be "
            "joined"
        )
    return replace(
        first,
        tokens=torch.cat([b.tokens for b in batches]),
        lengths=torch.cat([b.lengths for b in batches]),
        token={name: torch.cat([b.token[name] for b in batches]) for name in first.token},
        sample={name: torch.cat([b.sample[name] for b in batches]) for name in first.sample},
        places=None,
    )


def _read_join_key(batch: Batch) -> tuple[object, ...]:
    """Everything that batches must share to be joined."""
    columns = batch.token.keys(), batch.sample.keys()
    return columns, batch.group_size, batch.sampling, batch.top_k, batch.entropy, batch.values
