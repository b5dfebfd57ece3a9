"""What recipes have that learn from pairs of answers, a chosen and a rejected one."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, PositiveInt, model_validator

from lockstep.config.machinery import Optimizer
from lockstep.config.run import Bound, Supervised
from lockstep.config.section import Section
from lockstep.config.sources import DataSection


class PairSection(DataSection):
    """Rows with a prompt, an answer that was chosen and one that was rejected."""

    chosen: str = Field(
        default="{chosen}",
        description="template of the better answer; one field alone may also hold a conversation, which ends with it",
    )
    rejected: str = Field(default="{rejected}", description="template of the worse answer, likewise")
    chosen_score: str | None = Field(default=None, description="field with what the better answer is worth")
    rejected_score: str | None = Field(default=None, description="field with what the worse answer is worth")

    @property
    def completion_templates(self) -> dict[str, str]:
        return {"data.chosen": self.chosen, "data.rejected": self.rejected}

    @property
    def score_fields(self) -> tuple[str, ...]:
        """The fields of both scores; none where the rows have none."""
        return tuple(name for name in (self.chosen_score, self.rejected_score) if name is not None)

    @model_validator(mode="after")
    def _nothing_else_is_learned(self) -> PairSection:
        if self.completion is not None:
            raise ValueError("completion is what SFT learns; the answers of a pair are chosen and rejected")
        return self

    @model_validator(mode="after")
    def _both_are_scored(self) -> PairSection:
        if len(self.score_fields) == 1:
            raise ValueError("chosen_score and rejected_score go together; say both, or none")
        return self


class LearnedPairs(Section):
    """How many pairs are learned from at once, and how long they may be."""

    global_batch_size: PositiveInt = Field(description="pairs per optimizer step")
    max_tokens: PositiveInt = Field(description="longest prompt and answer together")


class PairsRecipe(Supervised):
    """What the recipes of these algorithms share."""

    learned = "a pair"
    limit: ClassVar[str]
    """The option that says how long pairs may be."""
    data: PairSection  # pyright: ignore[reportIncompatibleVariableOverride] — frozen, so nothing else can come there
    optimizer: Optimizer
    acceptance: tuple[Bound, ...] = Field(default=(), description="bounds that `lockstep check RUN` reads")

    @property
    def pairs(self) -> LearnedPairs:
        """The algorithm's own section."""
        raise NotImplementedError(f"{type(self).__name__} has no section of its own")
