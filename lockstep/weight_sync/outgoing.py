"""Weights on their way to a sampler: cast to its type, and fingerprinted as they leave."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from lockstep.weight_sync.buckets import Bucket, WeightPart
from lockstep.weight_sync.carriers import Route, open_carrier, unpack
from lockstep.weight_sync.fingerprints import Taken, read, take, take_columns


@dataclass(frozen=True)
class Sent:
    """Fingerprints of a tensor, as `Attestation` has them; `columns` of matrices only, where a receiver shows them."""

    whole: int
    columns: int | None


class HasWeights(Protocol):
    """A learner, or another holder of weights to send."""

    def weights(self) -> Iterator[tuple[str, Tensor]]: ...


class Sender(Protocol):
    """Sends weights from the processes that hold them. Receivers learn of each bucket from the caller.

    Attributes:
        route: The route that it has joined last; None: none yet.
        on_host: True if the weights lie in the host's memory, also where their processes have GPUs.
    """

    route: Route | None
    on_host: bool

    @property
    def places(self) -> tuple[str, ...]:
        """Files of shared memory that it fills."""
        ...

    def join(self, route: Route) -> None:
        """Opens its end of the route by which buckets go from now on."""
        ...

    def buckets(self, stream: Outgoing, columns: bool) -> Generator[Bucket]:
        """Fills buckets, and notes what was sent. A bucket's bytes stay until the one after the next is requested.

        Args:
            stream: The weights.
            columns: Take the fingerprints of columns, too.
        """
        ...

    def ship(self, bucket: Bucket) -> None:
        """Sends the bytes of the newest bucket; returns when all receivers have them."""
        ...

    def finish(self) -> None:
        """Gives the memory of the last buckets back, before engines take what they need to sample."""
        ...


@dataclass(frozen=True)
class _Stream:
    """Tensors that come as they are."""

    tensors: Iterable[tuple[str, Tensor]]

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.tensors


class Outgoing:
    """The learner's weights in the sampler's type, as they are sent; they can be iterated again.

    Args:
        learner: Has the weights.
        dtype: The sampler's type; None: any.
        sender: Sends them from other processes, which hold them; None: they are in this one.
    """

    def __init__(self, learner: HasWeights, dtype: torch.dtype | None, sender: Sender | None = None) -> None:
        self._sent, self._taken = dict[str, Sent](), dict[str, tuple[Taken, Taken | None]]()
        self.dtype, self.sender = dtype, sender
        self._learner = learner

    @classmethod
    def of(cls, stream: Iterable[tuple[str, Tensor]]) -> Outgoing:
        """A stream of tensors of this process, as they are."""
        return stream if isinstance(stream, Outgoing) else cls(_Stream(stream), None)

    @property
    def on_gpu(self) -> bool:
        """True if they lie on GPUs; a stream, which may be readable only once, counts as on the host."""
        if self.sender is not None:
            return not self.sender.on_host
        if isinstance(self._learner, _Stream):
            return False
        return any(tensor.is_cuda for _, tensor in islice(self._learner.weights(), 1))

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Yields names and tensors. Where another process sends them, a tensor may change once the next is taken."""
        if self.sender is None:
            yield from self._send()
            return
        route = Route("shared_memory", self.sender.places)
        self.sender.join(route)
        carrier = open_carrier(route)
        for bucket in self.sender.buckets(self, columns=True):
            yield from unpack(carrier, bucket, torch.device("cpu"))

    def parts(self) -> Iterator[WeightPart]:
        """The tensors of this process, which are not cast yet."""
        for name, tensor in self._learner.weights():
            yield WeightPart.whole(name, tensor, type_for(tensor, self.dtype))

    def _send(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._learner.weights():
            cast = tensor.to(type_for(tensor, self.dtype))
            self.note_taken(name, take(cast), cast)
            yield name, cast

    @property
    def sent(self) -> dict[str, Sent]:
        """Fingerprints of the sent tensors, by name; those of a weight sync are read together, in one transfer."""
        found = iter(read([one for both in self._taken.values() for one in both if one is not None]))
        for name, (_, columns) in self._taken.items():
            self._sent[name] = Sent(next(found), None if columns is None else next(found))
        self._taken = {}
        return self._sent

    def take_sent(self) -> dict[str, Sent]:
        """The fingerprints that were taken or noted since the last call."""
        sent, self._sent = self.sent, {}
        return sent

    def note_taken(self, name: str, taken: Taken, tensor: Tensor, columns: bool = True) -> None:
        """Notes the fingerprint of a tensor of this process, and takes that of its columns."""
        self._taken[name] = taken, take_columns(tensor) if columns and tensor.ndim == 2 else None

    def note(self, sent: Mapping[str, Sent]) -> None:
        """Notes fingerprints that another process has taken of what it sent."""
        self._sent |= sent


def type_for(tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """The type of a tensor for a sampler of this type, None: any; only floating-point numbers are cast."""
    return dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
