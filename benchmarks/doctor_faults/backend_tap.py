"""A backend as `lockstep_doctor` sees it: the modules of its model, and the column that it delivers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.doctor_faults.sides import HFSide, TorchSide
from lockstep.batch import Batch
from lockstep.doctor.backends.hf import shape_logits
from lockstep.models.heads import PLAIN
from lockstep.types import SamplingParams
from lockstep_doctor import Capture, CutPoint, ModuleTap

_OUTSIDE = -1e4
"""Logit of a token that is not drawn from."""


class BackendTap(ModuleTap):
    """Reads a sequence alone by the model of a backend, and looks its column up in what the backend said.

    Args:
        backend: Shows its modules.
        name: Name in reports.
        batch: What was scored or drawn.
        column_N: What the backend said about it.
    """

    def __init__(self, backend: HFSide | TorchSide, name: str, batch: Batch, column_N: Tensor) -> None:
        sampling = batch.sampling or PLAIN
        super().__init__(backend.model(), name, read=lambda _, tokens_T: process(backend.logits(tokens_T), sampling))
        self._said = {
            tuple(tokens.tolist()): (column, mask)
            for tokens, column, mask in zip(
                batch.sequences(),
                column_N.split(batch.lengths.tolist()),
                batch.mask.split(batch.lengths.tolist()),
                strict=True,
            )
        }

    def run(self, tokens_T: Tensor, forced: Mapping[CutPoint, Tensor]) -> Capture:
        found = super().run(tokens_T, forced)
        said = self._said.get(tuple(tokens_T.tolist()))
        if said is None or forced:
            return found
        own = found.logits[:-1].float().log_softmax(-1).gather(-1, tokens_T[1:, None])[:, 0]
        return replace(found, column=torch.where(said[1][1:], said[0][1:].float(), own))


def process(logits_TV: Tensor, sampling: SamplingParams) -> Tensor:
    """Logits of the distribution that is drawn from, by the processors of `transformers`."""
    return logits_TV.float() if sampling.unshaped else shape_logits(logits_TV.float(), sampling).clamp(min=_OUTSIDE)
