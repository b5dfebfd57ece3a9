"""Third faults of what is drawn and what is scored: logits processors, seams, text, rows without a token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel

from benchmarks.doctor_faults.sides import Alteration, HFSide, TorchSide
from lockstep import align
from lockstep.batch import Batch
from lockstep.distributed.sampling import token_scores
from lockstep.doctor.backends.hf import Sequences
from lockstep.doctor.base import Conditions
from lockstep.models.heads import PLAIN, inputs
from lockstep.types import Request, SamplingParams

Drawn = tuple[Tensor, Tensor]
_NEWLINE = 2
_RECENT = 24


@contextmanager
def processed(model: PreTrainedModel, processor: LogitsProcessor) -> Iterator[None]:
    """The model's `generate` puts logits through one more processor, before all others."""
    usual: Any = model.generate

    def generate(*values: Any, logits_processor: LogitsProcessorList, **named: Any) -> Any:
        return usual(*values, logits_processor=LogitsProcessorList([processor, *logits_processor]), **named)

    vars(model)["generate"] = generate
    try:
        yield
    finally:
        del vars(model)["generate"]


Processing = Callable[[PreTrainedModel, Sequence[Request], SamplingParams], LogitsProcessor]
"""What logits go through besides, by who is asked what."""


def drawing_through(processor: Processing) -> type[HFSide]:
    """An engine that puts logits through one more processor while it draws."""

    class DrawsThrough(HFSide):
        def draw(
            self, model: PreTrainedModel, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions
        ) -> Drawn:
            with processed(model, processor(model, requests, sampling)):
                return super().draw(model, requests, sampling, conditions)

    return DrawsThrough


class _Frequency(LogitsProcessor):
    """Takes something off the logits of tokens for each time that they came up lately."""

    def __init__(self, penalty: float) -> None:
        self._penalty = penalty

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        recent_BR = input_ids[:, -_RECENT:]
        count_BV = torch.zeros_like(scores).scatter_add(1, recent_BR, torch.ones_like(recent_BR, dtype=scores.dtype))
        count_BV[:, 0] = 0  # what prompts are padded with
        return scores - self._penalty * count_BV


def frequency_penalty(penalty: float) -> type[HFSide]:
    """The engine's defaults have a frequency penalty, which counts the prompt as well."""

    return drawing_through(lambda *_: _Frequency(penalty))


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


class NarrowNucleus(TorchSide):
    """Leaves the token out with which the nucleus reaches its probability."""

    def logprob(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        sampling = batch.sampling or PLAIN
        if sampling.top_p >= 1:
            return super().logprob(model, batch)
        own = _own(batch)
        logits_MV = model(**inputs(batch), logits_to_keep=align.state_before(own)).logits[0].float()
        scaled_MV = logits_MV / sampling.divisor
        prob_MV, order_MV = scaled_MV.softmax(-1).sort(-1, descending=True)
        kept_MV = prob_MV.cumsum(-1) < sampling.top_p
        kept_MV[:, 0] = True
        inside_MV = torch.zeros_like(kept_MV).scatter(1, order_MV, kept_MV)
        inside_MV = inside_MV.scatter(1, batch.tokens[own][:, None], True)
        narrow_MV = scaled_MV.masked_fill(~inside_MV, float("-inf"))
        return _column(narrow_MV.log_softmax(-1).gather(-1, batch.tokens[own][:, None])[:, 0], own, batch)


def seams(share: float) -> type[TorchSide]:
    """Log-probabilities are made piece by piece, and a piece has no logits of what stands before it."""
    length = round(1 / share)

    class Seams(TorchSide):
        def logprob(self, model: PreTrainedModel, batch: Batch) -> Tensor:
            own = _own(batch)
            begins = batch.position[own] % length == 0
            state = torch.where(begins, own, align.state_before(own))
            logits_MV = model(**inputs(batch), logits_to_keep=state).logits[0]
            logprob_M, _ = token_scores(logits_MV, batch.tokens[own], batch.sampling or PLAIN)
            return _column(logprob_M, own, batch)

    return Seams


def specials_skipped(count: int) -> type[HFSide]:
    """Responses reach the trainer as text, and decoding leaves out what its tokenizer takes for special tokens."""

    class SpecialsSkipped(HFSide):
        def __init__(self, folder: str, *values: Any, **named: Any) -> None:
            super().__init__(folder, *values, **named)
            self._tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
            self._tokenizer.add_special_tokens([f"w{token}" for token in range(200, 200 + count)])

        def token_ids(self, batch: Batch) -> Sequences:
            pairs = zip(batch.sequences(), batch.sequences("mask"), strict=True)
            return [torch.cat([tokens[~mask], self._again(tokens[mask])]) for tokens, mask in pairs]

        def _again(self, tokens_K: Tensor) -> Tensor:
            text = self._tokenizer.decode(tokens_K.tolist(), skip_special_tokens=True)
            return torch.tensor(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=torch.int64)

    return SpecialsSkipped


def spare_rows_barred(count: int) -> Alteration:
    """The head gives rows that have no token no probability, as is right; who does not, is wrong."""

    def alter(model: PreTrainedModel) -> None:
        head: Any = model.get_output_embeddings()
        weight_VD = head.weight

        def forward(states: Tensor) -> Tensor:
            logits = F.linear(states, weight_VD)
            spare = torch.arange(logits.shape[-1]) >= logits.shape[-1] - count
            return logits.masked_fill(spare, float("-inf"))

        head.forward = forward

    return alter


def _own(batch: Batch) -> Tensor:
    """Flat indices of the tokens to score."""
    return (batch.mask & (batch.position > 0)).nonzero().squeeze(-1)


def _column(logprob_M: Tensor, own_M: Tensor, batch: Batch) -> Tensor:
    return logprob_M.new_zeros(batch.tokens.numel()).index_copy(0, own_M, logprob_M)
