"""The declaration of a training backend; `learners/<name>/backend.py` implements it. Imports no torch."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from lockstep.config.backends import TRAINING, TrainingOptions

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from lockstep.config import LearnerSection, Optimizer
    from lockstep.distributed.ranks import Ranks
    from lockstep.learners.rank import RankLearner
    from lockstep.types import Head


class TrainingBackend(TrainingOptions):
    """All that the rest of the house knows of a training backend.

    A subclass declares what is abstract here and in `TrainingOptions`, and imports what is heavy inside
    of its methods. Mark it `typing.final`: a type checker then tells what it forgets.
    """

    @property
    @abstractmethod
    def title(self) -> str:
        """Its name in a sentence."""

    @property
    @abstractmethod
    def is_planned(self) -> bool:
        """True if `lockstep plan` knows the memory of its ranks."""

    @abstractmethod
    def require_model(self, config: PreTrainedConfig, section: LearnerSection) -> None:
        """Raises InputError if it is not installed here, or cannot compute this model as the section says."""

    @abstractmethod
    def build(
        self,
        folder: str,
        head: Head,
        seed: int,
        section: LearnerSection,
        optimizer: Optimizer | None,
        ranks: Ranks,
    ) -> RankLearner:
        """One rank of a learner.

        Args:
            folder: Of the model.
            head: On it.
            seed: Of a head, and of adapters, that begin anew.
            section: How it computes.
            optimizer: How it learns; None: it is only asked.
            ranks: Those that hold the model together.
        """


def find_backend(section: LearnerSection) -> TrainingBackend:
    """The backend that a section names.

    Raises:
        InputError: There is no such backend.
    """
    found = TRAINING.find(section.backend)
    assert isinstance(found, TrainingBackend), "a declaration has both halves"
    return found
