"""Held-out faults of what is drawn and what is scored: temperatures, supports, lists, bytes, penalties, sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import EncoderRepetitionPenaltyLogitsProcessor, PreTrainedModel, TopPLogitsWarper

from lockstep import align
from lockstep.batch import Batch
from lockstep.doctor.backends.hf import HFBackend, Sequences
from lockstep.doctor.backends.torch import TorchBackend
from lockstep.doctor.base import USUAL, Conditions
from lockstep.doctor.selftest.third_scoring import processed
from lockstep.models.heads import PLAIN, inputs
from lockstep.types import Request, SamplingParams

_RANKS = 4


class DividesLogprobs(HFBackend):
    """The engine gives log-probabilities of temperature 1, and its client divides these, instead of logits."""

    def logprob(self, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams, conditions: Conditions) -> Tensor:
        raw_M = super().logprob(logits_MV, token_M, replace(sampling, temperature=1.0), conditions)
        return raw_M if sampling.greedy else raw_M / sampling.temperature


class NucleusFirst(HFBackend):
    """The trainer finds the nucleus before it divides by the temperature, the sampler after that."""

    def logprob(self, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams, conditions: Conditions) -> Tensor:
        if sampling.greedy or sampling.top_k or sampling.top_p >= 1:
            return super().logprob(logits_MV, token_M, sampling, conditions)
        nothing: Any = None
        plain_MV: Any = logits_MV.float()
        kept_MV = TopPLogitsWarper(sampling.top_p)(nothing, plain_MV).isfinite().scatter(-1, token_M[:, None], True)
        scaled_MV = (plain_MV / sampling.temperature).masked_fill(~kept_MV, float("-inf"))
        return scaled_MV.log_softmax(-1).gather(-1, token_M[:, None])[:, 0]


class _OwnScores(TorchBackend):
    """A trainer with a loss of its own, made of logits that are divided already."""

    def logprob(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        own, sampling = (batch.mask & (batch.position > 0)).nonzero().squeeze(-1), batch.sampling or PLAIN
        logits_MV = model(**inputs(batch), logits_to_keep=align.state_before(own)).logits[0].float()
        scaled_MV = logits_MV if sampling.greedy else logits_MV / sampling.temperature
        own_M = scaled_MV.gather(-1, batch.tokens[own][:, None])[:, 0]
        logprob_M = own_M - self.total(scaled_MV, own_M, sampling)
        return logprob_M.new_zeros(batch.tokens.numel()).index_copy(0, own, logprob_M)

    def total(self, scaled_MV: Tensor, own_M: Tensor, sampling: SamplingParams) -> Tensor:
        """Logarithm of the denominator, [M]."""
        return scaled_MV.logsumexp(-1)


class LikeliestOfEachRank(_OwnScores):
    """The vocabulary lies on ranks, and each keeps as many of its own tokens as all should keep together."""

    def total(self, scaled_MV: Tensor, own_M: Tensor, sampling: SamplingParams) -> Tensor:
        if not sampling.top_k:
            return super().total(scaled_MV, own_M, sampling)
        shards = scaled_MV.tensor_split(_RANKS, -1)
        kept = [shard.topk(min(sampling.top_k, shard.shape[-1])).values for shard in shards]
        return torch.cat(kept, -1).logsumexp(-1)


def unmasked_lanes(block: int) -> type[TorchBackend]:
    """The fused loss reads the vocabulary in blocks, and what lies behind its end reads as 0 and counts."""

    class UnmaskedLanes(_OwnScores):
        def total(self, scaled_MV: Tensor, own_M: Tensor, sampling: SamplingParams) -> Tensor:
            return F.pad(scaled_MV, (0, -scaled_MV.shape[-1] % block)).logsumexp(-1)

    return UnmaskedLanes


def resumed(lost: float) -> type[TorchBackend]:
    """A request is aborted and resumed; the log-probability at the seam is lost, and later ones move up."""

    class Resumed(TorchBackend):
        def generate(
            self, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions = USUAL
        ) -> Batch:
            batch = super().generate(requests, sampling, conditions)
            column, mask = batch["sampler_logprob"], batch.mask
            said_BK = column[mask].view(len(batch), -1)
            seam = round(said_BK.shape[1] * (1 - lost))
            moved_BK = torch.cat([said_BK[:, :seam], said_BK[:, seam + 1 :], said_BK[:, -1:]], 1)
            moved = column.masked_scatter(mask, moved_BK)
            return replace(batch, token={**batch.token, "sampler_logprob": moved})

    return Resumed


class ThroughUTF8(HFBackend):
    """Responses reach the trainer as text, in which bytes that are no text have become question marks."""

    def __init__(self, folder: str, *values: Any, **named: Any) -> None:
        super().__init__(folder, *values, **named)
        self._tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))

    def received(self, batch: Batch) -> Sequences:
        pairs = zip(batch.sequences(), batch.sequences("mask"), strict=True)
        return [torch.cat([tokens[~mask], self._again(tokens[mask])]) for tokens, mask in pairs]

    def _again(self, tokens_K: Tensor) -> Tensor:
        text = self._tokenizer.decode(tokens_K.tolist(), skip_special_tokens=False)
        return torch.tensor(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=torch.int64)


def prompt_favoured(penalty: float) -> type[HFBackend]:
    """The engine's defaults have a penalty of their own for what stands in the prompt."""

    class PromptFavoured(HFBackend):
        def drawn(
            self, model: PreTrainedModel, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions
        ) -> tuple[Tensor, Tensor]:
            prompts = [torch.tensor(request.tokens) for request in requests]
            ids: Any = pad_sequence(prompts, batch_first=True, padding_value=-1)
            ids = torch.where(ids < 0, ids[:, :1], ids)
            with processed(model, EncoderRepetitionPenaltyLogitsProcessor(penalty, ids)):
                return super().drawn(model, requests, sampling, conditions)

    return PromptFavoured
