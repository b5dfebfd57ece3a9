"""The common part of recipes that train on rows as they are, without sampling."""

from __future__ import annotations

from typing import ClassVar

from lockstep.algorithms.base import BuiltInAlgorithm
from lockstep.config.section import rule


class Supervised(BuiltInAlgorithm):
    """A recipe that trains on rows as they are, without sampling."""

    learned: ClassVar[str]
    """The part of a row that is trained on, for messages, such as `a pair`."""

    @property
    def idle_options(self) -> dict[str, str]:
        return super().idle_options | {"data.answer": "where nothing is rewarded"}

    @rule
    def _rows_are_whole(self) -> None:
        if self.data.truncates:
            raise ValueError(
                f"data.overlong_prompts=truncate is for prompts that a sampler answers; {self.learned} is learned "
                "whole, so say error or skip"
            )
