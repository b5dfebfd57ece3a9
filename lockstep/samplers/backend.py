"""The declaration of an inference backend; `samplers/<name>/backend.py` implements it. Imports no torch.

A server, which is there already, declares no more than `config.backends.InferenceOptions`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from lockstep.config.backends import INFERENCE, InferenceOptions

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from lockstep.config import Computation, SamplerSection
    from lockstep.samplers.base import Sampler, Served


class InferenceBackend(InferenceOptions):
    """All that the rest of the house knows of an inference backend that is given weights.

    A subclass declares what is abstract here and in `InferenceOptions`, and imports what is heavy inside
    of its methods. Mark it `typing.final`: a type checker then tells what it forgets.
    """

    @property
    def is_server(self) -> bool:
        return False

    @property
    @abstractmethod
    def is_self_checked(self) -> bool:
        """True if it decodes by Lockstep's own cache, so that a model is proven before it is opened."""

    @property
    @abstractmethod
    def threads(self) -> int | None:
        """Torch threads of a worker on a CPU; None: its share of the run's."""

    @abstractmethod
    def dtype(self, computation: Computation) -> torch.dtype:
        """The type in which it holds weights, by how the learner computes."""

    @abstractmethod
    def cache_bytes(self, section: SamplerSection) -> int | None:
        """Bytes of keys and values, where the section sets them; None: as many as sequences need."""

    @property
    def reserves_cache(self) -> bool:
        """True if it takes the memory of its cache when it starts, so that it needs a size."""
        return False

    @abstractmethod
    def penalty_bytes(self, responses: int, vocabulary: int, penalizes: bool) -> int:
        """Bytes of the tokens that so many responses at a time have had, which it keeps for penalties."""

    def forgets_weights(self, section: SamplerSection) -> bool:
        """True if it drops the weights of a learner while it sleeps, so that it needs them anew."""
        return False

    def packs(self, computation: Computation) -> bool:
        """True if it computes with packed matrices, of which an attestation has columns alone."""
        return False

    @abstractmethod
    def require_installed(self, section: SamplerSection, on_gpu: bool) -> None:
        """Raises InputError if this machine lacks what it needs to compute on a GPU, or on the CPU."""

    @abstractmethod
    def build(
        self,
        folder: str,
        section: SamplerSection,
        computation: Computation,
        raw_logprobs: bool,
    ) -> Served:
        """A sampler with weights of its own, for a process of its own.

        Args:
            folder: Of the model.
            section: Sizes, and options of the backend's.
            computation: Where, in which type and by which kernels the learner computes.
            raw_logprobs: Log-probabilities are of temperature 1 and of all tokens, for any sampling parameters.
        """

    def wrap(
        self, lm: PreTrainedModel, section: SamplerSection, computation: Computation, raw_logprobs: bool = False
    ) -> Sampler:
        """A sampler in this process over a model that is there, such as the learner's; the rest is as for `build`.

        Only asked where `in_process` says that it can be.
        """
        raise AssertionError(f"{type(self).__name__} says that it is never in the process that asks it")


def find_backend(section: SamplerSection) -> InferenceBackend | None:
    """The backend that a section names; None where it is a server.

    Raises:
        InputError: There is no such backend.
    """
    found = INFERENCE.find(section.backend)
    assert isinstance(found, InferenceBackend) or found.is_server, "what is given weights declares both halves"
    return found if isinstance(found, InferenceBackend) else None
