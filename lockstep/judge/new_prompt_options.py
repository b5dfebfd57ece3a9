"""The options of prompts that the policy writes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveInt

from lockstep.config.sampling import Sampling
from lockstep.config.section import Section


class WritingSampling(Sampling):
    """The distribution that new prompts are sampled from, as Yuan et al. 2024 do."""

    temperature: NonNegativeFloat = Field(
        default=0.6, description="0: greedy, where only the examples make a difference"
    )
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        default=0.9, description="as for answers: the fewest likeliest tokens that together have this probability"
    )


class NewPromptsSection(Section):
    """Prompts that the policy writes when an iteration begins, after examples from the data."""

    count: PositiveInt | None = Field(
        default=None, description="prompts of an iteration; null: as many as the data has"
    )
    template: str | None = Field(
        default=None,
        description="the request, with {example_1}, {example_2} … where prompts of the data go, as many as it shows; "
        "null: one of ours, with eight",
    )
    sampling: WritingSampling
    max_prompt_tokens: PositiveInt = Field(description="a longer request, examples included, is counted and not sent")
    max_attempts: PositiveInt = Field(
        default=4, description="requests for each prompt that is wanted, at most; too few prompts stop the run"
    )
