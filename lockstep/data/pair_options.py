"""Rows with pairs of answers, chosen and rejected."""

from __future__ import annotations

from pydantic import Field

from lockstep.config.section import rule
from lockstep.config.sources import DataSection


class PairSection(DataSection):
    """Rows with a prompt, a chosen answer and a rejected answer."""

    chosen: str = Field(
        default="{chosen}",
        description=(
            "template of the better answer; one field alone may also hold a conversation, "
            "which ends with it"
        ),
    )
    rejected: str = Field(
        default="{rejected}", description="template of the worse answer, likewise"
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
            raise ValueError(
                "completion is what SFT learns; the answers of a pair are chosen and rejected"
            )

    @rule
    def _both_are_scored(self) -> None:
        if len(self.score_fields) == 1:
            raise ValueError("chosen_score and rejected_score go together; say both, or none")
