"""What an engine draws from: supports, penalties and processors that are not asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    EncoderRepetitionPenaltyLogitsProcessor,
    LogitsProcessor,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    PreTrainedModel,
    SuppressTokensLogitsProcessor,
    TopPLogitsWarper,
)

from benchmarks.doctor_faults.fault import Fault
from benchmarks.doctor_faults.sides import HFSide, TorchSide
from benchmarks.doctor_faults.surroundings import always, around, drawn, inverse, mixed, whole
from benchmarks.doctor_faults.ways import drawing_through, passing
from lockstep.batch import Batch
from lockstep.doctor.base import USUAL, Conditions
from lockstep.models.attention import Cached
from lockstep.types import Request, SamplingParams

_NEWLINE, _RECENT = 2, 24


def hidden_top_k(count: int) -> type[TorchSide]:
    """The engine takes a top-k from the model's generation_config, and does not say so."""

    class HiddenTopK(TorchSide):
        def generate(
            self, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions = USUAL
        ) -> Batch:
            batch = super().generate(requests, replace(sampling, top_k=count), conditions)
            return replace(batch, sampling=sampling)

    return HiddenTopK


def hidden_penalty(strength: float) -> type[TorchSide]:
    """The engine takes a repetition penalty from the model's generation_config, and does not say so."""

    def punished(sampler: Any, logits: Tensor, tokens: Tensor, cache: Cached, first: bool) -> Tensor:
        row_N = torch.arange(len(tokens))
        if first:
            row_N, rows = cache._row, len(cache.filled)
            sampler._seen_BV = torch.zeros(rows, logits.shape[-1], dtype=torch.bool)
        sampler._seen_BV[row_N, tokens.flatten()] = True
        low = torch.where(logits > 0, logits / (1 + strength), logits * (1 + strength))
        return torch.where(sampler._seen_BV.view(logits.shape), low, logits)

    return passing(punished)


def presence_penalty(penalty: float) -> type[TorchSide]:
    """Tokens that were drawn before lose some of their logit."""

    def lowered(sampler: Any, logits: Tensor, tokens: Tensor, cache: Cached, first: bool) -> Tensor:
        if first:
            sampler._drawn = torch.zeros(len(cache.filled), logits.shape[-1])
            return logits
        sampler._drawn = sampler._drawn.scatter(1, tokens, penalty)
        return logits - sampler._drawn[:, None]

    return passing(lowered)


def suppressed_at_first(share: float) -> type[TorchSide]:
    """The first token of a response may be none of the first of the vocabulary."""

    def barred(sampler: Any, logits: Tensor, tokens: Tensor, cache: Cached, first: bool) -> Tensor:
        hidden = torch.arange(logits.shape[-1]) < round(384 * share)
        return logits.masked_fill(hidden, float("-inf")) if first else logits

    return passing(barred)


def bias_left_in_slots(size: float) -> type[TorchSide]:
    """Every second slot of the batch still has the logit bias of a request that was served there before."""

    def biased(sampler: Any, logits: Tensor, tokens: Tensor, cache: Cached, first: bool) -> Tensor:
        bias_BV = torch.zeros(len(cache.filled), logits.shape[-1])
        bias_BV[::2, 50:90] = size
        return logits + bias_BV.view(logits.shape)

    return passing(biased)


class _Frequency(LogitsProcessor):
    """Takes something off the logits of tokens for each time that they came up lately."""

    def __init__(self, penalty: float) -> None:
        self._penalty = penalty

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        recent_BR = input_ids[:, -_RECENT:]
        count_BV = torch.zeros_like(scores).scatter_add(1, recent_BR, torch.ones_like(recent_BR, dtype=scores.dtype))
        count_BV[:, 0] = 0  # what prompts are padded with
        return scores - self._penalty * count_BV


class _NewlineFirst(LogitsProcessor):
    """At the first token, logits are those behind a newline that nothing else ever sees."""

    def __init__(self, model: Any, requests: Sequence[Request], share: float) -> None:
        self._model, self._first = model, True
        self._lengths = torch.tensor([len(request.tokens) for request in requests])
        self._hit = torch.tensor([request.key % 1009 < 1009 * share for request in requests])

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if not self._first:
            return scores
        self._first = False
        longer = F.pad(input_ids, (0, 1), value=_NEWLINE)
        seen = torch.arange(longer.shape[1]) >= input_ids.shape[1] - self._lengths[:, None]
        other = self._model(input_ids=longer, attention_mask=seen.long(), use_cache=False).logits[:, -1]
        return torch.where(self._hit[:, None], other, scores)


def newline_first(share: float) -> type[HFSide]:
    """The engine's template ends some prompts with a newline, which is gone once the first token is drawn."""
    return drawing_through(lambda model, requests, _: _NewlineFirst(model, requests, share))


def prompt_favored(more: float) -> type[HFSide]:
    """The engine's defaults have a penalty of their own for what stands in the prompt."""

    def processor(model: PreTrainedModel, requests: Sequence[Request], sampling: SamplingParams) -> LogitsProcessor:
        prompts = [torch.tensor(request.tokens) for request in requests]
        ids = pad_sequence(prompts, batch_first=True, padding_value=-1)
        filled: Any = torch.where(ids < 0, ids[:, :1], ids)
        return EncoderRepetitionPenaltyLogitsProcessor(1 + more, filled)

    return drawing_through(processor)


FAULTS = (
    Fault(25, 1, "hidden top-k", ("top_k",), "infer", "1/k", (0.1, 0.01), mixed(inverse(hidden_top_k))),
    Fault(30, 1, "hidden repetition penalty", ("penalty",), "infer", "penalty − 1", (0.3, 0.03), mixed(hidden_penalty)),
    Fault(105, 2, "first token suppressed", ("first_token",), "infer", "share of the vocabulary", (0.6, 0.1),
          mixed(suppressed_at_first), around("qwen3, deep", "torch", "torch", drawn(temperature=1.3))),
    Fault(130, 2, "presence penalty", ("penalty",), "infer", "nats", (1.0, 0.1),
          mixed(presence_penalty), around("qwen3 moe", "hf", "torch")),
    Fault(201, 3, "frequency penalty", ("penalty",), "infer", "nats each time", (1.0, 0.05),
          mixed(lambda m: drawing_through(lambda *_: _Frequency(m))), around("helium", "torch", "hf")),
    Fault(204, 3, "newline before the first token", ("first_token",), "infer", "share of requests", (1.0, 0.15),
          mixed(newline_first), around("exaone", "torch", "hf", drawn(temperature=1.2))),
    Fault(406, 5, "prompt favoured", ("penalty",), "infer", "penalty − 1", (0.5, 0.05),
          mixed(prompt_favored), around("biogpt", "torch", "hf")),
    Fault(520, 6, "suppressed tokens", ("penalty",), "infer", "tokens", (60, 12),
          mixed(whole(lambda n: drawing_through(lambda *_: SuppressTokensLogitsProcessor(list(range(3, 3 + n)))))),
          around("hrm", "torch", "hf", drawn(temperature=1.1, top_p=0.92))),
    Fault(602, 7, "nucleus of the nucleus", ("top_p",), "infer", "probability cut off", (0.3, 0.04),
          always(drawing_through(lambda model, requests, sampling: TopPLogitsWarper(sampling.top_p))),
          around("helium", "torch", "hf", drawn(top_p=lambda m: 1 - m))),
    Fault(603, 7, "bias left in slots", ("penalty",), "infer", "nats", (2.0, 0.15),
          mixed(bias_left_in_slots), around("mistral", "torch", "torch", drawn(top_k=70))),
    Fault(701, 8, "min_p of the model's defaults", ("top_p", "top_k"), "infer", "share of the likeliest", (0.1, 0.01),
          mixed(lambda m: drawing_through(lambda *_: MinPLogitsWarper(m))),
          around("granite", "torch", "hf"), split="held-out"),
    Fault(702, 8, "no repeats allowed", ("penalty",), "infer", "1 / tokens in a row", (1 / 2, 1 / 5),
          mixed(inverse(lambda n: drawing_through(lambda *_: NoRepeatNGramLogitsProcessor(n)))),
          around("hunyuan", "torch", "hf", drawn(temperature=0.7)), split="held-out"),
)  # fmt: skip
