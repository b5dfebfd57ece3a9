"""The section `run` of commands that write results without training."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from lockstep.config.section import LocalPath, Section


class ResultsRun(Section):
    """The results folder and the block size."""

    folder: LocalPath | None = Field(
        default=None,
        description=(
            "results folder; null: evals/ or generations/<model>-<data>-<hash of all that matters>"
        ),
    )
    save_every: PositiveInt = Field(
        default=32,
        description=(
            "rows per block, which are generated and written together; stopping loses unfinished "
            "blocks"
        ),
    )
