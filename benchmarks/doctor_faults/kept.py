"""The faults of `lockstep doctor selftest`: one of each sort of mistake, named surely and in a few seconds.

The whole lists, of which these are a part, are in `benchmarks/doctor_faults/`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from benchmarks.doctor_faults.fault import PLAINLY, Case, Change, Fault, Setup
from benchmarks.doctor_faults.means import BF16, E4M3, E5M2, FP16, is_chosen, linears, rounded, some_layers, type_with
from benchmarks.doctor_faults.sides import HFSide, TorchSide
from lockstep import keyed
from lockstep.batch import Batch
from lockstep.doctor.backends.hf import Sequences
from lockstep.doctor.base import Conditions, Layout
from lockstep.models.attention import Cached
from lockstep.samplers.torch.static import StaticSampler
from lockstep.types import SamplingParams

_ROPE_THETA = 10_000.0
_EPS = 1e-5
_WINDOW = 32
_STALE = ("layers.1.mlp.down_proj.weight", "layers.1.mlp.experts.down_proj", "layers.1.mixer.out_proj.weight")


def cooler(magnitude: float) -> Setup:
    """Drawn at a temperature below 1."""
    return Setup(sampling=replace(PLAINLY, temperature=1 - magnitude))


def nucleus(magnitude: float) -> Setup:
    """Drawn without the unlikeliest tokens."""
    return Setup(sampling=replace(PLAINLY, top_p=1 - magnitude))


class NoTemperature(HFSide):
    """Forgets to divide the logits."""

    def logprob(self, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams, conditions: Conditions) -> Tensor:
        return super().logprob(logits_MV, token_M, replace(sampling, temperature=1.0), conditions)


class NoNucleus(HFSide):
    """Forgets that tokens were left out."""

    def logprob(self, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams, conditions: Conditions) -> Tensor:
        return super().logprob(logits_MV, token_M, replace(sampling, top_p=1.0), conditions)


class KnowsPrompts(HFSide):
    """Remembers where each response begins."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._prompt_lengths: dict[tuple[int, ...], int] = {}

    def token_ids(self, batch: Batch) -> Sequences:
        for tokens, mask in zip(batch.sequences(), batch.sequences("mask"), strict=True):
            self._prompt_lengths[tuple(tokens.tolist())] = int(mask.long().argmax())
        return super().token_ids(batch)

    def prompt_length(self, tokens_T: Tensor) -> int:
        """How many tokens stand before the response; 0 for a sequence that was never received."""
        return self._prompt_lengths.get(tuple(tokens_T.tolist()), 0)


def shifted_twice(share: float) -> tuple[Change, ...]:
    """A collator shifts labels that the model shifts again; only some rows come through that collator."""

    class ShiftedTwice(HFSide):
        def compute_logits(self, model: PreTrainedModel, sequences: Sequences, layout: Layout) -> Sequences:
            logits = super().compute_logits(model, sequences, layout)
            pairs = zip(sequences, logits, strict=True)
            return [own.roll(1, 0) if is_chosen(tokens, share) else own for tokens, own in pairs]

    return (Change("train", ShiftedTwice),)


def through_text(share: float) -> tuple[Change, ...]:
    """Some responses reach the trainer as text."""

    class ThroughText(KnowsPrompts):
        def __init__(self, folder: str, *args: Any, **named: Any) -> None:
            super().__init__(folder, *args, **named)
            self._tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))

        def token_ids(self, batch: Batch) -> Sequences:
            return [self._again(tokens) if is_chosen(tokens, share) else tokens for tokens in super().token_ids(batch)]

        def _again(self, tokens_T: Tensor) -> Tensor:
            length = self.prompt_length(tokens_T)
            text = self._tokenizer.decode(tokens_T[length:].tolist(), skip_special_tokens=False)
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
            return torch.cat([tokens_T[:length], torch.tensor(ids, dtype=torch.int64)])

    return (Change("train", ThroughText),)


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

    class PenalisingSampler(StaticSampler):
        def _cache(self, prompts: Batch, capacity: int) -> Cached:
            return _Remembering(prompts, capacity)

        def _logits(self, tokens: Tensor, position: Tensor, cache: Cached, keep: int | Tensor) -> Tensor:
            logits = super()._logits(tokens, position, cache, keep)
            assert isinstance(cache, _Remembering)
            row_N = cache._row if cache.seen_BV is None else torch.arange(tokens.shape[0])
            seen = cache.note(row_N, tokens.flatten(), logits.shape[-1]).view(logits.shape)
            punished = torch.where(logits > 0, logits / (1 + strength), logits * (1 + strength))
            return torch.where(seen, punished, logits)

    class HiddenPenalty(TorchSide):
        def sampler(self, model: PreTrainedModel, conditions: Conditions) -> StaticSampler:
            return PenalisingSampler(model, conditions.batch_size or 1, conditions.dtype == "bf16")

    return (Change("infer", HiddenPenalty),)


def other_rope_base(more: float) -> tuple[Change, ...]:
    """The engine has another base of the rotary embedding."""
    return (Change("infer", config={"rope_parameters.rope_theta": _ROPE_THETA * (1 + more)}),)


def other_window(more: float) -> tuple[Change, ...]:
    """The engine's sliding window is wider; so much wider that it is off."""
    return (Change("infer", config={"sliding_window": _WINDOW + round(more)}),)


def other_eps(more: float) -> tuple[Change, ...]:
    """The engine's norms have another epsilon."""
    return (Change("infer", config={"rms_norm_eps": _EPS + more}),)


def other_type(error: float) -> tuple[Change, ...]:
    """One side computes in fp16, the other in bf16 or fp32."""
    return Change("train", dtype="bf16" if error >= BF16 else "fp32"), Change("infer", dtype="fp16")


def step(case: Case, size: float) -> dict[str, Tensor]:
    """A training step: each weight moves by `size` of its tensor's usual length. Returns what a refit has to send."""
    case.train.load([(name, _moved(name, tensor, size)) for name, tensor in case.train.weights() if _trained(name)])
    return {name: tensor for name, tensor in case.train.weights() if _trained(name)}


def refit_but_one(case: Case, size: float) -> None:
    """One tensor stays what it was before the step."""
    case.infer.load((name, tensor) for name, tensor in step(case, size).items() if not name.endswith(_STALE))


def coarse_weights(error: float) -> tuple[Change, ...]:
    """The engine holds its layers in fp8, with a scale per row, and quantises what it loads."""
    dtype = type_with(error)

    class CoarseWeights(TorchSide):
        def load(self, stream: Iterable[tuple[str, Tensor]]) -> None:
            super().load((name, rounded(x, dtype) if "_proj." in name and x.ndim == 2 else x) for name, x in stream)

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        for linear in linears(some_layers(model, 1.0)):
            linear.weight.copy_(rounded(linear.weight, dtype))

    return (Change("infer", CoarseWeights, alter),)


def _trained(name: str) -> bool:
    return not name.endswith(("inv_freq", "embed_scale"))


def _moved(name: str, tensor: Tensor, size: float) -> Tensor:
    noise = torch.randn(tensor.shape, generator=keyed.generator("step", name)).to(tensor.dtype)
    return tensor + size * tensor.float().square().mean().sqrt().to(tensor.dtype) * noise


def attended_padding(block: float) -> tuple[Change, ...]:
    """The trainer pads on the left, and its mask hides padding in whole blocks only."""

    class AttendsPadding(HFSide):
        def compute_logits(self, model: PreTrainedModel, sequences: Sequences, layout: Layout) -> Sequences:
            if layout != "padded":
                return super().compute_logits(model, sequences, layout)
            padded = pad_sequence(list(sequences), batch_first=True, padding_side="left")
            width = padded.shape[1]
            hidden = [(width - len(tokens)) // round(block) * round(block) for tokens in sequences]
            seen = (torch.arange(width) >= torch.tensor(hidden)[:, None]).long()
            logits_BTV = model(input_ids=padded, attention_mask=seen, use_cache=False).logits
            return [logits[-len(tokens) :] for logits, tokens in zip(logits_BTV, sequences, strict=True)]

    return (Change("train", AttendsPadding),)


KEPT: tuple[Fault, ...] = (
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
    Fault(6, "through text", ("retokenised",), "train", "share of sequences", (1.0, 0.1), through_text),
    Fault(7, "other rope base", ("rope",), "infer", "relative", (9.0, 0.1), other_rope_base),
    Fault(
        8,
        "other sliding window",
        ("sliding_window",),
        "infer",
        "tokens",
        (1000, 4),
        other_window,
        lambda _: Setup(model="window"),
    ),
    Fault(12, "other norm epsilon", ("norm_eps",), "infer", "more", (3e-2, 1e-3), other_eps),
    Fault(
        16,
        "stale tensor",
        ("stale_tensor",),
        "infer",
        "relative step",
        (0.3, 0.03),
        lambda _: (),
        after=refit_but_one,
    ),
    Fault(19, "fp8 weights", ("quantised_weights",), "infer", "rounding", (E5M2, E4M3), coarse_weights),
    Fault(22, "padding attended", ("left_padding",), "train", "tokens in a block", (1000, 4), attended_padding),
    Fault(30, "hidden repetition penalty", ("penalty",), "infer", "penalty − 1", (0.3, 0.03), hidden_penalty),
    Fault(
        33,
        "one side in fp16",
        ("dtype",),
        None,
        "rounding of the other side",
        (BF16, FP16),
        other_type,
        lambda _: Setup(infer="hf"),
    ),
)
"""Each with its number in the lists."""
