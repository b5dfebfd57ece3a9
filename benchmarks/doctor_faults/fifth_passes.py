"""Fifth faults of how a pass is made: chunks, pinned caches, pads between turns, positions in packed rows."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from benchmarks.doctor_faults.faults_passes import Packs
from benchmarks.doctor_faults.faults_weights import StalePrefixes
from benchmarks.doctor_faults.kept import KnowsPrompts
from benchmarks.doctor_faults.sides import TorchSide, undoes
from lockstep.batch import Batch
from lockstep.doctor.backends.hf import Sequences
from lockstep.doctor.base import Conditions, Layout
from lockstep.models.attention import Cached, Packed
from lockstep.samplers.torch.static import StaticSampler


def blind_chunks(size: int) -> type[TorchSide]:
    """Long prompts are read in chunks, none of which sees those before it."""

    class Chunked(Cached):
        def __init__(self, prompts: Batch, capacity: int) -> None:
            super().__init__(prompts, capacity)
            chunks = [len(chunk) for tokens in prompts.sequences() for chunk in tokens.split(size)]
            self._packed = Packed.of(Batch(prompts.tokens, torch.tensor(chunks)))

    class Sampler(StaticSampler):
        def _cache(self, prompts: Batch, capacity: int) -> Cached:
            return Chunked(prompts, capacity)

    class BlindChunks(TorchSide):
        def sampler(self, model: PreTrainedModel, conditions: Conditions) -> StaticSampler:
            made = StaticSampler if undoes(conditions, "chunks") else Sampler
            return made(model, conditions.batch_size or 1, conditions.dtype == "bf16")

    return BlindChunks


class PinnedPrompts(StalePrefixes):
    """The cache is dropped at a refit, but for what is pinned: the first block of each prompt."""

    end = 16


def pads_between_turns(block: int) -> type[KnowsPrompts]:
    """To stack rows, the trainer fills prompts up to whole blocks; its mask, made of lengths, hides only the end."""

    class PadsBetweenTurns(KnowsPrompts):
        def compute_logits(self, model: PreTrainedModel, sequences: Sequences, layout: Layout) -> Sequences:
            if layout != "padded" or len(sequences) == 1:
                return super().compute_logits(model, sequences, layout)
            prompts = [self.prompt_length(tokens) for tokens in sequences]
            pads = [-length % block for length in prompts]
            filled = [
                torch.cat([tokens[:length], tokens.new_zeros(more), tokens[length:]])
                for tokens, length, more in zip(sequences, prompts, pads, strict=True)
            ]
            logits = super().compute_logits(model, filled, layout)
            return [
                torch.cat([own[: length - 1], own[length - 1 + more :]]) if length else own
                for own, length, more in zip(logits, prompts, pads, strict=True)
            ]

    return PadsBetweenTurns


def unpadded_boundaries(multiple: int) -> type[Packs]:
    """Packed sequences are each padded for their ranks, and positions begin where they would begin without pads."""

    class UnpaddedBoundaries(Packs):
        def compute_logits(self, model: PreTrainedModel, sequences: Sequences, layout: Layout) -> Sequences:
            if layout != "packed":
                return super().compute_logits(model, sequences, layout)
            lengths = torch.tensor([len(tokens) for tokens in sequences])
            padded = lengths + -lengths % multiple
            row_N = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
            place_N = torch.cat([torch.arange(len(tokens)) for tokens in sequences])
            # Pads are hidden from all others, so they can be left out once each token's place is known.
            place_N = place_N + (padded.cumsum(0) - padded)[row_N]
            starts = lengths.cumsum(0) - lengths
            position_N = place_N - starts[torch.searchsorted(starts, place_N, right=True) - 1]
            visible_NN = (row_N[:, None] == row_N[None]).tril()
            return self.packed(model, sequences, position_N, visible_NN)

    return UnpaddedBoundaries
