"""Fifth faults of what is drawn and what is scored: temperatures, supports, lists, bytes, penalties, sums."""

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
from transformers import EncoderRepetitionPenaltyLogitsProcessor, LogitsProcessor, PreTrainedModel

from benchmarks.doctor_faults.sides import HFSide, TorchSide
from benchmarks.doctor_faults.third_scoring import drawing_through
from lockstep.batch import Batch
from lockstep.doctor.backends.hf import Sequences, shape_logits
from lockstep.doctor.base import USUAL, Conditions
from lockstep.types import Request, SamplingParams

_RANKS = 4


class DividesLogprobs(HFSide):
    """The engine gives log-probabilities of temperature 1, and its client divides these, instead of logits."""

    def logprob(self, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams, conditions: Conditions) -> Tensor:
        raw_M = super().logprob(logits_MV, token_M, replace(sampling, temperature=1.0), conditions)
        return raw_M / sampling.divisor


class _OwnDenominator(HFSide):
    """A trainer with a loss of its own."""

    def logprob(self, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams, conditions: Conditions) -> Tensor:
        plain_MV, own_M1 = logits_MV.float(), token_M[:, None]
        scaled_MV = shape_logits(plain_MV, replace(sampling, top_k=0, top_p=1.0))
        kept_MW = self.kept(plain_MV, scaled_MV, own_M1, sampling)
        return (scaled_MV.gather(-1, own_M1) - kept_MW.logsumexp(-1, keepdim=True))[:, 0]

    def kept(self, plain_MV: Tensor, scaled_MV: Tensor, own_M1: Tensor, sampling: SamplingParams) -> Tensor:
        """Logits that the denominator is made of, from those before and after the temperature, [M, W]."""
        raise NotImplementedError


class NucleusFirst(_OwnDenominator):
    """The trainer finds the nucleus before it divides by the temperature, the sampler after that."""

    def kept(self, plain_MV: Tensor, scaled_MV: Tensor, own_M1: Tensor, sampling: SamplingParams) -> Tensor:
        inside_MV = shape_logits(plain_MV, replace(sampling, temperature=1.0)).isfinite().scatter(-1, own_M1, True)
        return scaled_MV.masked_fill(~inside_MV, float("-inf"))


class LikeliestOfEachRank(_OwnDenominator):
    """The vocabulary lies on ranks, and each keeps as many of its own tokens as all should keep together."""

    def kept(self, plain_MV: Tensor, scaled_MV: Tensor, own_M1: Tensor, sampling: SamplingParams) -> Tensor:
        own = replace(sampling, temperature=1.0, top_p=1.0)
        together_MV = torch.cat([shape_logits(shard, own) for shard in scaled_MV.tensor_split(_RANKS, -1)], -1)
        return shape_logits(together_MV, replace(sampling, temperature=1.0, top_k=0))


def unmasked_lanes(block: int) -> type[HFSide]:
    """The fused loss reads the vocabulary in blocks, and what lies behind its end reads as 0 and counts."""

    class UnmaskedLanes(_OwnDenominator):
        def kept(self, plain_MV: Tensor, scaled_MV: Tensor, own_M1: Tensor, sampling: SamplingParams) -> Tensor:
            return F.pad(shape_logits(plain_MV, sampling), (0, -plain_MV.shape[-1] % block))

    return UnmaskedLanes


def resumed(lost: float) -> type[TorchSide]:
    """A request is aborted and resumed; the log-probability at the seam is lost, and later ones move up."""

    class Resumed(TorchSide):
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


class ThroughUTF8(HFSide):
    """Responses reach the trainer as text, in which bytes that are no text have become question marks."""

    def __init__(self, folder: str, *values: Any, **named: Any) -> None:
        super().__init__(folder, *values, **named)
        self._tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))

    def token_ids(self, batch: Batch) -> Sequences:
        pairs = zip(batch.sequences(), batch.sequences("mask"), strict=True)
        return [torch.cat([tokens[~mask], self._again(tokens[mask])]) for tokens, mask in pairs]

    def _again(self, tokens_K: Tensor) -> Tensor:
        text = self._tokenizer.decode(tokens_K.tolist(), skip_special_tokens=False)
        return torch.tensor(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=torch.int64)


def prompt_favoured(penalty: float) -> type[HFSide]:
    """The engine's defaults have a penalty of their own for what stands in the prompt."""

    def processor(model: PreTrainedModel, requests: Sequence[Request], sampling: SamplingParams) -> LogitsProcessor:
        prompts = [torch.tensor(request.tokens) for request in requests]
        ids: Any = pad_sequence(prompts, batch_first=True, padding_value=-1)
        ids = torch.where(ids < 0, ids[:, :1], ids)
        return EncoderRepetitionPenaltyLogitsProcessor(penalty, ids)

    return drawing_through(processor)
