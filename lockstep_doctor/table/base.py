"""Interface of a backend, and the conditions under which it can be made to compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from torch import Tensor, nn

from lockstep.config import DType
from lockstep.core.batch import Batch
from lockstep.core.types import Request, SamplingParams

Side = Literal["train", "infer"]
Kernel = Literal["eager", "sdpa"]
Capability = Literal[
    "generate",  # draws responses, with the log-probabilities that it drew with
    "shaped",  # rescores under a temperature, filters and penalties
]


@dataclass(frozen=True)
class Conditions:
    """Deviations from how a backend usually computes; a backend disregards those that it has no
    choice in.

    Attributes:
        dtype: Of the computation; None: the backend's own.
        fresh: Drop every cache first.
    """

    dtype: DType | None = None
    batch_size: int | None = None
    kernel: Kernel | None = None
    fresh: bool = False

    def but(self, other: Conditions) -> Conditions:
        """These, and over them what the other ones say."""
        return replace(
            other, **{name: usual for name, usual in vars(self).items() if not vars(other)[name]}
        )


USUAL = Conditions()


class Backend(Protocol):
    """One side of a comparison: something that scores tokens with a model, and perhaps generates
    with it.
    """

    name: str

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    @property
    def context(self) -> int:
        """The longest sequence that the model reads."""
        ...

    @property
    def network(self) -> nn.Module | None:
        """The model; None: another process has it."""
        ...

    def settings(self) -> Mapping[str, Any]:
        """Returns all known settings that shape its numbers: dtype, kernel, training (mode),
        batch_size, layout, tensor_parallel_size (of more than one rank), kv_dtype, quantization.
        """
        ...

    def score(self, batch: Batch, conditions: Conditions = USUAL) -> Tensor:
        """Scores the masked tokens under `batch.sampling` (None: temperature 1, all tokens) by
        prefill.

        Returns:
            Log-probabilities of the masked tokens, nats, fp32 [N]; 0 elsewhere.
        """
        ...

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions = USUAL
    ) -> Batch:
        """Generates like `Sampler.generate`; `sampler_logprob` comes from its decoding."""
        ...

    def close(self) -> None: ...
