"""Which distribution a log-probability is of: temperatures, supports, and the sum of the softmax."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, TopKLogitsWarper, TopPLogitsWarper

from benchmarks.doctor_faults import means
from benchmarks.doctor_faults.fault import Fault
from benchmarks.doctor_faults.means import BF16, FP16, type_with
from benchmarks.doctor_faults.sides import Alteration, HFSide, TorchSide
from benchmarks.doctor_faults.surroundings import always, around, drawn, mixed, whole
from benchmarks.doctor_faults.ways import (
    Score,
    asking,
    asking_torch,
    exact,
    logits_before,
    passing,
    scoring,
    summing,
)
from lockstep.batch import Batch
from lockstep.distributed.sampling import token_scores
from lockstep.doctor.backends.hf import shape_logits
from lockstep.doctor.base import Conditions
from lockstep.models.attention import Cached
from lockstep.models.heads import PLAIN
from lockstep.samplers.torch.static import StaticSampler
from lockstep.types import SamplingParams

_RANKS, _ROWS, _DRAFTED = 4, 40, 3


class RawScores(TorchSide):
    """Says log-probabilities of the model's own distribution, as engines do before logits are processed."""

    def sampler(self, model: PreTrainedModel, conditions: Conditions) -> StaticSampler:
        return StaticSampler(model, conditions.batch_size or 1, conditions.dtype or "fp32", raw_logprobs=True)

    def logprob(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        return super().logprob(model, replace(batch, sampling=None))


def _inverted(sampling: SamplingParams) -> SamplingParams:
    return sampling if sampling.greedy else replace(sampling, temperature=1 / sampling.temperature)


def _narrow_nucleus(model: PreTrainedModel, batch: Batch, own_M: Tensor) -> Tensor:
    """Leaves the token out with which the nucleus reaches its probability."""
    sampling, token_M1 = batch.sampling or PLAIN, batch.tokens[own_M][:, None]
    scaled_MV = logits_before(model, batch, own_M).float() / sampling.divisor
    prob_MV, order_MV = scaled_MV.softmax(-1).sort(-1, descending=True)
    kept_MV = prob_MV.cumsum(-1) < sampling.top_p
    kept_MV[:, 0] = True
    inside_MV = torch.zeros_like(kept_MV).scatter(1, order_MV, kept_MV).scatter(1, token_M1, True)
    return scaled_MV.masked_fill(~inside_MV, float("-inf")).log_softmax(-1).gather(-1, token_M1)[:, 0]


def _cold_rows_only(model: PreTrainedModel, batch: Batch, own_M: Tensor) -> Tensor:
    """Logits are scored in pieces of so many rows a sequence; the piece that is left over misses the temperature."""
    logits_MV, token_M = logits_before(model, batch, own_M), batch.tokens[own_M]
    cold_M, plain_M = (token_scores(logits_MV, token_M, asked)[0] for asked in (batch.sampling or PLAIN, PLAIN))
    row_M = batch.row[own_M]
    place_M = torch.arange(len(own_M)) - torch.searchsorted(row_M, row_M)
    count_M = torch.bincount(row_M, minlength=len(batch))[row_M]
    return torch.where(place_M < count_M // _ROWS * _ROWS, cold_M, plain_M)


def _caps_last(model: PreTrainedModel, batch: Batch, own_M: Tensor) -> Tensor:
    """The trainer's loss divides by the temperature first, and caps what comes out."""
    cap, model.config.final_logit_softcapping = float(model.config.final_logit_softcapping), None
    try:
        logits_MV = logits_before(model, batch, own_M).float()
    finally:
        model.config.final_logit_softcapping = cap
    capped_MV = cap * torch.tanh(logits_MV / (batch.sampling or PLAIN).divisor / cap)
    return token_scores(capped_MV, batch.tokens[own_M], PLAIN)[0]


def _joint_support(usual: Score, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams) -> Tensor:
    """Finds the nucleus among all tokens, where the sampler finds it among those that top-k has left."""
    if sampling.greedy or not sampling.top_k or sampling.top_p >= 1:
        return usual(logits_MV, token_M, sampling)
    nothing: Any = None
    scaled_MV: Any = logits_MV.float() / sampling.temperature
    likely_MV = TopKLogitsWarper(sampling.top_k)(nothing, scaled_MV)
    nucleus_MV = TopPLogitsWarper(sampling.top_p)(nothing, scaled_MV)
    kept_MV = (likely_MV.isfinite() & nucleus_MV.isfinite()).scatter(-1, token_M[:, None], True)
    return scaled_MV.masked_fill(~kept_MV, float("-inf")).log_softmax(-1).gather(-1, token_M[:, None])[:, 0]


def _nucleus_first(plain_MV: Tensor, scaled_MV: Tensor, own_M1: Tensor, sampling: SamplingParams) -> Tensor:
    """The trainer finds the nucleus before it divides by the temperature, the sampler after that."""
    inside_MV = shape_logits(plain_MV, replace(sampling, temperature=1.0)).isfinite().scatter(-1, own_M1, True)
    return scaled_MV.masked_fill(~inside_MV, float("-inf"))


def _likeliest_of_ranks(plain_MV: Tensor, scaled_MV: Tensor, own_M1: Tensor, sampling: SamplingParams) -> Tensor:
    """The vocabulary lies on ranks, and each keeps as many of its own tokens as all should keep together."""
    own = replace(sampling, temperature=1.0, top_p=1.0)
    together_MV = torch.cat([shape_logits(shard, own) for shard in scaled_MV.tensor_split(_RANKS, -1)], -1)
    return shape_logits(together_MV, replace(sampling, temperature=1.0, top_k=0))


def own_denominator(kept: Any) -> type[HFSide]:
    """A loss whose denominator is made of what a function keeps of the logits before and after the temperature."""

    def own(usual: Score, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams) -> Tensor:
        plain_MV, own_M1 = logits_MV.float(), token_M[:, None]
        scaled_MV = shape_logits(plain_MV, replace(sampling, top_k=0, top_p=1.0))
        kept_MW = kept(plain_MV, scaled_MV, own_M1, sampling)
        return (scaled_MV.gather(-1, own_M1) - kept_MW.logsumexp(-1, keepdim=True))[:, 0]

    return scoring(own)


def coarse_softmax(error: float) -> type[HFSide]:
    """The log-softmax is taken in the type that logits come in."""

    def own(usual: Score, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams) -> Tensor:
        return logits_MV.to(type_with(error)).log_softmax(-1).gather(-1, token_M[:, None])[:, 0].float()

    return scoring(own, exact("softmax"))


def low_sum(error: float) -> type[HFSide]:
    """The sum over the vocabulary is kept in a low precision; the token's own logit is not."""

    def own(usual: Score, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams) -> Tensor:
        own_M = logits_MV.float().gather(-1, token_M[:, None])[:, 0] / sampling.divisor
        return own_M - (own_M - usual(logits_MV, token_M, sampling)).to(type_with(error)).float()

    return scoring(own, exact("softmax"))


def running_sum(blocks: int) -> type[HFSide]:
    """The softmax goes through the vocabulary in blocks, and its running sum is kept in bf16: small terms are lost."""

    def own(usual: Score, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams) -> Tensor:
        if sampling.greedy or not sampling.full_support:
            return usual(logits_MV, token_M, sampling)
        scaled_MV = logits_MV.float() / sampling.temperature
        above_MV = scaled_MV - scaled_MV.amax(-1, keepdim=True)
        total_M = torch.zeros(len(above_MV), dtype=torch.bfloat16)
        for block_MB in above_MV.exp().tensor_split(blocks, -1):
            total_M = total_M + block_MB.sum(-1).bfloat16()
        return above_MV.gather(-1, token_M[:, None])[:, 0] - total_M.float().log()

    return scoring(own, exact("softmax"))


def divides_in_place(error: float) -> type[HFSide]:
    """To save memory the trainer divides logits by the temperature, and takes off their largest, in a low type."""

    def own(usual: Score, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams) -> Tensor:
        if sampling.greedy or not sampling.full_support:
            return usual(logits_MV, token_M, sampling)
        low_MV = logits_MV.to(type_with(error)).div_(sampling.temperature)
        above_MV = (low_MV - low_MV.amax(-1, keepdim=True)).float()
        return above_MV.gather(-1, token_M[:, None])[:, 0] - above_MV.logsumexp(-1)

    return scoring(own, exact("softmax"))


def off_zero(offset: float) -> Alteration:
    """The bias of the head moves all logits by the same, on both sides."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        bias = means.head_of(model).bias
        bias += offset

    return alter


def _raw_at_first(sampler: Any, logits: Tensor, tokens: Tensor, cache: Cached, first: bool) -> Tensor:
    """Prompts are read on another node, which reports the first token without a temperature."""
    sampler._raw_logprobs = first
    return logits


def _raw_drafts(sampler: Any, logits: Tensor, tokens: Tensor, cache: Cached, first: bool) -> Tensor:
    """The engine speculates, and drafts that it accepts get log-probabilities without the temperature."""
    sampler._step = 0 if first else sampler._step + 1
    sampler._raw_logprobs = sampler._step % (_DRAFTED + 1) != 0
    return logits


FAULTS = (
    Fault(1, 1, "raw log-probabilities", ("temperature",), "infer", "1 − temperature", (0.3, 0.03),
          always(RawScores), around(sampling=drawn(temperature=lambda m: 1 - m))),
    Fault(2, 1, "temperature omitted", ("temperature",), "train", "1 − temperature", (0.3, 0.03),
          always(asking(lambda s: replace(s, temperature=1.0))), around(sampling=drawn(temperature=lambda m: 1 - m))),
    Fault(3, 1, "top_p omitted", ("top_p",), "train", "1 − top_p", (0.2, 0.05),
          always(asking(lambda s: replace(s, top_p=1.0))), around(sampling=drawn(top_p=lambda m: 1 - m))),
    Fault(34, 1, "softmax in low precision", ("softmax_precision",), "train", "rounding", (BF16, FP16),
          mixed(coarse_softmax)),
    Fault(101, 2, "raw log-probabilities at a high temperature", ("temperature",), "infer", "temperature above 1",
          (0.4, 0.03), always(asking(lambda s: replace(s, temperature=1.0))),
          around("qwen3, deep", "torch", "hf", drawn(temperature=lambda m: 1 + m))),
    Fault(102, 2, "logits multiplied by the temperature", ("temperature",), "train", "temperature below 1",
          (0.3, 0.015), always(asking_torch(_inverted)),
          around("hunyuan", "torch", "hf", drawn(temperature=lambda m: 1 - m))),
    Fault(103, 2, "raw log-probabilities of a nucleus", ("top_p",), "infer", "probability cut off", (0.15, 0.02),
          always(RawScores), around("smollm", "hf", "torch", drawn(top_p=lambda m: 1 - m))),
    Fault(125, 2, "top_k dropped", ("top_k",), "train", "share of the vocabulary cut off", (0.97, 0.7),
          always(asking_torch(lambda s: replace(s, top_k=0))),
          around("phi", "torch", "hf", drawn(temperature=1.3, top_k=lambda m: round(384 * (1 - m))))),
    Fault(134, 2, "sum of the softmax in a low precision", ("softmax_precision",), "infer", "relative step",
          (2**-8, 2**-11), mixed(low_sum), around("smollm", "torch", "hf", drawn(temperature=1.3))),
    Fault(202, 3, "nucleus without its last token", ("top_p",), "train", "probability cut off", (0.4, 0.05),
          always(summing(_narrow_nucleus)), around("arcee", "torch", "hf", drawn(top_p=lambda m: 1 - m))),
    Fault(301, 4, "temperature not in the last piece", ("temperature",), "train", "1 − temperature", (0.4, 0.07),
          always(summing(_cold_rows_only)), around("olmo, first", "torch", "hf", drawn(temperature=lambda m: 1 - m))),
    Fault(302, 4, "nucleus before the likeliest", ("top_p", "top_k"), "train", "probability cut off", (0.3, 0.05),
          always(scoring(_joint_support)), around("gemma", "hf", "torch", drawn(top_k=20, top_p=lambda m: 1 - m))),
    Fault(303, 4, "first token by another node", ("first_token", "temperature"), "infer", "temperature − 1",
          (1.0, 0.25), always(passing(_raw_at_first)),
          around("hunyuan moe", "hf", "torch", drawn(max_tokens=16, temperature=lambda m: 1 + m))),
    Fault(305, 4, "running sum of the softmax", ("softmax_precision",), "infer", "blocks", (416, 104),
          mixed(whole(running_sum)), around("command r", "torch", "hf", drawn(temperature=1.5))),
    Fault(306, 4, "capped after the temperature", ("softcap", "temperature"), "train", "1 − temperature", (0.4, 0.04),
          always(summing(_caps_last)), around("nanochat", "torch", "hf", drawn(temperature=lambda m: 1 - m))),
    Fault(401, 5, "log-probabilities divided", ("temperature",), "infer", "temperature − 1", (0.4, 0.03),
          always(scoring(lambda usual, x, token, s: usual(x, token, replace(s, temperature=1.0)) / s.divisor)),
          around("ministral 3", "torch", "hf", drawn(temperature=lambda m: 1 + m))),
    Fault(402, 5, "nucleus before the temperature", ("top_p", "temperature"), "train", "temperature − 1", (0.8, 0.1),
          always(own_denominator(_nucleus_first)),
          around("jais", "hf", "torch", drawn(temperature=lambda m: 1 + m, top_p=0.9))),
    Fault(403, 5, "likeliest of each rank", ("top_k",), "train", "1 / k", (1 / 8, 1 / 90),
          always(own_denominator(_likeliest_of_ranks)),
          around("hyperclova", "hf", "torch", drawn(temperature=0.9, top_k=lambda m: round(1 / m)))),
    Fault(516, 6, "divided in a low type", ("softmax_precision",), "train", "rounding", (BF16, FP16),
          mixed(divides_in_place),
          around("ctrl", "hf", "torch", drawn(temperature=1.35), lambda _: off_zero(80.0))),
    Fault(517, 6, "accepted drafts", ("temperature",), "infer", "temperature − 1", (0.5, 0.05),
          always(passing(_raw_drafts), num_speculative_tokens=_DRAFTED),
          around("longcat", "hf", "torch", drawn(temperature=lambda m: 1 + m))),
    Fault(601, 7, "divided twice", ("temperature",), "train", "temperature − 1", (0.4, 0.04),
          always(asking_torch(lambda s: replace(s, temperature=s.temperature**2))),
          around("glm4", "torch", "hf", drawn(temperature=lambda m: 1 + m))),
)  # fmt: skip
