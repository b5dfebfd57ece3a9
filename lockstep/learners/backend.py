"""The interface of a training backend; `learners/<name>/backend.py` implements it.

Imports no torch.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from lockstep.config.backends import TRAINING, TrainingOptions

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from lockstep.config import LearnerSection, Optimizer
    from lockstep.core.types import HeadKind
    from lockstep.distributed.ranks import RankMesh
    from lockstep.learners.rank import RankLearner


class TrainingBackend(TrainingOptions["LearnerSection"]):
    """Interface between a training backend and the rest of Lockstep.

    A subclass implements the abstract members of this class and of `TrainingOptions`, and imports
    heavy modules inside its methods. Mark it `typing.final`, so that a type checker reports missing
    members.
    """

    title: ClassVar[str]
    """Display name for messages."""

    is_planned: ClassVar[bool] = False
    """True if `lockstep plan` can estimate the memory of its ranks."""

    def require_model(self, config: PreTrainedConfig, section: LearnerSection) -> None:
        """Raises InputError if it is not installed or cannot compute this model with `section`."""

    @abstractmethod
    def build_learner(
        self,
        folder: str,
        head: HeadKind,
        seed: int,
        section: LearnerSection,
        optimizer: Optimizer | None,
        ranks: RankMesh,
    ) -> RankLearner:
        """One rank of a learner.

        Args:
            folder: Folder of the model.
            head: Output of the model.
            seed: Seed of a new value head and of new adapters.
            section: Device, computation type, layout, micro-batch size.
            optimizer: Settings of the optimizer; None for a scorer.
            ranks: Ranks that hold the model together.
        """


def find_backend(section: LearnerSection) -> TrainingBackend:
    """The backend that a section names.

    Raises:
        InputError: The backend is unknown.
    """
    found = TRAINING.find_backend(section.backend)
    assert isinstance(found, TrainingBackend), "a declaration has both halves"
    return found
