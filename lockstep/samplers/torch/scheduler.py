"""Continuous batching: each pass decodes all running sequences and prefills new prompts.

A free slot is filled in the next pass. A prompt that several sequences share is computed once. If
memory runs out, the sequence that started last is preempted: it frees its memory, and its prompt
and response so far are recomputed later.

Letters: N tokens of a pass, M of them with logits, R running sequences, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, compress, count

import torch
from torch import Tensor
from torch.nn import functional as F

from lockstep.core.types import Request, SamplingParams
from lockstep.distributed.penalties import apply_penalties
from lockstep.distributed.sampling import draw_tokens
from lockstep.samplers.stop_strings import open_stop_strings
from lockstep.samplers.torch.blocks import BlockAllocator, count_blocks
from lockstep.samplers.torch.continuous import ContinuousLayout, DecodeAttention
from lockstep.samplers.torch.dense_cache import DenseKVCache
from lockstep.samplers.torch.paged_cache import BLOCK, PagedKVCache
from lockstep.samplers.torch.penalty_counts import PenaltyCounts
from lockstep.samplers.torch.prefill import PassTokens, prefill_prompts
from lockstep.samplers.torch.sequences import (
    NotFinite,
    Response,
    ScheduledSequence,
    SequenceStates,
    SharedPrompt,
)
from lockstep_logprobs.hidden import ROWS

PASS_TOKENS = 16_384
"""Maximum prompt tokens per pass, unless a single prompt is longer."""

ForwardFunction = Callable[[Tensor, Tensor, ContinuousLayout, Tensor], Tensor]
"""Computes logits [M, V].

Arguments: tokens and positions [N], their layout, and the indices [M] of tokens with logits.
"""


class BatchScheduler:
    """Waiting and running sequences; `step` is one pass of the model.

    Args:
        forward: The model.
        slots: Maximum number of running sequences.
        context: Maximum tokens per sequence.
        device: Device of the model.
        exact: Whether the model, and so log-probabilities, are computed exactly.
        max_cache_tokens: Maximum total capacity of the dense KV cache, in tokens; None: no limit.
        folder: Folder of the model, whose tokenizer decodes text to find stop strings.

    Attributes:
        finished: Responses by request number; the caller removes them.
        passes: Number of passes so far.
        computed: Number of computed tokens.
        preempted: Number of preemptions.
    """

    def __init__(
        self,
        forward: ForwardFunction,
        slots: int,
        context: int,
        device: torch.device,
        exact: bool,
        max_cache_tokens: int | None = None,
        folder: str = "",
    ) -> None:
        self._forward = forward
        self._context = context
        self._device = device
        self._exact = exact
        self._max_cache_tokens = max_cache_tokens
        self._folder = folder
        self._blocks = BlockAllocator()
        self._paged_cache = PagedKVCache(device)
        self._dense_cache = DenseKVCache(context)
        self._states = SequenceStates(slots, device)
        self._free_slots = list(range(slots))[::-1]
        self._numbers = count()
        self._start_numbers = count()
        self._prompts: dict[tuple[int, ...], SharedPrompt] = {}
        self._waiting: deque[ScheduledSequence] = deque()
        self._running: list[ScheduledSequence] = []
        self._penalty_counts: PenaltyCounts | None = None
        self._slot_R = self._int_tensor([])
        self.finished: dict[int, Response] = {}
        self.passes = 0
        self.computed = 0
        self.preempted = 0

    @property
    def is_busy(self) -> bool:
        """True while requests wait or run."""
        return bool(self._waiting or self._running)

    def submit(self, request: Request, sampling: SamplingParams) -> int:
        """Queues a request. Returns its number."""
        number = next(self._numbers)
        max_tokens = min(sampling.max_tokens, self._context - len(request.tokens))
        prompt = self._acquire_prompt(request.tokens)
        empty = Response([], [], False)
        self._waiting.append(
            ScheduledSequence(number, request, sampling, max_tokens, prompt, empty)
        )
        return number

    def abort(self, number: int) -> None:
        """Removes a request, whether it waits, runs or has ended."""
        self.finished.pop(number, None)
        for sequence in [one for one in self._waiting if one.number == number]:
            self._waiting.remove(sequence)
            self._release_prompt(sequence.prompt)
        self._free_sequences([one for one in self._running if one.number == number])
        self._sort_running()

    @torch.no_grad()
    def step(self) -> None:
        """Makes one pass, in which each running and each new sequence gets a token.

        Raises:
            NotFinite: Logits are NaN or infinite.
        """
        self._move_outgrown()
        new, prompts = self._admit_sequences()
        logits_MV = self._run_pass(prompts)
        logits_RV = self._find_logits(logits_MV, prompts, [sequence.prompt for sequence in new])
        if new:
            self._start_sequences(new, logits_RV.shape[1])
        if self._append_tokens(logits_RV) or new:
            self._sort_running()

    def _acquire_prompt(self, tokens: tuple[int, ...]) -> SharedPrompt:
        """The prompt with these tokens, for one more sequence."""
        prompt = self._prompts.setdefault(tokens, SharedPrompt(tokens))
        prompt.waiting += 1
        return prompt

    def _release_prompt(self, prompt: SharedPrompt) -> None:
        """Removes a waiting sequence from a prompt; releases the prompt's blocks after the last
        one.
        """
        prompt.waiting -= 1
        if prompt.waiting == 0:
            del self._prompts[prompt.tokens]
            self._blocks.release_blocks(prompt.blocks)
            prompt.logits = None

    def _move_outgrown(self) -> None:
        """Moves sequences that fill their rows to the next larger buffer.

        Preempts the newest sequences if memory runs out.
        """
        full = [one for one in self._dense_cache.occupied_buffers if one.longest >= one.capacity]
        for buffer in full:
            computed_R = self._states.computed_S[self._int_tensor(buffer.slots)]
            rows = (computed_R >= buffer.capacity).nonzero().squeeze(-1).tolist()
            outgrown = [buffer.slots[row] for row in rows]
            growth = self._dense_cache.row_capacity(buffer.capacity + 1) - buffer.capacity
            while outgrown and len(self._running) > 1 and not self._fits(growth * len(outgrown)):
                newest = max(self._running, key=lambda sequence: sequence.start_number)
                outgrown = [slot for slot in outgrown if slot != newest.slot]
                self._preempt_sequence(newest)
            if outgrown:
                rows = list(map(buffer.slots.index, outgrown))
                self._dense_cache.move_sequences(buffer, rows)
            self._sort_running()

    def _fits(self, tokens: int) -> bool:
        """True if the dense KV cache has room for rows of `tokens` more tokens."""
        return (
            self._max_cache_tokens is None
            or self._dense_cache.allocated_tokens + tokens <= self._max_cache_tokens
        )

    def _preempt_sequence(self, sequence: ScheduledSequence) -> None:
        """Preempts a running sequence: frees its memory, and puts it at the head of the queue."""
        (sequence.partial,) = self._states.build_responses([sequence], [False])
        self._free_sequences([sequence])
        sequence.prompt = self._acquire_prompt((*sequence.request.tokens, *sequence.partial.tokens))
        self._waiting.appendleft(sequence)
        self.preempted += 1

    def _free_sequences(self, sequences: Sequence[ScheduledSequence]) -> None:
        """Frees the slots and memory of running sequences."""
        slots = [sequence.slot for sequence in sequences]
        self._dense_cache.remove_sequences(slots)
        self._free_slots += slots
        for sequence in sequences:
            sequence.slot = -1
        self._running = [sequence for sequence in self._running if sequence.slot >= 0]

    def _sort_running(self) -> None:
        """Sorts running sequences into the order of their rows in the dense KV cache.

        Needed after any sequence started, moved or ended.
        """
        buffers = self._dense_cache.occupied_buffers
        slots = list(chain.from_iterable(buffer.slots for buffer in buffers))
        by_slot = {sequence.slot: sequence for sequence in self._running}
        self._running = [by_slot[slot] for slot in slots]
        self._slot_R = self._int_tensor(slots)
        computed_R = self._states.computed_S[self._slot_R]
        parts = computed_R.split([len(buffer.slots) for buffer in buffers])
        for buffer, part_R in zip(buffers, parts, strict=True):
            buffer.longest = int(part_R.max())

    def _admit_sequences(self) -> tuple[list[ScheduledSequence], list[SharedPrompt]]:
        """Gives slots to waiting sequences.

        Returns these sequences, and the prompts to compute in the next pass.
        """
        new = list[ScheduledSequence]()
        prompts = list[SharedPrompt]()
        prefill_tokens = 0
        cache_tokens = 0
        self._blocks.max_cached = max(
            self._blocks.max_cached, self._dense_cache.allocated_tokens // BLOCK
        )
        while self._waiting and self._free_slots:
            prompt = self._waiting[0].prompt
            cache_tokens += self._dense_cache.row_capacity(len(prompt.tokens) + 1)
            if (self._running or new) and not self._fits(cache_tokens):
                break
            if not prompt.blocks:
                cached = self._blocks.find_prefix(prompt.tokens)
                num_cached = BLOCK * len(cached)
                prefill_tokens += len(prompt.tokens) - num_cached
                if prompts and prefill_tokens > PASS_TOKENS:
                    break
                self._blocks.share_blocks(cached)
                prompt.blocks = cached + self._blocks.allocate_blocks(
                    count_blocks(len(prompt.tokens)) - len(cached)
                )
                prompt.num_cached = num_cached
                self._blocks.cache_prefix(prompt.tokens, prompt.blocks)
                prompts.append(prompt)
            new.append(self._waiting.popleft())
            new[-1].slot = self._free_slots.pop()
        return new, prompts

    def _run_pass(self, prompts: list[SharedPrompt]) -> Tensor | None:
        """Makes a pass.

        Returns logits of running sequences, then of prompts; None if there are neither.
        """
        running = len(self._running)
        if not running and not prompts:
            return None
        multiple = BLOCK if self._exact else 1
        prompts.sort(key=lambda prompt: prompt.num_cached > 0)
        new = sum(len(prompt.tokens) - prompt.num_cached for prompt in prompts)
        padding = -(running + new) % ROWS if self._exact else 0
        decode = prefill = None
        position_R = self._states.computed_S[self._slot_R]
        tokens = PassTokens(
            F.pad(self._states.token_S[self._slot_R], (0, padding)),
            F.pad(position_R, (0, padding)),
            torch.arange(running, device=self._device),
        )
        buffers = self._dense_cache.occupied_buffers
        if running + padding:
            decode = DecodeAttention(buffers, position_R, padding)
        if prompts:
            self._paged_cache.grow_blocks(self._blocks.count)
            prompt_tokens, prefill = prefill_prompts(prompts, multiple, self._device)
            tokens = tokens.append_tokens(prompt_tokens)
        layout = ContinuousLayout(self._paged_cache, running + padding, decode, prefill)
        logits_MV = self._forward(tokens.token, tokens.position, layout, tokens.keep)
        self._states.computed_S[self._slot_R] += 1
        for buffer in buffers:
            buffer.longest += 1
        self.passes += 1
        self.computed += running + new
        return logits_MV

    def _find_logits(
        self, logits_MV: Tensor | None, prompts: list[SharedPrompt], new: list[SharedPrompt]
    ) -> Tensor:
        """The logits of each sequence [R, V]: of running ones, then of each new one's prompt.

        Args:
            logits_MV: Logits of the pass, of running sequences and of prompts.
            prompts: Prompts in the pass; they keep their logits while sequences wait for them.
            new: Prompt of each new sequence.
        """
        is_unshared = prompts == new and all(prompt.waiting == 1 for prompt in prompts)
        if logits_MV is not None and is_unshared:
            return logits_MV
        running = len(self._running)
        for prompt, logits_V in zip(
            prompts, () if logits_MV is None else logits_MV[running:], strict=True
        ):
            prompt.logits = logits_V.clone()
        first = [prompt.logits[None] for prompt in new if prompt.logits is not None]
        assert len(first) == len(new), "a prompt was not computed"
        return torch.cat(first if logits_MV is None else [logits_MV[:running], *first])

    def _start_sequences(self, new: Sequence[ScheduledSequence], columns: int) -> None:
        """Starts decoding sequences with computed prompts; `columns`: vocabulary size."""
        self._dense_cache.add_sequences(
            [sequence.slot for sequence in new],
            [sequence.prompt.blocks for sequence in new],
            [len(sequence.prompt.tokens) for sequence in new],
            self._paged_cache,
        )
        self._states.start_sequences(new)
        self._running += new
        self._slot_R = self._int_tensor([sequence.slot for sequence in self._running])
        for sequence in new:
            sequence.start_number = next(self._start_numbers)
            self._release_prompt(sequence.prompt)
            if sequence.sampling.penalizes:
                self._penalty_counts = self._penalty_counts or PenaltyCounts(
                    self._states.count, columns, self._device
                )
                self._penalty_counts.start_sequence(
                    sequence.slot, sequence.request.tokens, sequence.partial.tokens
                )

    def _append_tokens(self, logits_RV: Tensor) -> bool:
        """Samples a token for each running sequence, and finishes sequences that end with it.

        Returns whether any sequence finished.
        """
        states = self._states
        slot_R = self._slot_R
        token_R, logprob_R, stopped_R = self._sample_tokens(logits_RV, states.next_uniforms(slot_R))
        states.append_tokens(slot_R, token_R, logprob_R)
        if self._penalty_counts is not None:
            self._penalty_counts.add_tokens(slot_R, token_R)
        stopped_R = self._mark_stop_strings(stopped_R)
        ended_R = stopped_R | (states.length_S[slot_R] >= states.max_length_S[slot_R])
        stopped, ended, finite = torch.stack([stopped_R, ended_R, logprob_R.isfinite()]).tolist()
        if not all(finite):
            broken = self._running[finite.index(False)]
            raise NotFinite(broken.number, int(states.length_S[broken.slot]) - 1)
        finished = list(compress(self._running, ended))
        if finished:
            responses = states.build_responses(finished, list(compress(stopped, ended)))
            for sequence, response in zip(finished, responses, strict=True):
                self.finished[sequence.number] = response
                if sequence.request.continues:
                    self._cache_sequence(sequence, response)
            self._free_sequences(finished)
        return bool(finished)

    def _sample_tokens(self, logits_RV: Tensor, uniform_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Samples tokens.

        Returns them, their log-probabilities, and whether each is a stop token, [R] each.
        """
        samplings = list({id(one.sampling): one.sampling for one in self._running}.values())
        if len(samplings) == 1:
            return self._sample_with_params(logits_RV, uniform_R, self._slot_R, samplings[0])
        token_R = torch.zeros_like(self._slot_R)
        logprob_R = torch.zeros_like(uniform_R, dtype=torch.float32)
        stopped_R = torch.zeros_like(token_R, dtype=torch.bool)
        for sampling in samplings:
            rows = self._int_tensor(
                [row for row, one in enumerate(self._running) if one.sampling is sampling]
            )
            token_R[rows], logprob_R[rows], stopped_R[rows] = self._sample_with_params(
                logits_RV[rows], uniform_R[rows], self._slot_R[rows], sampling
            )
        return token_R, logprob_R, stopped_R

    def _sample_with_params(
        self, logits_RV: Tensor, uniform_R: Tensor, slot_R: Tensor, sampling: SamplingParams
    ) -> tuple[Tensor, Tensor, Tensor]:
        shaped_RV = logits_RV
        if sampling.penalizes:
            assert self._penalty_counts is not None, "a sequence with penalties has started"
            earlier = self._penalty_counts.earlier_tokens(slot_R)
            shaped_RV = apply_penalties(logits_RV, earlier, sampling)
        token_R, logprob_R = draw_tokens(shaped_RV, uniform_R, sampling, self._exact)
        return token_R, logprob_R, torch.isin(token_R, self._int_tensor(sampling.stop_token_ids))

    def _mark_stop_strings(self, stopped_R: Tensor) -> Tensor:
        """Marks sequences whose newest token completes a stop string as stopped, bool [R]."""
        strings = {
            row: open_stop_strings(self._folder, sequence.sampling.stop)
            for row, sequence in enumerate(self._running)
            if sequence.sampling.stop
        }
        if not strings:
            return stopped_R
        rows = self._int_tensor(list(strings))
        window = max(stops.window for stops in strings.values())
        newest = self._states.newest_tokens(self._slot_R[rows], window)
        pairs = zip(strings.values(), newest, strict=True)
        completes = [stops.contains_stop(tokens) for stops, tokens in pairs]
        stopped_R[rows] |= torch.tensor(completes, device=self._device)
        return stopped_R

    def _cache_sequence(self, sequence: ScheduledSequence, response: Response) -> None:
        """Copies a finished sequence's keys and values to cached blocks.

        Its last token is left out, since its keys and values were never computed.
        """
        tokens = (*sequence.request.tokens, *response.tokens)
        cached = self._blocks.find_prefix(tokens)
        self._blocks.share_blocks(cached)
        blocks = cached + self._blocks.allocate_blocks((len(tokens) - 1) // BLOCK - len(cached))
        self._paged_cache.grow_blocks(self._blocks.count)
        self._dense_cache.save_sequence(sequence.slot, blocks, len(cached), self._paged_cache)
        self._blocks.cache_prefix(tokens[:-1], blocks)
        self._blocks.release_blocks(blocks)

    def _int_tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)
