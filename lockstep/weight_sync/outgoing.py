"""Weights on their way to a sampler: cast to its type, and fingerprinted as they leave."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lockstep.distributed.meeting import Meeting
from lockstep.weight_sync.fingerprints import Taken, read, take, take_columns
from lockstep.weight_sync.transfer import Bucket, Inbox


@dataclass(frozen=True)
class Sent:
    """Fingerprints of a tensor, as `Attestation` has them; `columns` of matrices only."""

    whole: int
    columns: int | None


class HasWeights(Protocol):
    """A learner, or another holder of weights to send."""

    def weights(self) -> Iterator[tuple[str, Tensor]]: ...


class Sender(Protocol):
    """Sends weights from the process that holds them. Receivers learn of each bucket from the caller.

    Attributes:
        meeting: The process group that it has joined last; None: bytes go by shared memory.
    """

    meeting: Meeting | None

    def join(self, meeting: Meeting | None) -> None:
        """Joins the receivers' process group, by which bytes go from now on; None: they go by shared memory."""
        ...

    def buckets(self, stream: Outgoing) -> Generator[Bucket]:
        """Fills buckets, and notes what was sent. A bucket's bytes stay until the one after the next is requested."""
        ...

    def ship(self, bucket: Bucket) -> None:
        """Sends the bytes of the newest bucket; returns when all receivers have them."""
        ...


class Outgoing:
    """The learner's weights in the sampler's type, as they are sent; they can be iterated again.

    Args:
        learner: Has the weights.
        dtype: The sampler's type.
        sender: Sends them from another process, which holds them; None: they are in this one.
    """

    def __init__(self, learner: HasWeights, dtype: torch.dtype, sender: Sender | None = None) -> None:
        self._sent, self._taken = dict[str, Sent](), dict[str, tuple[Taken, Taken | None]]()
        self.dtype, self.sender = dtype, sender
        self._learner = learner

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Yields names and tensors. Where another process sends them, a tensor may change once the next is taken."""
        if self.sender is None:
            yield from self._send()
            return
        self.sender.join(None)
        inbox = Inbox()
        for bucket in self.sender.buckets(self):
            yield from inbox.unpack(bucket)

    def _send(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._learner.weights():
            cast = tensor.to(type_for(tensor, self.dtype))
            self._taken[name] = take(cast), take_columns(cast) if cast.ndim == 2 else None
            yield name, cast

    @property
    def sent(self) -> dict[str, Sent]:
        """Fingerprints of the sent tensors, by name; those of a weight sync are read together, in one transfer."""
        found = iter(read([one for both in self._taken.values() for one in both if one is not None]))
        for name, (_, columns) in self._taken.items():
            self._sent[name] = Sent(next(found), None if columns is None else next(found))
        self._taken.clear()
        return self._sent

    def note(self, sent: Mapping[str, Sent]) -> None:
        """Notes fingerprints that another process has taken of what it sent."""
        self._sent |= sent


def type_for(tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """The type of a tensor for a sampler of this type, None: any; only floating-point numbers are cast."""
    return dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
