"""The layout of a learner: how its ranks share the work."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lockstep.config.section import Section

RankCount = Annotated[int, Field(ge=1, le=200_000)]


class Parallel(Section):
    """The layout of a learner's ranks; their number is the product of all sizes."""

    dp: RankCount = Field(
        default=1,
        description=(
            "data parallel: number of ranks that split the rows and shard the model (FSDP2)"
        ),
    )
    tp: RankCount = Field(
        default=1,
        description=(
            "tensor parallel: number of ranks that split heads, hidden units and the vocabulary"
        ),
    )
    cp: RankCount = Field(
        default=1,
        description=("context parallel: number of ranks that split the tokens of each sequence"),
    )
    pp: RankCount = Field(
        default=1, description=("pipeline parallel: number of stages that split the layers")
    )
    dp_replicate: RankCount = Field(
        default=1,
        description=(
            "number of model replicas, which split the rows; dp, tp and cp shard each (HSDP)"
        ),
    )

    @property
    def ranks(self) -> int:
        """Number of processes: the product of all dimensions."""
        return self.dp_replicate * self.dp * self.tp * self.cp * self.pp

    @property
    def row_shares(self) -> int:
        """Number of shares into which the rows of a batch are divided."""
        return self.dp_replicate * self.dp
