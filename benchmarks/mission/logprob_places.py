"""A rank of the mission's log-probability checks, and how whole tensors are divided over ranks."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

PACKED = (0, 12, 32, 64)
"""Where the sequences of the packed row begin, and its end."""


@dataclass(frozen=True)
class Place:
    """A rank among tensor-parallel or context-parallel ranks; the other kind is one.

    Attributes:
        rank: Its rank.
        tp: Ranks that share the vocabulary.
        cp: Ranks that share each sequence.
        vocabulary: Number of tokens.
    """

    rank: int
    tp: int
    cp: int
    vocabulary: int

    @property
    def layout(self) -> str:
        """Its name: tp 1, tp 2, or cp 2."""
        return f"cp {self.cp}" if self.cp > 1 else f"tp {self.tp}"

    @functools.cached_property
    def alone(self) -> dist.ProcessGroup:
        """A group of this rank; all ranks ask for it at once."""
        groups = [dist.new_group([rank]) for rank in range(self.tp * self.cp)]
        own = groups[self.rank]
        assert isinstance(own, dist.ProcessGroup)
        return own

    @property
    def tp_group(self) -> dist.ProcessGroup:
        return dist.group.WORLD if self.cp == 1 else self.alone  # pyright: ignore[reportReturnType]

    @property
    def cp_group(self) -> dist.ProcessGroup | None:
        return dist.group.WORLD if self.cp > 1 else None

    @property
    def tp_rank(self) -> int:
        return self.rank if self.tp > 1 else 0

    @property
    def cp_rank(self) -> int:
        return self.rank if self.cp > 1 else 0

    @property
    def start(self) -> int:
        return self.tp_rank * (self.vocabulary // self.tp)

    @property
    def end(self) -> int:
        return self.start + self.vocabulary // self.tp

    @property
    def span(self) -> tuple[int, int]:
        return self.start, self.end

    def cut(self, whole: Tensor, bounds: tuple[int, ...] | None = None) -> Tensor:
        """This rank's positions and columns of a tensor [B, S, V], or of a packed row with bounds
        of sequences.
        """
        own = self._positions(bounds or (0, whole.shape[1]), self.cp_rank)
        return whole[:, own, self.start : self.end]

    def positions_of_ranks(self, length: int) -> Tensor:
        """Positions of a sequence in the order in which the ranks hold them."""
        return torch.tensor(
            [one for rank in range(self.cp) for one in self._positions((0, length), rank)]
        )

    def deal_tokens(self, tokens: Tensor) -> Tensor:
        """Tokens [B, S] as a model with context parallelism is given them."""
        if self.cp == 1:
            return tokens
        own = tokens[:, self._positions((0, tokens.shape[1]), self.cp_rank)]
        return DTensor.from_local(own, self._mesh, [Shard(1), Replicate()])

    def deal_logits(self, own: Tensor) -> DTensor:
        """This rank's logits as part of a DTensor."""
        shape = torch.Size((own.shape[0], own.shape[1] * self.cp, self.vocabulary))
        stride = torch.empty(shape, device="meta").stride()
        placements = [Shard(1), Shard(2)]
        return DTensor.from_local(
            own, self._mesh, placements, run_check=False, shape=shape, stride=stride
        )

    @functools.cached_property
    def _mesh(self) -> DeviceMesh:
        ranks = torch.arange(self.tp * self.cp).view(self.cp, self.tp)
        return DeviceMesh("cpu", ranks, mesh_dim_names=("cp", "tp"))

    def _positions(self, bounds: tuple[int, ...], rank: int) -> list[int]:
        """Of 2·CP pieces of each sequence the rank-th and the rank-th from the end."""
        found: list[int] = []
        for start, end in itertools.pairwise(bounds):
            pieces = torch.arange(start, end).chunk(2 * self.cp)
            found += [*pieces[rank].tolist(), *pieces[-1 - rank].tolist()]
        return found
