"""The section `run` of commands that write results, but train nothing."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from lockstep.config.section import LocalPath, Section


class ResultsRun(Section):
    """Folder of the results, and block size."""

    folder: LocalPath | None = Field(
        default=None,
        description=(
            "folder of the results; null: evals/ or generations/<model>-<data>-<hash of "
            "all that matters>"
        ),
    )
    save_every: PositiveInt = Field(
        default=32,
        description=(
            "rows of a block, which are answered and written together; a stop loses open blocks"
        ),
    )
