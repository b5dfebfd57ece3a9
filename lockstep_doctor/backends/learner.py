"""A training backend, built as in a run: a learner scores, and the torch sampler draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from lockstep.cluster.learner_group import MeshLearner, launch_learner
from lockstep.cluster.specs import LearnerSpec
from lockstep.cluster.workers import HERE, WorkerPool
from lockstep.config import LearnerSection
from lockstep.core.batch import Batch
from lockstep.core.types import Request, SamplingParams
from lockstep.learners.packing import cut_in_order
from lockstep.models.folder import find_context_length, read_config
from lockstep.models.heads import LogitsHead
from lockstep.samplers.torch.stateful import torch_sampler
from lockstep_doctor.table.base import USUAL, BackendCapability, BackendConditions

_TIMEOUT_S = 600.0


class LearnerBackend:
    """Implements `table.base.Backend`.

    A learner in separate processes scores in its own packing and cannot generate.

    Args:
        section: Learner options; None: the defaults.
    """

    def __init__(
        self,
        folder: str,
        section: LearnerSection | None = None,
        name: str = "torch",
        batch_size: int = 8,
        workers: WorkerPool = HERE,
    ) -> None:
        self.name, self._section, self._batch_size = name, section or LearnerSection(), batch_size
        self._config = read_config(folder)
        self.context = find_context_length(self._config)
        spec = LearnerSpec(folder, "logits", self._section, None, 0)
        is_here = self._section.in_process
        if is_here:
            self._learner = spec.build()
        else:
            self._learner = launch_learner(spec, _TIMEOUT_S, workers)
        if isinstance(self._learner, MeshLearner):
            head = None
        else:
            head = self._learner.model
        if isinstance(head, LogitsHead):
            self.network = head.lm
        else:
            self.network = None
        self.capabilities: frozenset[BackendCapability] = frozenset(
            ("generate", "shaped") if is_here else ("shaped",)
        )

    def list_settings(self) -> Mapping[str, Any]:
        settings = {"dtype": self._section.dtype, "layout": "packed", "training": False}
        if self.network is None:
            return settings | {
                name: size for name, size in self._section.parallel.model_dump().items() if size > 1
            }
        return settings | {
            "device": self.network.device.type,
            "kernel": self.network.config._attn_implementation,
            "batch_size": self._batch_size,
            "training": any(module.training for module in self.network.modules()),
        }

    def score(self, batch: Batch, conditions: BackendConditions = USUAL) -> Tensor:
        if isinstance(self._learner, MeshLearner):
            return self._learner.logprobs(batch)
        return self._learner.logprobs(
            batch, cut_in_order(len(batch), conditions.batch_size or self._batch_size)
        )

    def generate(
        self,
        requests: Sequence[Request],
        sampling: SamplingParams,
        conditions: BackendConditions = USUAL,
    ) -> Batch:
        assert self.network is not None, f"{self.name} cannot generate, see its capabilities"
        size = conditions.batch_size or self._batch_size
        return torch_sampler(self.network, size, self._section.dtype).generate(requests, sampling)

    def close(self) -> None:
        if isinstance(self._learner, MeshLearner):
            self._learner.close()
