"""Continuous batching: each pass decodes all running rows and prefills new ones.

A free slot is filled in the next pass. A prompt that several rows share is computed once. If memory
runs out, the row that began last is preempted: it gives up its memory, and its prompt and response
so far are recomputed later.

Letters: N tokens of a pass, R running rows, P prompts, B blocks of a row, V tokens of the
vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import count

import torch
from torch import Tensor
from torch.nn import functional as F

from lockstep.core.types import Request, SamplingParams
from lockstep.distributed.penalties import apply_penalties
from lockstep.distributed.sampling import draw_tokens
from lockstep.samplers.stop_strings import open_stop_strings
from lockstep.samplers.torch.blocks import BlockAllocator, count_blocks
from lockstep.samplers.torch.continuous import ContinuousLayout, DecodeRows
from lockstep.samplers.torch.extents import DenseKVCache
from lockstep.samplers.torch.passes import PassTokens, take_prompts
from lockstep.samplers.torch.pool import BLOCK, PagedKVCache
from lockstep.samplers.torch.rows import NotFinite, Response, RowStates, ScheduledRow, SharedPrompt
from lockstep.samplers.torch.seen import SeenTokens
from lockstep_logprobs.hidden import ROWS

PASS_TOKENS = 16_384
"""Maximum prompt tokens per pass, unless a single prompt is longer."""

ForwardFunction = Callable[[Tensor, Tensor, ContinuousLayout, Tensor], Tensor]
"""Computes logits [M, V].

Arguments: tokens and positions [N], their layout, and the indices [M] of tokens with logits.
"""


class BatchScheduler:
    """Waiting and running rows; `step` is one pass of the model.

    Args:
        forward: The model.
        places: Maximum number of running rows.
        context: Maximum tokens per sequence.
        device: Device of the model.
        exact: Whether the model, and so log-probabilities, are computed exactly.
        most_tokens: Maximum total size of the KV slots of running rows, in tokens; None: no limit.
        folder: Folder of the model, whose tokenizer decodes text to find stop strings.

    Attributes:
        finished: Responses by request number, until they are taken out.
        passes: Number of passes so far.
        computed: Number of computed tokens.
        preempted: Number of preemptions.
    """

    def __init__(
        self,
        forward: ForwardFunction,
        places: int,
        context: int,
        device: torch.device,
        exact: bool,
        most_tokens: int | None = None,
        folder: str = "",
    ) -> None:
        self._forward = forward
        self._context = context
        self._device = device
        self._exact = exact
        self._most_tokens = most_tokens
        self._folder = folder
        self._blocks, self._pool, self._extents = (
            BlockAllocator(),
            PagedKVCache(device),
            DenseKVCache(context),
        )
        self._places, self._free = RowStates(places, device), list(range(places))[::-1]
        self._numbers, self._began = count(), count()
        self._prompts: dict[tuple[int, ...], SharedPrompt] = {}
        self._waiting: deque[ScheduledRow] = deque()
        self._rows: list[ScheduledRow] = []
        self._seen: SeenTokens | None = None
        self._place_R = self._int_tensor([])
        self.finished: dict[int, Response] = {}
        self.passes = self.computed = self.preempted = 0

    @property
    def is_busy(self) -> bool:
        """True while requests wait or run."""
        return bool(self._waiting or self._rows)

    def submit(self, request: Request, sampling: SamplingParams) -> int:
        """Queues a request. Returns its number."""
        room = min(sampling.max_tokens, self._context - len(request.tokens))
        prompt = self._acquire_prompt(request.tokens)
        empty = Response([], [], False)
        self._waiting.append(
            ScheduledRow(next(self._numbers), request, sampling, room, prompt, empty)
        )
        return self._waiting[-1].number

    def abort(self, number: int) -> None:
        """Removes a request, whether it waits, runs or has ended."""
        self.finished.pop(number, None)
        for row in [row for row in self._waiting if row.number == number]:
            self._waiting.remove(row)
            self._release_prompt(row.prompt)
        self._free_rows([row for row in self._rows if row.number == number])
        self._sort_rows()

    @torch.no_grad()
    def step(self) -> None:
        """Makes one pass, in which each running row and each new row gets a token.

        Raises:
            NotFinite: Logits are NaN or infinite.
        """
        self._move_outgrown()
        new, prompts = self._admit_rows()
        logits_MV = self._run_pass(prompts)
        running = len(self._rows)
        begun = [row.prompt for row in new]
        logits_MV = self._find_logits(logits_MV, running, prompts, begun)
        if new:
            self._begin_rows(new, logits_MV.shape[1])
        if self._append_tokens(logits_MV) or new:
            self._sort_rows()

    def _acquire_prompt(self, tokens: tuple[int, ...]) -> SharedPrompt:
        """The prompt with these tokens, for one more row."""
        prompt = self._prompts.setdefault(tokens, SharedPrompt(tokens))
        prompt.waiting += 1
        return prompt

    def _release_prompt(self, prompt: SharedPrompt) -> None:
        """Notes that a row no longer waits for a prompt; after the last one, releases blocks."""
        prompt.waiting -= 1
        if prompt.waiting == 0:
            del self._prompts[prompt.tokens]
            self._blocks.release_blocks(prompt.blocks)
            prompt.logits = None

    def _move_outgrown(self) -> None:
        """Moves rows with full KV slots to the next arena; preempts the newest if out of memory."""
        for arena in [
            arena for arena in self._extents.occupied_arenas if arena.filled >= arena.room
        ]:
            filled = self._places.filled_S[self._int_tensor(arena.rows)]
            grown = self._extents.slot_length(arena.room + 1) - arena.room
            outgrown = [
                arena.rows[index] for index in (filled >= arena.room).nonzero().squeeze(-1).tolist()
            ]
            while outgrown and len(self._rows) > 1 and not self._has_room(grown * len(outgrown)):
                newest = max(self._rows, key=lambda row: row.began)
                outgrown = [place for place in outgrown if place != newest.place]
                self._preempt_row(newest)
            if outgrown:
                self._extents.move_rows(arena, [arena.rows.index(place) for place in outgrown])
            self._sort_rows()

    def _has_room(self, tokens: int) -> bool:
        """True if running rows may have `tokens` more tokens in KV slots."""
        return (
            self._most_tokens is None
            or self._extents.allocated_tokens + tokens <= self._most_tokens
        )

    def _preempt_row(self, row: ScheduledRow) -> None:
        """Preempts a running row: frees its memory, and puts it at the head of the queue."""
        (row.so_far,) = self._places.build_responses([row], [False])
        self._free_rows([row])
        row.prompt = self._acquire_prompt((*row.request.tokens, *row.so_far.tokens))
        self._waiting.appendleft(row)
        self.preempted += 1

    def _free_rows(self, rows: Sequence[ScheduledRow]) -> None:
        """Frees the slots and memory of running rows."""
        self._extents.remove_rows([row.place for row in rows])
        self._free += [row.place for row in rows]
        for row in rows:
            row.place = -1
        self._rows = [row for row in self._rows if row.place >= 0]

    def _sort_rows(self) -> None:
        """Sorts rows into the order of their KV slots in the arenas.

        Needed after any row began, moved or ended.
        """
        arenas = self._extents.occupied_arenas
        order = [place for arena in arenas for place in arena.rows]
        of = {row.place: row for row in self._rows}
        self._rows, self._place_R = [of[place] for place in order], self._int_tensor(order)
        filled = self._places.filled_S[self._place_R].split([len(arena.rows) for arena in arenas])
        for arena, filled_R in zip(arenas, filled, strict=True):
            arena.filled = int(filled_R.max())

    def _admit_rows(self) -> tuple[list[ScheduledRow], list[SharedPrompt]]:
        """Gives slots to waiting rows.

        Returns these rows, and the prompts to compute in the next pass.
        """
        new = list[ScheduledRow]()
        prompts = list[SharedPrompt]()
        tokens = 0
        room = 0
        self._blocks.keep = max(self._blocks.keep, self._extents.allocated_tokens // BLOCK)
        while self._waiting and self._free:
            prompt = self._waiting[0].prompt
            room += self._extents.slot_length(len(prompt.tokens) + 1)
            if (self._rows or new) and not self._has_room(room):
                break
            if not prompt.blocks:
                known = self._blocks.find_prefix(prompt.tokens)
                tokens += len(prompt.tokens) - BLOCK * len(known)
                if prompts and tokens > PASS_TOKENS:
                    break
                self._blocks.share_blocks(known)
                prompt.blocks = known + self._blocks.allocate_blocks(
                    count_blocks(len(prompt.tokens)) - len(known)
                )
                prompt.known = BLOCK * len(known)
                self._blocks.cache_prefix(prompt.tokens, prompt.blocks)
                prompts.append(prompt)
            new.append(self._waiting.popleft())
            new[-1].place = self._free.pop()
        return new, prompts

    def _run_pass(self, prompts: list[SharedPrompt]) -> Tensor | None:
        """Makes a pass.

        Returns logits of running rows, then of prompts; None if there are neither.
        """
        running = len(self._rows)
        multiple = BLOCK if self._exact else 1
        if not running and not prompts:
            return None
        prompts.sort(key=lambda prompt: prompt.known > 0)
        new = sum(len(prompt.tokens) - prompt.known for prompt in prompts)
        filling = -(running + new) % ROWS if self._exact else 0
        growing = beginning = None
        tokens = self._take_newest(filling)
        if running + filling:
            growing = DecodeRows(self._extents.occupied_arenas, tokens.position[:running], filling)
        if prompts:
            self._pool.grow_blocks(self._blocks.count)
            others, beginning = take_prompts(prompts, multiple, self._device)
            tokens = tokens.append_passes(others)
        layout = ContinuousLayout(self._pool, running + filling, growing, beginning)
        logits_MV = self._forward(tokens.token, tokens.position, layout, tokens.keep)
        self._places.filled_S[self._place_R] += 1
        for arena in self._extents.occupied_arenas:
            arena.filled += 1
        self.passes = self.passes + 1
        self.computed = self.computed + running + new
        return logits_MV

    def _find_logits(
        self,
        logits_MV: Tensor | None,
        running: int,
        prompts: list[SharedPrompt],
        begun: list[SharedPrompt],
    ) -> Tensor:
        """The logits of each row: running rows, then each new row's prompt.

        Args:
            logits_MV: Logits of the pass, of running rows and of prompts.
            running: Number of running rows.
            prompts: Prompts in the pass; they keep their logits as long as rows wait for them.
            begun: Prompt of each row that begins.
        """
        alone = prompts == begun and all(prompt.waiting == 1 for prompt in prompts)
        if logits_MV is not None and alone:
            return logits_MV
        for prompt, logits_V in zip(
            prompts, () if logits_MV is None else logits_MV[running:], strict=True
        ):
            prompt.logits = logits_V.clone()
        first = [prompt.logits[None] for prompt in begun if prompt.logits is not None]
        assert len(first) == len(begun), "a prompt was not computed"
        return torch.cat(first if logits_MV is None else [logits_MV[:running], *first])

    def _take_newest(self, filling: int) -> PassTokens:
        """The newest token of each running row, and `filling` padding tokens."""
        token = self._places.token_S[self._place_R]
        position = self._places.filled_S[self._place_R]
        keep = torch.arange(len(self._rows), device=self._device)
        if filling:
            token = F.pad(token, (0, filling))
            position = F.pad(position, (0, filling))
        return PassTokens(token, position, keep)

    def _begin_rows(self, rows: Sequence[ScheduledRow], columns: int) -> None:
        """Adds rows with computed prompts to the running rows; `columns`: vocabulary size."""
        lengths = [len(row.prompt.tokens) for row in rows]
        self._extents.add_rows(
            [row.place for row in rows], [row.prompt.blocks for row in rows], lengths, self._pool
        )
        self._places.begin_rows(rows)
        self._rows += rows
        self._place_R = self._int_tensor([row.place for row in self._rows])
        for row in rows:
            row.began = next(self._began)
            self._release_prompt(row.prompt)
            if row.sampling.penalizes:
                self._seen = self._seen or SeenTokens(self._places.count, columns, self._device)
                self._seen.begin_row(row.place, row.request.tokens, row.so_far.tokens)

    def _append_tokens(self, logits_RV: Tensor) -> bool:
        """Samples a token for each running row, and finishes rows that end with it.

        Returns whether any row finished.
        """
        places = self._places
        place_R = self._place_R
        token_R, logprob_R, stopped_R = self._sample_tokens(
            logits_RV, places.next_uniforms(place_R)
        )
        places.append_tokens(place_R, token_R, logprob_R)
        if self._seen is not None:
            self._seen.add_tokens(place_R, token_R)
        stopped_R = self._read_stop_strings(stopped_R)
        whole_R = stopped_R | (places.made_S[place_R] >= places.room_S[place_R])
        stopped, whole, finite = torch.stack([stopped_R, whole_R, logprob_R.isfinite()]).tolist()
        if not all(finite):
            broken = self._rows[finite.index(False)]
            raise NotFinite(broken.number, int(places.made_S[broken.place]) - 1)
        ended = [
            (row, stop) for row, stop, end in zip(self._rows, stopped, whole, strict=True) if end
        ]
        if ended:
            self._finish_rows(*zip(*ended, strict=True))
        return bool(ended)

    def _sample_tokens(self, logits_RV: Tensor, uniform_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Samples tokens.

        Returns them, their log-probabilities, and whether each is a stop token, [R] each.
        """
        samplings = list({id(row.sampling): row.sampling for row in self._rows}.values())
        if len(samplings) == 1:
            return self._sample_with_params(logits_RV, uniform_R, self._place_R, samplings[0])
        token_R = torch.zeros_like(self._place_R)
        logprob_R = torch.zeros_like(uniform_R, dtype=torch.float32)
        stopped_R = torch.zeros_like(token_R, dtype=torch.bool)
        for sampling in samplings:
            rows = self._int_tensor(
                [index for index, row in enumerate(self._rows) if row.sampling is sampling]
            )
            drawn = self._sample_with_params(
                logits_RV[rows], uniform_R[rows], self._place_R[rows], sampling
            )
            for column, some in zip((token_R, logprob_R, stopped_R), drawn, strict=True):
                column[rows] = some
        return token_R, logprob_R, stopped_R

    def _sample_with_params(
        self, logits_RV: Tensor, uniform_R: Tensor, place_R: Tensor, sampling: SamplingParams
    ) -> tuple[Tensor, Tensor, Tensor]:
        shaped_RV = logits_RV
        if sampling.penalizes:
            assert self._seen is not None, "rows that penalize have begun"
            shaped_RV = apply_penalties(logits_RV, self._seen.earlier_tokens(place_R), sampling)
        token_R, logprob_R = draw_tokens(shaped_RV, uniform_R, sampling, self._exact)
        return token_R, logprob_R, torch.isin(token_R, self._int_tensor(sampling.stop_token_ids))

    def _read_stop_strings(self, stopped_R: Tensor) -> Tensor:
        """Marks rows whose newest token completes a stop string as stopped, bool [R]."""
        stops = {
            index: row.sampling.stop for index, row in enumerate(self._rows) if row.sampling.stop
        }
        if not stops:
            return stopped_R
        strings = {index: open_stop_strings(self._folder, some) for index, some in stops.items()}
        rows = list(strings)
        window = max(some.window for some in strings.values())
        newest = zip(
            strings.values(),
            self._places.newest_tokens(self._place_R[self._int_tensor(rows)], window),
            strict=True,
        )
        completes = torch.tensor(
            [some.contains_stop(tokens) for some, tokens in newest], device=self._device
        )
        stopped_R[self._int_tensor(rows)] |= completes
        return stopped_R

    def _finish_rows(self, rows: Sequence[ScheduledRow], stopped: Sequence[bool]) -> None:
        """Takes the responses of finished rows; caches sequences that will be continued."""
        for row, response in zip(rows, self._places.build_responses(rows, stopped), strict=True):
            self.finished[row.number] = response
            if row.request.continues:
                self._cache_sequence(row, (*row.request.tokens, *response.tokens))
        self._free_rows(rows)

    def _cache_sequence(self, row: ScheduledRow, tokens: tuple[int, ...]) -> None:
        """Copies a row's keys and values to cached blocks; its last token's were never computed."""
        known = self._blocks.find_prefix(tokens)
        self._blocks.share_blocks(known)
        blocks = known + self._blocks.allocate_blocks((len(tokens) - 1) // BLOCK - len(known))
        self._pool.grow_blocks(self._blocks.count)
        self._extents.save_row(row.place, blocks, len(known), self._pool)
        self._blocks.cache_prefix(tokens[:-1], blocks)
        self._blocks.release_blocks(blocks)

    def _int_tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)
