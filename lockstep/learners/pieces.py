"""One rank's pieces of a model's parameters, and their positions in the checkpoint's tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class TensorBox:
    """A part of a checkpoint tensor.

    Attributes:
        name: Name of the tensor.
        whole: Shape of the full tensor.
        offset: Start of the box.
        shape: Shape of the box.
        view: Maps memory laid out like the piece to the box's elements, in any shape, in the box's
            order.
    """

    name: str
    whole: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    view: Callable[[Tensor], Tensor]

    def read_box(self, laid_out: Tensor) -> Tensor:
        """The box, in its shape, from memory with the piece's layout."""
        return self.view(laid_out).reshape(self.shape)

    def write_box(self, laid_out: Tensor, numbers: Tensor) -> None:
        """Fills the box in memory with the piece's layout."""
        box = self.view(laid_out)
        box.copy_(numbers.view(box.shape))


@dataclass(frozen=True, eq=False)
class ParameterPiece(ABC):
    """A parameter, or this rank's shard of it; the optimizer updates it as one tensor.

    Attributes:
        name: Name of the parameter in its model.
        parameter: Parameter of the model.
        local: This rank's memory of it.
        boxes: Boxes of the checkpoint's tensors in it.
    """

    name: str
    parameter: nn.Parameter
    local: Tensor
    boxes: tuple[TensorBox, ...]

    @property
    @abstractmethod
    def cut_over(self) -> frozenset[str]:
        """Mesh dimensions that shard the parameter; FSDP joins names of a flattened mesh by "_"."""

    @abstractmethod
    def gather_tensors(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """Gathers the full tensors on every rank that holds a part of them; a collective.

        Args:
            dtype: Floating-point numbers are cast to it before gathering; None: no cast.
        """

    @abstractmethod
    def read_gradient(self) -> Tensor:
        """Gradient of this rank's backward passes; zeros if no output depends on the parameter."""


def find_local(parameter: nn.Parameter) -> Tensor:
    """This rank's memory of a parameter."""
    held = parameter.detach()
    if isinstance(held, DTensor):
        return held.to_local()
    return held


def compute_norm(
    tensors: Sequence[Tensor], device: torch.device, group: dist.ProcessGroup | None = None
) -> Tensor:
    """L2 norm of all tensors together, over the ranks of a group.

    Args:
        tensors: This rank's tensors; of ranks that hold the same shard, only one passes it.
        device: Device of the tensors.
        group: The ranks; None: this one.
    """
    square = nn.utils.get_total_norm(tensors).square().to(device)  # an empty norm is on the CPU
    if group is not None:
        dist.all_reduce(square, group=group)
    return square.sqrt()
