"""Rows with pairs of answers, chosen and rejected."""

from __future__ import annotations

from pydantic import Field

from lockstep.config.section import rule
from lockstep.config.sources import DataSection, Template


class PairSection(DataSection):
    """Rows with a prompt, a chosen answer and a rejected answer."""

    chosen: Template = Field(
        default="{chosen}",
        description=(
            "template of the better answer; a single field may also hold a conversation that ends "
            "with it"
        ),
    )
    rejected: Template = Field(
        default="{rejected}", description="template of the worse answer; same forms as `chosen`"
    )
    chosen_score: str | None = Field(
        default=None, description="field with the better answer's score"
    )
    rejected_score: str | None = Field(
        default=None, description="field with the worse answer's score"
    )

    @property
    def completion_templates(self) -> dict[str, str]:
        return {"data.chosen": self.chosen, "data.rejected": self.rejected}

    @property
    def score_fields(self) -> tuple[str, ...]:
        """The fields of both scores; empty if rows have no scores."""
        return tuple(name for name in (self.chosen_score, self.rejected_score) if name is not None)

    @rule
    def _nothing_else_is_learned(self) -> None:
        if self.completion is not None:
            raise ValueError("completion is only for SFT; for pairs set chosen and rejected")

    @rule
    def _both_are_scored(self) -> None:
        if len(self.score_fields) == 1:
            raise ValueError("chosen_score requires rejected_score; set both or neither")
