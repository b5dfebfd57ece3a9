"""Backends that do one step otherwise: each function makes a class of what is done there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel

from benchmarks.doctor_faults.sides import HFSide, TorchSide, undoes
from lockstep import align
from lockstep.batch import Batch
from lockstep.doctor.backends.hf import Sequences
from lockstep.doctor.base import USUAL, Conditions
from lockstep.models.attention import Cached
from lockstep.models.heads import PLAIN, inputs
from lockstep.samplers.torch.model_sampler import ModelSampler
from lockstep.samplers.torch.static import StaticSampler
from lockstep.types import Request, SamplingParams

Drawn = tuple[Tensor, Tensor]
Unless = Callable[[Conditions], bool]
Score = Callable[[Tensor, Tensor, SamplingParams], Tensor]
Asked = Callable[[SamplingParams], SamplingParams]


def never(conditions: Conditions) -> bool:
    """No conditions undo it."""
    return False


def exact(part: str) -> Unless:
    """Undone where a part is asked for in fp32."""
    return lambda conditions: undoes(conditions, part)


def scoring(own: Callable[[Score, Tensor, Tensor, SamplingParams], Tensor], unless: Unless = never) -> type[HFSide]:
    """Log-probabilities by a function of the usual one, logits [M, V], tokens [M] and what is drawn with."""

    class Scoring(HFSide):
        def logprob(
            self, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams, conditions: Conditions
        ) -> Tensor:
            usual = partial(super().logprob, conditions=conditions)
            return (usual if unless(conditions) else partial(own, usual))(logits_MV, token_M, sampling)

    return Scoring


def asking(other: Asked) -> type[HFSide]:
    """Scores under another distribution than was asked for."""
    return scoring(lambda usual, logits_MV, token_M, sampling: usual(logits_MV, token_M, other(sampling)))


def asking_torch(other: Asked) -> type[TorchSide]:
    """The same of the torch learner."""

    class Asking(TorchSide):
        def logprob(self, model: PreTrainedModel, batch: Batch) -> Tensor:
            return super().logprob(model, replace(batch, sampling=other(batch.sampling or PLAIN)))

    return Asking


def summing(own: Callable[[PreTrainedModel, Batch, Tensor], Tensor]) -> type[TorchSide]:
    """Log-probabilities by a function of the model, a batch and the flat indices of what is scored [M]."""

    class Summing(TorchSide):
        def logprob(self, model: PreTrainedModel, batch: Batch) -> Tensor:
            own_M = (batch.mask & (batch.position > 0)).nonzero().squeeze(-1)
            logprob_M = own(model, batch, own_M)
            return logprob_M.new_zeros(batch.tokens.numel()).index_copy(0, own_M, logprob_M)

    return Summing


def logits_before(model: PreTrainedModel, batch: Batch, own_M: Tensor, **named: Any) -> Tensor:
    """Logits that describe some tokens [M, V]."""
    return model(**inputs(batch) | named, logits_to_keep=align.state_before(own_M)).logits[0]


Reading = Callable[[Callable[[Sequences], Sequences], PreTrainedModel, Sequences, list[int]], Sequences]
"""Logits, by the usual way, the model, sequences and the lengths of their prompts."""


def reading(own: Reading, most: int = 1_000, alone: bool = False) -> type[HFSide]:
    """Computes logits by a function of its own, of so many rows at once; of a row alone too, or there as usual."""

    class Reads(HFSide):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            self._prompts: dict[tuple[int, ...], int] = {}
            self._undone = False

        def score(self, batch: Batch, conditions: Conditions = USUAL) -> Tensor:
            self._undone = undoes(conditions, "alone") and not alone
            for tokens, mask in zip(batch.sequences(), batch.sequences("mask"), strict=True):
                self._prompts[tuple(tokens.tolist())] = int(mask.long().argmax())
            return super().score(batch, conditions)

        def compute_logits(self, model: PreTrainedModel, sequences: Sequences) -> Sequences:
            usual = partial(super().compute_logits, model)
            if self._undone:
                return usual(sequences)
            prompts = [self._prompts.get(tuple(tokens.tolist()), 0) for tokens in sequences]
            rows = [slice(start, start + most) for start in range(0, len(sequences), most)]
            return [logits for row in rows for logits in own(usual, model, sequences[row], prompts[row])]

    return Reads


def read_end_to_end(model: PreTrainedModel, sequences: Sequences) -> Sequences:
    """Logits of sequences in one row, with their positions and no mask."""
    tokens_1N = torch.cat(list(sequences))[None]
    logits_NV = model(input_ids=tokens_1N, position_ids=places(sequences)[None], use_cache=False).logits[0]
    return torch.split(logits_NV, [len(tokens) for tokens in sequences])


def places(sequences: Sequences) -> Tensor:
    """Positions of sequences that lie end to end [N]."""
    return torch.cat([torch.arange(len(tokens)) for tokens in sequences])


def rows_of(sequences: Sequences) -> Tensor:
    """Which of the sequences that lie end to end each token is of [N]."""
    return torch.repeat_interleave(torch.arange(len(sequences)), torch.tensor([len(tokens) for tokens in sequences]))


def read_packed(
    model: PreTrainedModel, sequences: Sequences, position_N: Tensor, visible_NN: Tensor | None
) -> Sequences:
    """Logits of sequences in one row, with positions and a mask of the trainer's own; None: a mask of ones."""
    tokens_1N = torch.cat(list(sequences))[None]
    mask = torch.ones_like(tokens_1N) if visible_NN is None else hide(visible_NN, model.dtype)
    logits_NV = model(input_ids=tokens_1N, position_ids=position_N[None], attention_mask=mask, use_cache=False).logits
    return torch.split(logits_NV[0], [len(tokens) for tokens in sequences])


def hide(visible_TT: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores, so that only some keys are seen [1, 1, T, T]."""
    return torch.zeros(visible_TT.shape, dtype=dtype).masked_fill(~visible_TT, torch.finfo(dtype).min)[None, None]


Named = Callable[[Tensor, Tensor], dict[str, Any]]
"""Arguments of a model, by the padded tokens [B, T] and each row's number of pads [B]."""


def read_padded(model: PreTrainedModel, sequences: Sequences, named: Named, left: bool = False) -> Sequences:
    """Logits of padded rows, with a mask of the trainer's own."""
    padded = pad_sequence(list(sequences), batch_first=True, padding_side="left" if left else "right")
    pads_B = padded.shape[1] - torch.tensor([len(tokens) for tokens in sequences])
    logits_BTV = model(input_ids=padded, use_cache=False, **named(padded, pads_B)).logits
    rows = zip(logits_BTV, sequences, strict=True)
    return [logits[-len(tokens) :] if left else logits[: len(tokens)] for logits, tokens in rows]


Again = Callable[[str], Callable[[Tensor, Tensor], Tensor]]
"""Ids that are scored, by the tokenizer's file, and then by a sequence's tokens and mask."""


def rewriting(again: Again) -> type[HFSide]:
    """Scores other ids than it got."""

    class Rewrites(HFSide):
        def __init__(self, folder: str, *args: Any, **named: Any) -> None:
            super().__init__(folder, *args, **named)
            self._again = again(str(Path(folder) / "tokenizer.json"))

        def score(self, batch: Batch, conditions: Conditions = USUAL) -> Tensor:
            anew = [self._again(*pair) for pair in zip(batch.sequences(), batch.sequences("mask"), strict=True)]
            tokens, lengths = torch.cat(anew), torch.tensor([len(tokens) for tokens in anew])
            mask = torch.ones_like(tokens, dtype=torch.bool)
            scores = super().score(Batch(tokens, lengths, {"mask": mask}, sampling=batch.sampling), conditions)
            columns = zip(scores.split(lengths.tolist()), batch.lengths.tolist(), strict=True)
            return torch.cat([F.pad(column, (0, length - len(column))) for column, length in columns]) * batch.mask

    return Rewrites


Begin = Callable[[str], Callable[[Tensor, int], tuple[Tensor, int]]]
"""Other first ids and how many they stand for, by the tokenizer's file, then by tokens and the prompt's length."""


def beginning(begin: Begin) -> type[HFSide]:
    """Scores responses behind other first tokens than it got."""

    class Begins(HFSide):
        def __init__(self, folder: str, *args: Any, **named: Any) -> None:
            super().__init__(folder, *args, **named)
            self._begin = begin(str(Path(folder) / "tokenizer.json"))

        def score(self, batch: Batch, conditions: Conditions = USUAL) -> Tensor:
            rows = list(zip(batch.sequences(), batch.sequences("mask"), strict=True))
            begun = [self._begin(tokens, int(mask.long().argmax())) for tokens, mask in rows]
            anew = [torch.cat([first, row[0][turn:]]) for row, (first, turn) in zip(rows, begun, strict=True)]
            masks = [F.pad(row[1][turn:], (len(first), 0)) for row, (first, turn) in zip(rows, begun, strict=True)]
            lengths = torch.tensor([len(tokens) for tokens in anew])
            own = Batch(torch.cat(anew), lengths, {"mask": torch.cat(masks)}, sampling=batch.sampling)
            scores = super().score(own, conditions)
            columns = zip(scores.split(lengths.tolist()), begun, strict=True)
            return torch.cat([F.pad(column[len(first) :], (turn, 0)) for column, (first, turn) in columns])

    return Begins


Within = Callable[[PreTrainedModel, Sequence[Request], SamplingParams], AbstractContextManager[object]]


def drawing(within: Within, unless: Unless = never) -> type[HFSide]:
    """Draws inside of a context."""

    class Draws(HFSide):
        def draw(
            self, model: PreTrainedModel, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions
        ) -> Drawn:
            if unless(conditions):
                return super().draw(model, requests, sampling, conditions)
            with within(model, requests, sampling):
                return super().draw(model, requests, sampling, conditions)

    return Draws


def rewriting_cache(change: Callable[[int, Any, int], None]) -> type[HFSide]:
    """After each pass, layers of the cache are changed, by their number, themselves and how many tokens are new."""

    def changed(module: Any, values: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        for number, layer in enumerate(output.past_key_values.layers):
            change(number, layer, named["input_ids"].shape[1])

    @contextmanager
    def within(model: PreTrainedModel, *_: object) -> Iterator[None]:
        hook = model.register_forward_hook(changed, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()

    return drawing(within, exact("cache"))


@contextmanager
def generating(model: PreTrainedModel, generate: Callable[..., Any]) -> Iterator[None]:
    """The model draws by another `generate`, a function of the usual one and what that takes."""
    vars(model)["generate"] = partial(generate, model.generate)
    try:
        yield
    finally:
        del vars(model)["generate"]


Processing = Callable[[PreTrainedModel, Sequence[Request], SamplingParams], LogitsProcessor]


def drawing_through(processor: Processing) -> type[HFSide]:
    """Puts logits through one more processor while it draws, before all others."""

    def within(
        model: PreTrainedModel, requests: Sequence[Request], sampling: SamplingParams
    ) -> AbstractContextManager[None]:
        own = processor(model, requests, sampling)

        def generate(usual: Any, *values: Any, logits_processor: LogitsProcessorList, **named: Any) -> Any:
            return usual(*values, logits_processor=LogitsProcessorList([own, *logits_processor]), **named)

        return generating(model, generate)

    return drawing(within)


def sampling_by(sampler: type[StaticSampler], unless: Unless = never) -> type[TorchSide]:
    """Draws with another sampler."""

    class Samples(TorchSide):
        def sampler(self, model: PreTrainedModel, conditions: Conditions) -> ModelSampler:
            if unless(conditions):
                return super().sampler(model, conditions)
            return sampler(model, conditions.batch_size or 1, conditions.dtype or "fp32")

    return Samples


def with_cache(cache: Callable[[Batch, int], Cached]) -> type[StaticSampler]:
    """A sampler that keeps keys and values in another cache."""

    class Keeps(StaticSampler):
        def _cache(self, prompts: Batch, capacity: int) -> Cached:
            return cache(prompts, capacity)

    return Keeps


def keeping(cache: Callable[[Batch, int], Cached], unless: Unless = never) -> type[TorchSide]:
    """Draws with another cache."""
    return sampling_by(with_cache(cache), unless)


def passing(own: Callable[[Any, Tensor, Tensor, Cached, bool], Tensor]) -> type[TorchSide]:
    """Logits go through a function of a sampler, themselves, tokens, the cache, and whether they are the first."""

    class Passes(StaticSampler):
        def _logits(self, tokens: Tensor, position: Tensor, cache: Cached, keep: int | Tensor) -> Tensor:
            return own(self, super()._logits(tokens, position, cache, keep), tokens, cache, isinstance(keep, Tensor))

    return sampling_by(Passes)
