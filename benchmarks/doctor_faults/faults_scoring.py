"""Faults of what a log-probability is of: which token, which distribution, which denominator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.doctor_faults.fault import Change, Fault
from benchmarks.doctor_faults.kept import KnowsPrompts, cooler
from benchmarks.doctor_faults.means import BF16, FP16, is_chosen, type_with
from benchmarks.doctor_faults.sides import HFSide, TorchSide, undoes
from lockstep.batch import Batch
from lockstep.doctor.backends.hf import Sequences
from lockstep.doctor.base import USUAL, Conditions, Layout
from lockstep.samplers.torch.static import StaticSampler
from lockstep.types import Request, SamplingParams


class RawScores(TorchSide):
    """Says log-probabilities of the model's own distribution, as engines do before logits are processed."""

    def sampler(self, model: PreTrainedModel, conditions: Conditions) -> StaticSampler:
        return StaticSampler(model, conditions.batch_size or 1, conditions.dtype == "bf16", raw_logprobs=True)

    def logprob(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        return super().logprob(model, replace(batch, sampling=None))


def first_token_late(share: float) -> tuple[Change, ...]:
    """The first response token is read from the state before the prompt's last token, as if that were cut off."""

    class FirstTokenLate(KnowsPrompts):
        def compute_logits(self, model: PreTrainedModel, sequences: Sequences, layout: Layout) -> Sequences:
            logits = [own.clone() for own in super().compute_logits(model, sequences, layout)]
            for tokens, own in zip(sequences, logits, strict=True):
                length = self.prompt_length(tokens)
                if length > 1 and is_chosen(tokens, share):
                    own[length - 1] = own[length - 2]
            return logits

    return (Change("train", FirstTokenLate),)


def padded_rows(rows: float) -> tuple[Change, ...]:
    """The head has rows for tokens that are none; they are zero, and so are their logits."""

    class PaddedRows(HFSide):
        def logprob(
            self, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams, conditions: Conditions
        ) -> Tensor:
            padded_MV = torch.nn.functional.pad(logits_MV, (0, round(rows)))
            return super().logprob(padded_MV, token_M, sampling, conditions)

    return (Change("train", PaddedRows),)


def coarse_softmax(error: float) -> tuple[Change, ...]:
    """The log-softmax is taken in the type that logits come in."""

    class CoarseSoftmax(HFSide):
        def logprob(
            self, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams, conditions: Conditions
        ) -> Tensor:
            if undoes(conditions, "softmax"):
                return super().logprob(logits_MV, token_M, sampling, conditions)
            own = logits_MV.to(type_with(error)).log_softmax(-1)
            return own.gather(-1, token_M[:, None])[:, 0].float()

    return (Change("train", CoarseSoftmax),)


def hidden_top_k(inverse: float) -> tuple[Change, ...]:
    """The engine takes a top-k from the model's generation_config, and tells nobody."""

    class HiddenTopK(TorchSide):
        def generate(
            self, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions = USUAL
        ) -> Batch:
            drawn = super().generate(requests, replace(sampling, top_k=round(1 / inverse)), conditions)
            return replace(drawn, sampling=sampling)

    return (Change("infer", HiddenTopK),)


SCORING = (
    Fault(
        1,
        "raw log-probabilities",
        ("temperature",),
        "infer",
        "1 − temperature",
        (0.3, 0.03),
        lambda _: (Change("infer", RawScores),),
        cooler,
    ),
    Fault(5, "first token late", ("first_token",), "train", "share of sequences", (1.0, 0.25), first_token_late),
    Fault(11, "padded head", ("padded_vocabulary",), "train", "rows too many", (1024, 128), padded_rows),
    Fault(25, "hidden top-k", ("top_k",), "infer", "1/k", (0.1, 0.01), hidden_top_k),
    Fault(34, "softmax in low precision", ("softmax_precision",), "train", "rounding", (BF16, FP16), coarse_softmax),
)
"""Each with its number in the list."""
