"""The interface of an inference backend; `samplers/<name>/backend.py` implements it.

Imports no torch.

A server that already runs implements only `config.backends.InferenceOptions`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from lockstep.config.backends import INFERENCE, InferenceOptions

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from lockstep.config import Computation, SamplerSection
    from lockstep.samplers.base import Sampler, WorkerSampler


class InferenceBackend(InferenceOptions["SamplerSection"]):
    """Interface between an inference backend with weight sync and the rest of Lockstep.

    A subclass implements the abstract members of this class and of `InferenceOptions`, and imports
    heavy modules inside its methods. Mark it `typing.final`, so that a type checker reports missing
    members.
    """

    is_self_checked: ClassVar[bool] = False
    """True if it decodes with Lockstep's own KV cache, so that models must pass the self-check."""

    threads: ClassVar[int | None] = None
    """Torch threads per worker on a CPU; None: its share of the run's threads."""

    @abstractmethod
    def weight_dtype(self, computation: Computation) -> torch.dtype:
        """Type of its weights, for a learner with this computation."""

    def cache_bytes(self, section: SamplerSection) -> int | None:
        """Bytes of the KV cache, if the section sets them; None: grows as needed."""
        if section.kv_cache_gib is None:
            return None
        return int(section.kv_cache_gib * 2**30)

    reserves_cache: ClassVar[bool] = False
    """True if it allocates its KV cache at start, so that it needs a size."""

    @abstractmethod
    def penalty_bytes(self, responses: int, vocabulary: int, penalizes: bool) -> int:
        """Bytes of the penalties' token counts for a number of concurrent sequences."""

    def read_gpu_memory(self) -> int:
        """Bytes of this process's first GPU."""
        import torch

        return torch.cuda.get_device_properties(0).total_memory

    def forgets_weights(self, section: SamplerSection) -> bool:
        """True if sleep drops a learner's weights, so that a weight sync must follow."""
        return False

    def packs_weights(self, computation: Computation) -> bool:
        """True if its kernels pack matrices; attestations then fingerprint only sampled columns."""
        return False

    def require_installed(self, section: SamplerSection, on_gpu: bool) -> None:
        """Raises InputError if this machine lacks what it needs on a GPU, or on the CPU."""

    @abstractmethod
    def build_sampler(
        self, folder: str, section: SamplerSection, computation: Computation
    ) -> WorkerSampler:
        """A sampler with its own weights, for a separate process.

        Args:
            folder: Folder of the model.
            section: Sizes, and options of the backend.
            computation: Device, type and kernels of the learner.
        """

    def wrap_model(
        self, lm: PreTrainedModel, section: SamplerSection, computation: Computation
    ) -> Sampler:
        """A sampler in this process that shares the weights of `lm`, such as the learner's.

        Only called if `in_process` is true. Otherwise like `build_sampler`.
        """
        raise AssertionError(f"{type(self).__name__} never runs in the calling process")


def find_backend(section: SamplerSection) -> InferenceBackend | None:
    """The backend that a section names; None for a server.

    Raises:
        InputError: The backend is unknown.
    """
    found = INFERENCE.find_backend(section.backend)
    assert isinstance(found, InferenceBackend) or found.is_server, (
        "a backend that receives weights declares both halves"
    )
    if isinstance(found, InferenceBackend):
        return found
    return None
