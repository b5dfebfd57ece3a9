"""Tap on the torch sampler: the sampler's own passes, forced to draw the tokens of a given
sequence.

Letters: N tokens of a pass, T tokens of the sequence, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lockstep.config import DType
from lockstep.core.errors import InputError
from lockstep.core.types import Request, SamplingParams
from lockstep.distributed.sampling import token_scores
from lockstep.models.device import load_on_device
from lockstep.models.exact.model import is_exact
from lockstep.models.folder import carries_state, find_context_length
from lockstep.models.heads import PLAIN
from lockstep.models.precision import open_autocast
from lockstep.samplers.torch.continuous import ContinuousLayout, call_modules
from lockstep.samplers.torch.scheduler import BatchScheduler
from lockstep_doctor.cuts import OUTPUT, CutPoint, PassCapture, name_cuts
from lockstep_doctor.engines import EngineOptions
from lockstep_doctor.modules import (
    CutShare,
    PassState,
    count_functions,
    find_watched_modules,
    values_by_name,
    visit_cuts,
)
from lockstep_doctor.operators import OperatorTrace, Recorder
from lockstep_doctor.tap import trace_segment
from lockstep_doctor.taps.computation import computation_of


@contextmanager
def open_sampler(folder: Path, options: EngineOptions) -> Iterator[SamplerTap]:
    """Opens a folder in the torch sampler; see `engines.OpenTap`."""
    if options.parallel or options.neighbors:
        raise InputError(
            "the torch sampler reads one sequence in one process; leave out parallel and neighbors"
        )
    computation = computation_of(options)
    lm = load_on_device(str(folder), computation)
    if carries_state(lm.config):
        raise InputError(
            f"{lm.config.model_type} has recurrent layers, which the tap on the sampler does not "
            "support"
        )
    yield SamplerTap(lm, computation.dtype, options.prompt)


class SamplerTap:
    """Implements `lockstep_doctor.Tap` for the passes of a `TorchSampler`.

    Args:
        lm: A causal language model with Lockstep's attention.
        dtype: Compute type.
        prompt: Number of tokens to prefill; the others are decoded one by one. None: prefill all.
    """

    def __init__(self, lm: PreTrainedModel, dtype: DType, prompt: int | None = None) -> None:
        self.model = lm
        self._prompt = prompt
        self._dtype: DType = dtype
        if prompt is None:
            self.name = "torch sampler"
        else:
            self.name = "torch sampler decoding"
        self._paths = find_watched_modules(lm)
        self._values = values_by_name(name_cuts(self._paths))
        self._order: Sequence[CutPoint] = ()

    def run(self, tokens_T: Tensor, forced: Mapping[CutPoint, Tensor]) -> PassCapture:
        rows = PassShare()
        one = PassState(forced, share=rows)
        logits_TV, column = self._read_sequence(tokens_T, one, rows)
        seen = {cut: value.cpu() for cut, value in one.collect_values().items()}
        self._order = list(seen)
        return PassCapture(logits_TV.cpu(), seen, column)

    def trace(
        self,
        tokens_T: Tensor,
        forced: Mapping[CutPoint, Tensor],
        start: CutPoint | None,
        end: CutPoint,
    ) -> OperatorTrace:
        def trace_from(begin: CutPoint | None) -> OperatorTrace:
            rows = PassShare()
            with Recorder() as recorder:
                recorder.begin_early()
                self._read_sequence(tokens_T, PassState(forced, recorder, begin, end, rows), rows)
            return replace(
                recorder.join_calls(), split=(len(tokens_T), self._prompt or len(tokens_T))
            )

        return trace_segment(trace_from, self._order, start, end)

    def functions(self, tokens_T: Tensor) -> Counter[str]:
        with count_functions() as ran:
            self._read_sequence(tokens_T, PassState({}), PassShare())
        return ran

    def _read_sequence(
        self, tokens_T: Tensor, one: PassState, rows: PassShare
    ) -> tuple[Tensor, Tensor | None]:
        """Returns logits [T, V], and the sampler's log-probabilities [T − 1] if it prefills only
        the first token.
        """
        context = find_context_length(self.model.config)
        if self._prompt is None:
            prompt = len(tokens_T)
        else:
            prompt = self._prompt
        if len(tokens_T) >= context or not 0 < prompt <= len(tokens_T):
            raise InputError(
                f"prompt is {prompt}; the sampler can prefill 1 to "
                f"{min(context - 1, len(tokens_T))} of {len(tokens_T)} tokens, since it draws one "
                f"more in a context of {context}"
            )
        logits: list[Tensor] = []

        def forward(
            token_N: Tensor, position_N: Tensor, layout: ContinuousLayout, keep_M: Tensor
        ) -> Tensor:
            rows.begin_pass(len(token_N), 1 if logits else prompt, first=bool(logits))
            keep_N = torch.arange(len(token_N), device=token_N.device)
            logits_NV = call_modules(self.model, token_N, position_N, layout, keep_N)
            one.visit_cut(OUTPUT, logits_NV)
            logits.append(logits_NV[rows.own])
            return logits_NV.index_select(0, keep_M)

        scheduler = _ReplayScheduler(
            tokens_T, forward, 1, context, self.model.device, is_exact(self.model)
        )
        request = Request(tuple(tokens_T[:prompt].tolist()), key=0)
        number = scheduler.submit(request, SamplingParams(max_tokens=len(tokens_T) - prompt + 1))
        watched = visit_cuts(self.model, self._paths, self._values, one)
        with watched, open_autocast(self.model.device, self._dtype):
            while scheduler.is_busy:
                scheduler.step()
        column = torch.tensor(scheduler.finished[number].logprobs)[: len(tokens_T) - 1]
        return torch.cat(logits).to(tokens_T.device), column if prompt == 1 else None


class _ReplayScheduler(BatchScheduler):
    """A scheduler that draws the tokens of a given sequence."""

    def __init__(self, tokens_T: Tensor, *args: Any) -> None:
        super().__init__(*args)
        self._tokens_T = tokens_T

    def _sample_tokens(self, logits_RV: Tensor, uniform_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        position_R = self._states.computed_S[self._slot_R].clamp(max=len(self._tokens_T) - 1)
        token_R = self._tokens_T.to(position_R.device)[position_R]
        logprob_R, _ = token_scores(logits_RV, token_R, PLAIN, row_invariant=self._exact)
        return token_R, logprob_R, torch.zeros_like(token_R, dtype=torch.bool)


class PassShare(CutShare):
    """The share of a pass that belongs to the sequence, without padding."""

    def __init__(self) -> None:
        self.begin_pass(0, 0, first=True)

    def begin_pass(self, count: int, own: int, first: bool) -> None:
        """Starts a pass of `count` tokens, whose first or last `own` tokens belong to the
        sequence.
        """
        self._count, self.own = count, slice(0, own) if first else slice(count - own, count)

    def gather_tokens(self, cut: CutPoint, value: Tensor) -> Tensor | None:
        if value.numel() % self._count:
            return None
        return value.reshape(self._count, -1)[self.own]

    def scatter_tokens(self, cut: CutPoint, whole: Tensor, value: Tensor) -> None:
        rows = value.reshape(self._count, -1).clone()
        rows[self.own] = whole.to(rows)
        value.copy_(rows.reshape(value.shape))
