"""The common part of recipes that learn rows as they are."""

from __future__ import annotations

from typing import ClassVar

from pydantic import model_validator

from lockstep.algorithms.base import Algorithm


class Supervised(Algorithm):
    """A recipe that learns rows as they are."""

    learned: ClassVar[str]
    """The learned part of a row."""

    @model_validator(mode="after")
    def _rows_are_whole(self) -> Supervised:
        if self.data.truncates:
            raise ValueError(
                f"data.overlong_prompts=truncate is for prompts that a sampler answers; {self.learned} is learned "
                "whole, so say error or skip"
            )
        return self

    @model_validator(mode="after")
    def _nothing_samples(self) -> Supervised:
        if self.run.require_doctor:
            raise ValueError(
                "run.require_doctor is about training and sampling, but nothing samples here; leave it out"
            )
        return self
