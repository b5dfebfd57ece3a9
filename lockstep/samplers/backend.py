"""The declaration of an inference backend; `samplers/<name>/backend.py` implements it.

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
    from lockstep.samplers.base import Sampler, Served


class InferenceBackend(InferenceOptions["SamplerSection"]):
    """Interface between an inference backend that takes weights and the rest of Lockstep.

    A subclass implements the abstract members of this class and of `InferenceOptions`, and imports
    heavy modules inside its methods. Mark it `typing.final`, so that a type checker reports members
    that are missing.
    """

    is_self_checked: ClassVar[bool] = False
    """True if it decodes with Lockstep's own KV cache, so that a model has to pass the self-check
    first.
    """

    threads: ClassVar[int | None] = None
    """Torch threads of a worker on a CPU; None: its share of the run's."""

    @abstractmethod
    def dtype(self, computation: Computation) -> torch.dtype:
        """The type in which it holds weights, for a learner that computes like this."""

    def cache_bytes(self, section: SamplerSection) -> int | None:
        """Bytes of the KV cache, if the section sets them; None: as many as sequences need."""
        if section.kv_cache_gib is None:
            return None
        return int(section.kv_cache_gib * 2**30)

    reserves_cache: ClassVar[bool] = False
    """True if it allocates its KV cache when it starts, so that it needs a size."""

    @abstractmethod
    def penalty_bytes(self, responses: int, vocabulary: int, penalizes: bool) -> int:
        """Bytes of the token counts that it keeps for penalties, for so many responses at a
        time.
        """

    def read_gpu_memory(self) -> int:
        """Bytes of this process's first GPU."""
        import torch

        return torch.cuda.get_device_properties(0).total_memory

    def forgets_weights(self, section: SamplerSection) -> bool:
        """True if it drops a learner's weights while it sleeps, so that it needs a weight sync
        after.
        """
        return False

    def packs(self, computation: Computation) -> bool:
        """True if its kernels pack matrices, of which an attestation then fingerprints sampled
        columns only.
        """
        return False

    def require_installed(self, section: SamplerSection, on_gpu: bool) -> None:
        """Raises InputError if this machine lacks what it needs to compute on a GPU, or on the
        CPU.
        """

    @abstractmethod
    def build(self, folder: str, section: SamplerSection, computation: Computation) -> Served:
        """A sampler with weights of its own, for a process of its own.

        Args:
            folder: Folder of the model.
            section: Sizes, and options of the backend.
            computation: Device, type and kernels of the learner.
        """

    def wrap(
        self, lm: PreTrainedModel, section: SamplerSection, computation: Computation
    ) -> Sampler:
        """A sampler in this process that shares the weights of `lm`, such as the learner's; else as
        `build`.

        Only called if `in_process` is true.
        """
        raise AssertionError(
            f"{type(self).__name__} says that it is never in the process that asks it"
        )


def find_backend(section: SamplerSection) -> InferenceBackend | None:
    """The backend that a section names; None where it is a server.

    Raises:
        InputError: There is no such backend.
    """
    found = INFERENCE.find(section.backend)
    assert isinstance(found, InferenceBackend) or found.is_server, (
        "what is given weights declares both halves"
    )
    if isinstance(found, InferenceBackend):
        return found
    return None
