"""Options of responses that people have ranked."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from lockstep.config.section import Section, rule
from lockstep.config.sources import Paths

Responses = str | Annotated[tuple[str, ...], Field(min_length=2)]


class RankedSection(Section):
    """Options that turn rows of data files into ranked responses."""

    ranked: Paths = Field(
        description="file of rows, or a list of files: JSONL (also .gz), a JSON list, Parquet"
    )
    prompt: str = Field(default="{prompt}", description="template of what the user asked")
    responses: Responses = Field(
        default="responses",
        description="the field with a list of texts, or a template for each response",
    )
    ranks: str | None = Field(
        default=None,
        description="the field with a list of numbers, one for each response, the best lowest",
    )
    best: str | None = Field(
        default=None,
        description=(
            "instead of `ranks`: template of the number of the best response, counted from 1"
        ),
    )
    tree: bool = Field(
        default=False,
        description="instead of all these: rows are conversation trees of OpenAssistant; each "
        "message with ranked replies is a prompt",
    )
    bad_rows: Literal["error", "skip"] = Field(
        default="error",
        description="what to do with a row that lacks a field; skipped ones are counted",
    )
    max_prompts: PositiveInt | None = Field(
        default=None, description="judge the responses to the first so many prompts"
    )

    @rule
    def _one_way_to_rank(self) -> None:
        if sum((self.ranks is not None, self.best is not None, self.tree)) != 1:
            raise ValueError("say exactly one of ranks, best and tree")
