"""A learner in processes of its own: its way to score, cut over ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from torch import Tensor

from lockstep.batch import Batch
from lockstep.cluster.learner_group import launch
from lockstep.cluster.specs import LearnerSpec
from lockstep.cluster.workers import Workers
from lockstep.config import LearnerSection
from lockstep.doctor.backends.in_process import flat_fields
from lockstep.doctor.base import USUAL, Capability, Conditions
from lockstep.models.folder import context_of, read_config
from lockstep.types import Request, SamplingParams

_TIMEOUT_S = 600.0


class MeshBackend:
    """Implements `doctor.base.Backend`. A learner over ranks scores, in its own packing; it has no way to draw.

    Raises:
        ValueError: If the model cannot be cut like that.
    """

    capabilities: frozenset[Capability] = frozenset(("shaped",))

    def __init__(self, name: str, folder: str, section: LearnerSection, workers: Workers) -> None:
        self.name, self._section, self._config = name, section, read_config(folder)
        self.context = context_of(self._config)
        self._learner = launch(LearnerSpec(folder, "logits", section, None, 0), _TIMEOUT_S, workers)

    def config(self) -> Mapping[str, Any]:
        return flat_fields(self._config.get_text_config().to_dict())

    def settings(self) -> Mapping[str, Any]:
        ranks = {name: size for name, size in self._section.parallel.model_dump().items() if size > 1}
        return {"dtype": self._section.dtype, "layout": "packed", "training": False} | ranks

    def score(self, batch: Batch, conditions: Conditions = USUAL) -> Tensor:
        return self._learner.logprobs(batch)

    def close(self) -> None:
        self._learner.close()

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions = USUAL
    ) -> NoReturn:
        raise NotImplementedError(f"{self.name} does not generate, and says so in its capabilities")
