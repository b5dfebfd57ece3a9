"""The layout of a learner: the numbers of ranks that share its work."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from lockstep.config.section import Section


class Parallel(Section):
    """Number of processes that share the work: the product of all."""

    dp: PositiveInt = Field(default=1, description="ranks that share rows; what they hold of the model is cut (FSDP2)")
    tp: PositiveInt = Field(default=1, description="ranks that share heads, hidden units and the vocabulary")
    cp: PositiveInt = Field(default=1, description="ranks that share the tokens of each sequence")
    pp: PositiveInt = Field(default=1, description="ranks that share layers, one group of them after the other")
    dp_replicate: PositiveInt = Field(
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
