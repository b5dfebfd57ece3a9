"""The interface of a backend, and the conditions under which it computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from torch import Tensor, nn

from lockstep.config import DType
from lockstep.core.batch import Batch
from lockstep.core.types import Request, SamplingParams

Side = Literal["train", "infer"]
KernelName = Literal["eager", "sdpa"]
BackendCapability = Literal[
    "generate",  # draws responses and returns their log-probabilities
    "shaped",  # rescores with a temperature, filters and penalties
]


@dataclass(frozen=True)
class BackendConditions:
    """Overrides of a backend's usual computation; a backend ignores those that it does not support.

    Attributes:
        dtype: Type of the computation; None: the backend's own.
        fresh: Whether to drop all caches first.
    """

    dtype: DType | None = None
    batch_size: int | None = None
    kernel: KernelName | None = None
    fresh: bool = False

    def override_with(self, other: BackendConditions) -> BackendConditions:
        """These conditions, overridden by those that `other` sets."""
        return replace(
            other, **{name: usual for name, usual in vars(self).items() if not vars(other)[name]}
        )


USUAL = BackendConditions()


class Backend(Protocol):
    """One side of a comparison: scores tokens with a model, and may generate with it."""

    name: str

    @property
    def capabilities(self) -> frozenset[BackendCapability]: ...

    @property
    def context(self) -> int:
        """Length of the longest sequence that the model accepts."""
        ...

    @property
    def network(self) -> nn.Module | None:
        """The model; None if it is in a different process."""
        ...

    def list_settings(self) -> Mapping[str, Any]:
        """Returns all known settings that affect its numbers: dtype, kernel, training (mode),
        batch_size, layout, tensor_parallel_size (above 1), kv_dtype, quantization.
        """
        ...

    def score(self, batch: Batch, conditions: BackendConditions = USUAL) -> Tensor:
        """Scores the masked tokens under `batch.sampling` (None: temperature 1, all tokens) by
        prefill.

        Returns:
            Log-probabilities of the masked tokens, nats, fp32 [N]; 0 elsewhere.
        """
        ...

    def generate(
        self,
        requests: Sequence[Request],
        sampling: SamplingParams,
        conditions: BackendConditions = USUAL,
    ) -> Batch:
        """Generates like `Sampler.generate`; `sampler_logprob` comes from decoding."""
        ...

    def close(self) -> None: ...
