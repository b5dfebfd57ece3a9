"""Specs of workers: small picklable values from which any process builds the worker's object."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from lockstep.cluster.self_check import require_proof
from lockstep.config import Computation, LearnerSection, Optimizer, SamplerSection, user_code
from lockstep.config.backends import list_engines
from lockstep.core.errors import InputError
from lockstep.core.types import HeadKind
from lockstep.distributed.ranks import ALONE, RankMesh
from lockstep.learners import backend as learners
from lockstep.learners.rank import RankLearner
from lockstep.models.device import load_on_device, resolve_device
from lockstep.models.folder import find_context_length, read_config
from lockstep.models.heads import PLAIN
from lockstep.samplers import backend as samplers
from lockstep.samplers.backend import InferenceBackend
from lockstep.samplers.base import Sampler, WorkerSampler
from lockstep.samplers.cache_budget import CacheBudget


@dataclass(frozen=True)
class LearnerSpec:
    """A learner: its weights, head, computation and optimizer (without one it only scores).

    Attributes:
        code: User file that defines losses.
    """

    model: str
    head: HeadKind
    section: LearnerSection
    optimizer: Optimizer | None
    seed: int
    code: Path | None = None

    @property
    def frozen(self) -> LearnerSpec:
        """The same model as a frozen scorer, without optimizer and adapters."""
        return replace(self, optimizer=None, section=self.section.model_copy(update={"lora": None}))

    def build(self, ranks: RankMesh = ALONE) -> RankLearner:
        """Builds it with the section's training backend.

        Raises:
            InputError: The backend is unknown.
        """
        backend = learners.find_backend(self.section)
        if self.code is not None:
            user_code.import_file(self.code)
        return backend.build_learner(
            self.model, self.head, self.seed, self.section, self.optimizer, ranks
        )


@dataclass(frozen=True)
class SamplerSpec:
    """A sampler with its own weights, with the learner's device, type and kernels.

    Attributes:
        budget: Memory that the plan leaves for its KV cache; None: it shares no GPU, or its section
            sets the size.
    """

    model: str
    section: SamplerSection
    learner: Computation
    budget: CacheBudget | None = None

    def build(self) -> WorkerSampler:
        """Builds it with the section's inference backend.

        Raises:
            InputError: The backend is unknown, or cannot receive weights.
        """
        section = self.section
        if self.budget is not None and resolve_device(self.learner.device).type == "cuda":
            section = self.budget.apply_to_section(section, self.backend.read_gpu_memory())
        return self.backend.build_sampler(self.model, section, self.learner)

    def open_in_process(self) -> Sampler:
        """Builds it in this process; only if `section.in_process`."""
        lm = load_on_device(self.model, self.learner)
        return self.backend.wrap_model(lm, self.section, self.learner)

    def require_proof(self) -> None:
        """Runs the self-check if the backend uses Lockstep's own KV cache; raises ModelError."""
        if self.backend.is_self_checked:
            require_proof(self.model, self.learner, PLAIN)

    @property
    def context_tokens(self) -> int:
        """Longest sequence of the sampler."""
        context = find_context_length(read_config(self.model))
        return min(context, self.section.context_limit or context)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the sampler's weights."""
        return self.backend.weight_dtype(self.learner)

    @property
    def backend(self) -> InferenceBackend:
        """The section's inference backend."""
        backend = samplers.find_backend(self.section)
        if backend is None:
            engines = " or ".join(list_engines())
            raise InputError(
                f"{self.section.backend} cannot receive weights; set sampler.backend to {engines}"
            )
        return backend


def require_sampler(section: SamplerSection, computation: Computation) -> None:
    """Raises InputError if this machine lacks what the section's backend needs."""
    backend = samplers.find_backend(section)
    if backend is not None:
        backend.require_installed(section, resolve_device(computation.device).type == "cuda")
