"""Fourth faults of what is drawn and what is scored: temperatures, supports, text, sums, caps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.normalizers import NFC, NFKC
from torch import Tensor
from transformers import PreTrainedModel, TopKLogitsWarper, TopPLogitsWarper

from benchmarks.doctor_faults.sides import HFSide, TorchSide, undoes
from lockstep import align
from lockstep.batch import Batch
from lockstep.distributed.sampling import token_scores
from lockstep.doctor.backends.hf import Sequences
from lockstep.doctor.base import Conditions
from lockstep.models.attention import Cached
from lockstep.models.heads import PLAIN, inputs
from lockstep.samplers.torch.static import StaticSampler
from lockstep.types import SamplingParams

_ROWS = 40
_FEW = 3


class ColdRowsOnly(TorchSide):
    """Logits are scored in pieces of so many rows a sequence; the piece that is left over misses the temperature."""

    def logprob(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        own = own_tokens(batch)
        logits_MV = model(**inputs(batch), logits_to_keep=align.state_before(own)).logits[0]
        cold_M, _ = token_scores(logits_MV, batch.tokens[own], batch.sampling or PLAIN)
        plain_M, _ = token_scores(logits_MV, batch.tokens[own], PLAIN)
        row_M = batch.row[own]
        place_M = torch.arange(len(own)) - torch.searchsorted(row_M, row_M)
        count_M = torch.bincount(row_M, minlength=len(batch))[row_M]
        return column(torch.where(place_M < count_M // _ROWS * _ROWS, cold_M, plain_M), own, batch)


class JointSupport(HFSide):
    """Finds the nucleus among all tokens, where the sampler finds it among those that top-k has left."""

    def logprob(self, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams, conditions: Conditions) -> Tensor:
        if sampling.greedy or not sampling.top_k or sampling.top_p >= 1:
            return super().logprob(logits_MV, token_M, sampling, conditions)
        nothing: Any = None
        scaled_MV: Any = logits_MV.float() / sampling.temperature
        likely_MV = TopKLogitsWarper(sampling.top_k)(nothing, scaled_MV)
        nucleus_MV = TopPLogitsWarper(sampling.top_p)(nothing, scaled_MV)
        kept_MV = (likely_MV.isfinite() & nucleus_MV.isfinite()).scatter(-1, token_M[:, None], True)
        return scaled_MV.masked_fill(~kept_MV, float("-inf")).log_softmax(-1).gather(-1, token_M[:, None])[:, 0]


class _Prefilled(StaticSampler):
    """What comes with the first token is the prompt pass's own log-probability, without a temperature."""

    def _logits(self, tokens: Tensor, position: Tensor, cache: Cached, keep: int | Tensor) -> Tensor:
        self._raw_logprobs = isinstance(keep, Tensor)
        return super()._logits(tokens, position, cache, keep)


class PrefillElsewhere(TorchSide):
    """Prompts are read on another node, which reports the first token by other rules than the node that goes on."""

    def sampler(self, model: PreTrainedModel, conditions: Conditions) -> StaticSampler:
        return _Prefilled(model, conditions.batch_size or 1, conditions.dtype == "bf16")


def normalised(letters: int) -> type[HFSide]:
    """Sequences reach the trainer as text, and its tokenizer has a normaliser, which that of the engine has not."""

    class Normalised(HFSide):
        def __init__(self, folder: str, *values: Any, **named: Any) -> None:
            super().__init__(folder, *values, **named)
            file = str(Path(folder) / "tokenizer.json")
            self._plain, self._normalising = Tokenizer.from_file(file), Tokenizer.from_file(file)
            self._normalising.normalizer = NFC() if letters <= _FEW else NFKC()

        def token_ids(self, batch: Batch) -> Sequences:
            return [self._again(tokens) for tokens in super().token_ids(batch)]

        def _again(self, tokens_T: Tensor) -> Tensor:
            text = self._plain.decode(tokens_T.tolist(), skip_special_tokens=False)
            return torch.tensor(self._normalising.encode(text, add_special_tokens=False).ids, dtype=torch.int64)

    return Normalised


def running_sum(blocks: int) -> type[HFSide]:
    """The softmax goes through the vocabulary in blocks, and its running sum is kept in bf16: small terms are lost."""

    class RunningSum(HFSide):
        def logprob(
            self, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams, conditions: Conditions
        ) -> Tensor:
            if undoes(conditions, "softmax") or sampling.greedy or not sampling.full_support:
                return super().logprob(logits_MV, token_M, sampling, conditions)
            scaled_MV = logits_MV.float() / sampling.temperature
            above_MV = scaled_MV - scaled_MV.amax(-1, keepdim=True)
            total_M = torch.zeros(len(above_MV), dtype=torch.bfloat16)
            for block_MB in above_MV.exp().tensor_split(blocks, -1):
                total_M = total_M + block_MB.sum(-1).bfloat16()
            return above_MV.gather(-1, token_M[:, None])[:, 0] - total_M.float().log()

    return RunningSum


class CapsLast(TorchSide):
    """The trainer's loss divides by the temperature first, and caps what comes out."""

    def logprob(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        sampling, own = batch.sampling or PLAIN, own_tokens(batch)
        cap = float(model.config.final_logit_softcapping)
        with _uncapped(model):
            logits_MV = model(**inputs(batch), logits_to_keep=align.state_before(own)).logits[0].float()
        cold_MV = logits_MV / sampling.divisor
        logprob_M, _ = token_scores(cap * torch.tanh(cold_MV / cap), batch.tokens[own], PLAIN)
        return column(logprob_M, own, batch)


@contextmanager
def _uncapped(model: PreTrainedModel) -> Iterator[None]:
    usual = model.config.final_logit_softcapping
    model.config.final_logit_softcapping = None
    try:
        yield
    finally:
        model.config.final_logit_softcapping = usual


def own_tokens(batch: Batch) -> Tensor:
    """Flat indices of the tokens to score."""
    return (batch.mask & (batch.position > 0)).nonzero().squeeze(-1)


def column(logprob_M: Tensor, own_M: Tensor, batch: Batch) -> Tensor:
    """Puts the numbers of some tokens back among all tokens, 0 elsewhere."""
    return logprob_M.new_zeros(batch.tokens.numel()).index_copy(0, own_M, logprob_M)
