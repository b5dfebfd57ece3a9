"""Faults of what a log-probability is of: which token, which distribution, which denominator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedModel

from lockstep.batch import Batch
from lockstep.doctor.backends.hf import HFBackend, Sequences
from lockstep.doctor.backends.torch import TorchBackend
from lockstep.doctor.base import USUAL, Conditions, Layout
from lockstep.doctor.selftest.fault import PLAINLY, Change, Fault, Setup
from lockstep.doctor.selftest.means import BF16, FP16, is_chosen, type_with
from lockstep.models.attention import Cached
from lockstep.samplers.torch.sampler import TorchSampler
from lockstep.types import Request, SamplingParams


def cooler(magnitude: float) -> Setup:
    """Drawn at a temperature below 1."""
    return Setup(sampling=replace(PLAINLY, temperature=1 - magnitude))


def nucleus(magnitude: float) -> Setup:
    """Drawn without the unlikeliest tokens."""
    return Setup(sampling=replace(PLAINLY, top_p=1 - magnitude))


class RawScores(TorchBackend):
    """Says log-probabilities of the model's own distribution, as engines do before logits are processed."""

    def sampler(self, model: PreTrainedModel, conditions: Conditions) -> TorchSampler:
        return TorchSampler(model, conditions.batch_size or 1, conditions.dtype == "bf16", raw_logprobs=True)

    def logprob(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        return super().logprob(model, replace(batch, sampling=None))


class NoTemperature(HFBackend):
    """Forgets to divide the logits."""

    def logprob(self, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams, conditions: Conditions) -> Tensor:
        return super().logprob(logits_MV, token_M, replace(sampling, temperature=1.0), conditions)


class NoNucleus(HFBackend):
    """Forgets that tokens were left out."""

    def logprob(self, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams, conditions: Conditions) -> Tensor:
        return super().logprob(logits_MV, token_M, replace(sampling, top_p=1.0), conditions)


class KnowsPrompts(HFBackend):
    """Remembers where each response begins."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._prompt_lengths: dict[tuple[int, ...], int] = {}

    def received(self, batch: Batch) -> Sequences:
        for tokens, mask in zip(batch.sequences(), batch.sequences("mask"), strict=True):
            self._prompt_lengths[tuple(tokens.tolist())] = int(mask.long().argmax())
        return super().received(batch)

    def prompt_length(self, tokens_T: Tensor) -> int:
        """How many tokens stand before the response; 0 for a sequence that was never received."""
        return self._prompt_lengths.get(tuple(tokens_T.tolist()), 0)


def shifted_twice(share: float) -> tuple[Change, ...]:
    """A collator shifts labels that the model shifts again; only some rows come through that collator."""

    class ShiftedTwice(HFBackend):
        def passed(self, model: PreTrainedModel, sequences: Sequences, layout: Layout) -> Sequences:
            logits = super().passed(model, sequences, layout)
            pairs = zip(sequences, logits, strict=True)
            return [own.roll(1, 0) if is_chosen(tokens, share) else own for tokens, own in pairs]

    return (Change("train", ShiftedTwice),)


def first_token_late(share: float) -> tuple[Change, ...]:
    """The first response token is read from the state before the prompt's last token, as if that were cut off."""

    class FirstTokenLate(KnowsPrompts):
        def passed(self, model: PreTrainedModel, sequences: Sequences, layout: Layout) -> Sequences:
            logits = [own.clone() for own in super().passed(model, sequences, layout)]
            for tokens, own in zip(sequences, logits, strict=True):
                length = self.prompt_length(tokens)
                if length > 1 and is_chosen(tokens, share):
                    own[length - 1] = own[length - 2]
            return logits

    return (Change("train", FirstTokenLate),)


def through_text(share: float) -> tuple[Change, ...]:
    """Some responses reach the trainer as text."""

    class ThroughText(KnowsPrompts):
        def __init__(self, folder: str, *args: Any, **named: Any) -> None:
            super().__init__(folder, *args, **named)
            self._tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))

        def received(self, batch: Batch) -> Sequences:
            return [self._again(tokens) if is_chosen(tokens, share) else tokens for tokens in super().received(batch)]

        def _again(self, tokens_T: Tensor) -> Tensor:
            length = self.prompt_length(tokens_T)
            text = self._tokenizer.decode(tokens_T[length:].tolist(), skip_special_tokens=False)
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
            return torch.cat([tokens_T[:length], torch.tensor(ids, dtype=torch.int64)])

    return (Change("train", ThroughText),)


def padded_rows(rows: float) -> tuple[Change, ...]:
    """The head has rows for tokens that are none; they are zero, and so are their logits."""

    class PaddedRows(HFBackend):
        def logprob(
            self, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams, conditions: Conditions
        ) -> Tensor:
            padded_MV = torch.nn.functional.pad(logits_MV, (0, round(rows)))
            return super().logprob(padded_MV, token_M, sampling, conditions)

    return (Change("train", PaddedRows),)


def coarse_softmax(error: float) -> tuple[Change, ...]:
    """The log-softmax is taken in the type that logits come in."""

    class CoarseSoftmax(HFBackend):
        def logprob(
            self, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams, conditions: Conditions
        ) -> Tensor:
            if "softmax" in conditions.parts:
                return super().logprob(logits_MV, token_M, sampling, conditions)
            own = logits_MV.to(type_with(error)).log_softmax(-1)
            return own.gather(-1, token_M[:, None])[:, 0].float()

    return (Change("train", CoarseSoftmax),)


def hidden_top_k(inverse: float) -> tuple[Change, ...]:
    """The engine takes a top-k from the model's generation_config, and tells nobody."""

    class HiddenTopK(TorchBackend):
        def generate(
            self, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions = USUAL
        ) -> Batch:
            drawn = super().generate(requests, replace(sampling, top_k=round(1 / inverse)), conditions)
            return replace(drawn, sampling=sampling)

    return (Change("infer", HiddenTopK),)


class _Remembering(Cached):
    """Also knows which tokens each row has had, bool [B, V] once `seen_BV` is made."""

    seen_BV: Tensor | None = None

    def note(self, row_N: Tensor, token_N: Tensor, vocabulary: int) -> Tensor:
        if self.seen_BV is None:
            self.seen_BV = torch.zeros(self._rows, vocabulary, dtype=torch.bool)
        self.seen_BV[row_N, token_N] = True
        return self.seen_BV

    def keep(self, rows: Tensor) -> None:
        super().keep(rows)
        assert self.seen_BV is not None, "rows are only dropped while decoding"
        self.seen_BV = self.seen_BV[rows]


def hidden_penalty(strength: float) -> tuple[Change, ...]:
    """The engine takes a repetition penalty from the model's generation_config, and tells nobody."""

    class PenalisingSampler(TorchSampler):
        def _cache(self, prompts: Batch, capacity: int) -> Cached:
            return _Remembering(prompts, capacity)

        def _logits(self, tokens: Tensor, position: Tensor, cache: Cached, keep: int | Tensor) -> Tensor:
            logits = super()._logits(tokens, position, cache, keep)
            assert isinstance(cache, _Remembering)
            row_N = cache._row if cache.seen_BV is None else torch.arange(tokens.shape[0])
            seen = cache.note(row_N, tokens.flatten(), logits.shape[-1]).view(logits.shape)
            punished = torch.where(logits > 0, logits / (1 + strength), logits * (1 + strength))
            return torch.where(seen, punished, logits)

    class HiddenPenalty(TorchBackend):
        def sampler(self, model: PreTrainedModel, conditions: Conditions) -> TorchSampler:
            return PenalisingSampler(model, conditions.batch_size or 1, conditions.dtype == "bf16")

    return (Change("infer", HiddenPenalty),)


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
    Fault(
        2,
        "temperature omitted",
        ("temperature",),
        "train",
        "1 − temperature",
        (0.3, 0.03),
        lambda _: (Change("train", NoTemperature),),
        cooler,
    ),
    Fault(
        3,
        "top_p omitted",
        ("top_p",),
        "train",
        "1 − top_p",
        (0.2, 0.05),
        lambda _: (Change("train", NoNucleus),),
        nucleus,
    ),
    Fault(4, "shifted twice", ("off_by_one",), "train", "share of sequences", (1.0, 0.1), shifted_twice),
    Fault(5, "first token late", ("first_token",), "train", "share of sequences", (1.0, 0.25), first_token_late),
    Fault(6, "through text", ("retokenised",), "train", "share of sequences", (1.0, 0.1), through_text),
    Fault(11, "padded head", ("padded_vocabulary",), "train", "rows too many", (1024, 128), padded_rows),
    Fault(25, "hidden top-k", ("top_k",), "infer", "1/k", (0.1, 0.01), hidden_top_k),
    Fault(30, "hidden repetition penalty", ("penalty",), "infer", "penalty − 1", (0.3, 0.03), hidden_penalty),
    Fault(34, "softmax in low precision", ("softmax_precision",), "train", "rounding", (BF16, FP16), coarse_softmax),
)
"""Each with its number in the list."""
