"""Seventh faults of what is drawn and what is scored: temperatures, nuclei, slots, drafts, text, rows of a head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel, TopPLogitsWarper

from benchmarks.doctor_faults.means import head_of
from benchmarks.doctor_faults.sides import Alteration, HFSide, TorchSide
from benchmarks.doctor_faults.third_scoring import drawing_through
from lockstep import keyed
from lockstep.batch import Batch
from lockstep.doctor.base import USUAL, BackendScores, Conditions
from lockstep.models.attention import Cached
from lockstep.models.heads import PLAIN
from lockstep.samplers.torch.static import StaticSampler
from lockstep.types import Request, SamplingParams

Drawn = tuple[Tensor, Tensor]
_FIRST_BIASED, _BIASED = 50, 40


class DividesTwice(TorchSide):
    """The trainer's loss divides logits by the temperature, and so does the patched model that gives them."""

    def logprob(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        sampling = batch.sampling or PLAIN
        squared = replace(sampling, temperature=sampling.temperature**2)
        return super().logprob(model, replace(batch, sampling=squared))


def nucleus_of_the_nucleus() -> type[HFSide]:
    """The engine cuts the nucleus out among its logits processors, and its sampling kernel cuts it out of the rest."""
    return drawing_through(lambda model, requests, sampling: TopPLogitsWarper(sampling.top_p))


def bias_left_in_slots(size: float) -> type[TorchSide]:
    """Every second slot of the batch still has the logit bias of a request that was served there before."""

    class Sampler(StaticSampler):
        def _logits(self, tokens: Tensor, position: Tensor, cache: Cached, keep: int | Tensor) -> Tensor:
            logits = super()._logits(tokens, position, cache, keep)
            bias_BV = torch.zeros(cache.filled.numel(), logits.shape[-1])
            bias_BV[::2, _FIRST_BIASED : _FIRST_BIASED + _BIASED] = size
            return logits + bias_BV.view(logits.shape)

    class BiasLeftInSlots(TorchSide):
        def sampler(self, model: PreTrainedModel, conditions: Conditions) -> StaticSampler:
            return Sampler(model, conditions.batch_size or 1, conditions.dtype == "bf16")

    return BiasLeftInSlots


def bonus_by_the_draft(run: int) -> type[HFSide]:
    """The engine verifies drafts in runs, and the last token of each gets its log-probability one position early."""

    class BonusByTheDraft(HFSide):
        _before: tuple[Tensor, ...] | None = None
        """Logits of the steps so far while a response is drawn."""

        def draw(
            self, model: PreTrainedModel, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions
        ) -> Drawn:
            self._before = ()
            try:
                return super().draw(model, requests, sampling, conditions)
            finally:
                self._before = None

        def logprob(
            self, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams, conditions: Conditions
        ) -> Tensor:
            if self._before is not None:
                self._before = (*self._before, logits_MV.clone())
                early = len(self._before) % run == 0
                logits_MV = self._before[-2] if early else logits_MV
            return super().logprob(logits_MV, token_M, sampling, conditions)

    return BonusByTheDraft


def earlier_turns_anew(most: int) -> type[HFSide]:
    """The trainer makes the ids of earlier turns, the first tokens of a prompt, anew from their text."""

    class EarlierTurnsAnew(HFSide):
        def __init__(self, folder: str, *values: Any, **named: Any) -> None:
            super().__init__(folder, *values, **named)
            self._tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))

        def score(self, batch: Batch, conditions: Conditions = USUAL) -> BackendScores:
            masks = batch.sequences("mask")
            turns = [min(most, int(mask.long().argmax())) for mask in masks]
            pairs = list(zip(batch.sequences(), turns, strict=True))
            anew = [torch.cat([self._again(tokens[:turn]), tokens[turn:]]) for tokens, turn in pairs]
            more = [len(new) - len(tokens) for new, tokens in zip(anew, batch.sequences(), strict=True)]
            hidden = [F.pad(mask[turn:], (turn + n, 0)) for mask, turn, n in zip(masks, turns, more, strict=True)]
            lengths = torch.tensor([len(tokens) for tokens in anew])
            own = Batch(torch.cat(anew), lengths, {"mask": torch.cat(hidden)}, sampling=batch.sampling)
            scores = super().score(own, conditions)
            columns = zip(scores.logprob.split(lengths.tolist()), pairs, more, strict=True)
            kept = [F.pad(column[turn + n :], (turn, 0)) for column, (_, turn), n in columns]
            return replace(scores, logprob=torch.cat(kept))

        def _again(self, tokens_K: Tensor) -> Tensor:
            text = self._tokenizer.decode(tokens_K.tolist(), skip_special_tokens=False)
            return torch.tensor(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=torch.int64)

    return EarlierTurnsAnew


def rows_drawn_by_resizing(count: int) -> Alteration:
    """The trainer makes its vocabulary a round number, and the new rows are drawn as the old ones are spread."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        head: Any = head_of(model)
        rows_VD = head.weight
        mean_D = rows_VD.mean(0)
        mixed_RV = torch.randn(count, len(rows_VD), generator=keyed.generator("seventh", "rows")) / len(rows_VD) ** 0.5
        new_RD = mean_D + mixed_RV.to(rows_VD.dtype) @ (rows_VD - mean_D)
        head.forward = partial(_product, rows_VD, new_RD)

    return alter


def _product(rows_VD: Tensor, new_RD: Tensor, states: Tensor) -> Tensor:
    return F.linear(states, torch.cat([rows_VD, new_RD]))
