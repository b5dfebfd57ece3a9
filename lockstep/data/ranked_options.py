"""Options of responses that people have ranked."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from lockstep.config.section import Section, rule
from lockstep.config.sources import DataPaths, Template

ResponseFields = str | Annotated[tuple[str, ...], Field(min_length=2)]


class RankedSection(Section):
    """Options that turn rows of data files into ranked responses."""

    ranked: DataPaths = Field(
        description="data file, or a list of files: JSONL (also .gz), a JSON list, Parquet"
    )
    prompt: Template = Field(default="{prompt}", description="template of the user's prompt")
    responses: ResponseFields = Field(
        default="responses",
        description="field with a list of texts, or a template for each response",
    )
    ranks: str | None = Field(
        default=None,
        description="field with a list of numbers, one per response, lowest is best",
    )
    best: Template | None = Field(
        default=None,
        description=(
            "instead of `ranks`: template of the number of the best response, starting at 1"
        ),
    )
    tree: bool = Field(
        default=False,
        description=(
            "instead of these: rows are OpenAssistant conversation trees; each message "
            "with ranked replies is a prompt"
        ),
    )
    bad_rows: Literal["error", "skip"] = Field(
        default="error",
        description="raise an error for rows that lack a field, or skip and count them",
    )
    max_prompts: PositiveInt | None = Field(default=None, description="maximum number of prompts")

    @rule
    def _one_way_to_rank(self) -> None:
        if sum((self.ranks is not None, self.best is not None, self.tree)) != 1:
            raise ValueError("set exactly one of ranks, best and tree")
