"""The tap on the torch learner: hooks on those modules of `transformers` that a rank holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from lockstep.learners.rank import RankLearner
from lockstep.models.heads import LogitsHead
from lockstep_doctor.cuts import OUTPUT, CutPoint, End, name_cuts
from lockstep_doctor.modules import find_watched, values_by_name
from lockstep_doctor.taps.rank import RankTap

_MODEL = "lm"
"""Path of the model of `transformers` in a `LogitsHead`."""


def tap_torch(learner: RankLearner, name: str, neighbors: int = 0) -> RankTap:
    """The tap on a rank of the torch learner, see `RankTap`."""
    model = learner.model
    assert isinstance(model, LogitsHead), "a learner that scores tokens"
    inside = find_watched(model.lm)  # named within `lm`: a cut whose name is not unique is named by its path there
    named = values_by_name({(f"{_MODEL}.{path}", end): cut for (path, end), cut in name_cuts(inside).items()})

    def values(path: str, end: End, value: Any) -> Iterator[tuple[CutPoint, Tensor]]:
        if path != _MODEL:
            yield from named(path, end, value)
        elif end == "out":
            yield OUTPUT, value.logits

    def gather_head() -> Tensor:
        head = model.lm.get_output_embeddings()
        assert isinstance(head, nn.Linear), "logits that the model has not whole are products"
        weight = head.weight.detach()
        return weight.full_tensor() if isinstance(weight, DTensor) else weight

    return RankTap(
        learner, [*(f"{_MODEL}.{path}" for path in inside), _MODEL], values, gather_head, frozenset(), name, neighbors
    )
