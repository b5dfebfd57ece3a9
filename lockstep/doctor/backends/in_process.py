"""Base of the backends in this process: a folder's model, in variants, with readable weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from torch import Tensor
from transformers import PreTrainedModel

from lockstep.config import Device
from lockstep.doctor.backends.variants import Alteration, Variants, flat, tensors
from lockstep.doctor.base import USUAL, Capability, Conditions, DType, Layout
from lockstep.errors import InputError
from lockstep.models.device import resolve_device
from lockstep.models.folder import context_of
from lockstep.models.open_kernels import open_kernels

CAPABILITIES: frozenset[Capability] = frozenset(("generate", "shaped", "batch_size", "modules"))
"""Capabilities of every model in this process."""


class InProcessBackend(ABC):
    """Part of `doctor.base.Backend`; scoring, drawing and the network are each backend's own.

    Args:
        folder: A Hugging Face folder.
        dtype: Of the computation.
        batch_size: Sequences side by side.
        alter: Done to the model when it is built.
        config: Fields that differ from the folder's configuration.
        device: Where it computes.

    Raises:
        ValueError: If the backend does not compute in that type.
    """

    held: ClassVar[DType | None]
    """The type in which weights are held; None: in that of the computation."""
    layout: ClassVar[Layout]
    """Default layout of a batch."""
    types: ClassVar[tuple[DType, ...]]
    """Supported compute dtypes."""
    opens_kernels: ClassVar[bool] = False
    """True if a model computes by the learner's kernels for a device."""
    name: str

    def __init__(
        self,
        folder: str,
        dtype: DType = "fp32",
        batch_size: int = 8,
        alter: Alteration | None = None,
        config: Mapping[str, Any] | None = None,
        device: Device = "cpu",
    ) -> None:
        if dtype not in self.types:
            known = " or ".join(self.types)
            raise InputError(f"the {self.name} learner computes in {known}; choose one of these, or the backend hf")
        self.device = resolve_device(device)
        self._variants = Variants(
            folder, self.held, alter, config, self.device, open_kernels if self.opens_kernels else None
        )
        self._usual = Conditions(dtype=dtype, batch_size=batch_size, layout=self.layout)
        self.context = context_of(self._variants.config())

    @abstractmethod
    def attention(self, conditions: Conditions) -> str:
        """The attention that the backend computes with, by its name in `transformers`."""

    def config(self) -> Mapping[str, Any]:
        return flat(self._variants.config())

    def settings(self) -> Mapping[str, Any]:
        return {
            "dtype": self._usual.dtype,
            "device": self.device.type,
            "kernel": self.attention(self._usual),
            "layout": self._usual.layout,
            "batch_size": self._usual.batch_size,
            "training": any(module.training for module in self.model(USUAL).modules()),
        }

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields names and tensors, on the CPU."""
        for name, tensor in tensors(self.model(USUAL)):
            yield name, tensor.cpu()

    def load(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        self._variants.load(stream)

    def close(self) -> None:  # noqa: B027 (nothing to do for most)
        """It has no processes of its own."""

    def model(self, conditions: Conditions) -> PreTrainedModel:
        """The model for some conditions."""
        asked = self._usual.but(conditions)
        return self._variants.model(asked, self.attention(asked))
