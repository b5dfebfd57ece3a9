"""The layout of a learner: the numbers of ranks that share its work."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lockstep.config.section import Section

Ranks = Annotated[int, Field(ge=1, le=200_000)]


class Parallel(Section):
    """Number of processes that share the work: the product of all."""

    dp: Ranks = Field(default=1, description="ranks that share rows; what they hold of the model is cut (FSDP2)")
    tp: Ranks = Field(default=1, description="ranks that share heads, hidden units and the vocabulary")
    cp: Ranks = Field(default=1, description="ranks that share the tokens of each sequence")
    pp: Ranks = Field(default=1, description="ranks that share layers, one group of them after the other")
    dp_replicate: Ranks = Field(
        default=1, description="copies of the model, which share rows, each cut over dp, tp and cp (HSDP)"
    )

    @property
    def ranks(self) -> int:
        """Number of processes: the product of all dimensions."""
        return self.dp_replicate * self.copy_ranks

    @property
    def copy_ranks(self) -> int:
        """Number of processes that hold one copy of the model together."""
        return self.dp * self.tp * self.cp * self.pp

    @property
    def row_shares(self) -> int:
        """Number of shares into which the rows of a batch are divided."""
        return self.dp_replicate * self.dp
