"""Rows with an answer that is marked good or bad."""

from __future__ import annotations

from pydantic import Field

from lockstep.config.sources import DataSection


class LabeledSection(DataSection):
    """Rows with a prompt, one answer, and whether that is desirable."""

    label: str = Field(default="label", description="field with true where the answer is desirable, else false")
