"""Continuous batching: a pass computes the next token of all running rows, and the prompts of rows that begin.

A place that falls free is filled in the next pass. Rows with the same prompt share it: it is computed once, and its
full blocks are theirs together. When memory is spent, the row that began last gives up its blocks, and is computed
again later with the tokens that it had.

Letters: N tokens of a pass, R running rows, P prompts, B blocks of a row, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count

import torch
from torch import Tensor

from lockstep.distributed.sampling import draw, token_scores
from lockstep.models.exact.linear import ROWS
from lockstep.models.heads import PLAIN
from lockstep.models.paged import BLOCK, Paged, Pool
from lockstep.samplers.torch.blocks import Blocks, count_blocks
from lockstep.samplers.torch.passes import Tokens, take_newest, take_prompts
from lockstep.samplers.torch.rows import Places, Prompt, Response, Row
from lockstep.types import Request, SamplingParams

PASS_TOKENS = 16_384
"""Tokens of prompts in one pass, at most, but for one longer prompt."""

Forward = Callable[[Tensor, Tensor, Paged, Tensor], Tensor]
"""Computes logits [M, V] from tokens and positions [N], their layout, and which M of them have logits."""


class NotFinite(Exception):
    """Logits of a token of a request's response are NaN or infinite."""

    def __init__(self, number: int, token: int) -> None:
        super().__init__(number, token)
        self.number, self.token = number, token


class Scheduler:
    """Rows that wait and rows that run; `step` is one pass of the model.

    Args:
        forward: The model.
        places: Rows that run side by side, at most.
        context: Tokens of a sequence, at most.
        device: Where the model is.
        exact: True if the model is computed exactly, and log-probabilities are, too.
        raw_logprobs: Log-probabilities are those of temperature 1 and of all tokens, for any sampling.
        most_blocks: Blocks that memory allows; None: as many as rows need.

    Attributes:
        finished: Responses by the numbers of their requests, until they are taken out.
        passes: Number of passes so far.
        computed: Number of tokens that passes have computed.
        preempted: Number of times that a row gave up its blocks.
    """

    def __init__(
        self,
        forward: Forward,
        places: int,
        context: int,
        device: torch.device,
        exact: bool,
        raw_logprobs: bool = False,
        most_blocks: int | None = None,
    ) -> None:
        self._forward, self._context, self._device = forward, context, device
        self._exact, self._raw_logprobs = exact, raw_logprobs
        self._blocks, self._pool, self._places = Blocks(most_blocks), Pool(device), Places(places, device)
        self._free = list(range(places))[::-1]
        self._numbers = count()
        self._prompts: dict[tuple[int, ...], Prompt] = {}
        self._waiting: deque[Row] = deque()
        self._rows: list[Row] = []
        self._place_R = self._ints([])
        self._samplings: Counter[SamplingParams] = Counter()
        self._copies: list[tuple[int, int]] = []
        self.finished: dict[int, Response] = {}
        self.passes = self.computed = self.preempted = 0

    def submit(self, request: Request, sampling: SamplingParams) -> int:
        """Queues a request. Returns its number."""
        room = min(sampling.max_tokens, self._context - len(request.tokens))
        prompt, empty = self._await(request.tokens), Response([], [], False)
        self._waiting.append(Row(next(self._numbers), request, sampling, room, prompt, empty))
        return self._waiting[-1].number

    def abort(self, number: int) -> None:
        """Forgets a request, whether it waits, runs or has ended."""
        self.finished.pop(number, None)
        for row in [row for row in self._waiting if row.number == number]:
            self._waiting.remove(row)
            self._leave(row.prompt)
        self._stop([row for row in self._rows if row.number == number])

    def stream(self, number: int) -> Iterator[tuple[int, float]]:
        """Makes steps until a request has ended. Yields its tokens and their log-probabilities as they come."""
        given = 0
        while number not in self.finished:
            self.step()
            response = self.finished.get(number) or self._so_far(number)
            yield from zip(response.tokens[given:], response.logprobs[given:], strict=True)
            given = len(response.tokens)
        del self.finished[number]

    @torch.no_grad()
    def step(self) -> None:
        """Makes one pass, in which each running row and each that begins gets a token.

        Raises:
            NotFinite: Logits are NaN or infinite.
        """
        self._reserve()
        running = len(self._rows)
        new, prompts = self._admit()
        logits_MV = self._compute(running, prompts)
        if self._copies:
            self._pool.copy(*zip(*self._copies, strict=True))
            self._copies.clear()
        logits_RV = _of_rows(logits_MV, running, [row.prompt for row in new])
        self._append(logits_RV)

    def _so_far(self, number: int) -> Response:
        rows = [row for row in self._rows if row.number == number]
        if rows:
            return self._places.responses(rows, [False])[0]
        return next(row.so_far for row in self._waiting if row.number == number)

    def _await(self, tokens: tuple[int, ...]) -> Prompt:
        """The prompt of these tokens, for one more row."""
        prompt = self._prompts.setdefault(tokens, Prompt(tokens))
        prompt.waiting += 1
        return prompt

    def _leave(self, prompt: Prompt) -> None:
        """Notes that a row does not wait for a prompt any more; behind the last, its blocks are released."""
        prompt.waiting -= 1
        if prompt.waiting == 0:
            del self._prompts[prompt.tokens]
            self._blocks.release(prompt.blocks)

    def _reserve(self) -> None:
        """Gives another block to each running row whose blocks are full."""
        full = (self._places.filled_S[self._place_R] % BLOCK == 0).nonzero().squeeze(-1).tolist()
        grown = list[Row]()
        for row in [self._rows[index] for index in full]:
            while row.place >= 0 and (block := self._blocks.take(1, beyond=len(self._rows) == 1)) is None:
                self._preempt(self._rows[-1])
            if row.place >= 0 and block is not None:
                row.blocks += block
                grown.append(row)
        grown = [row for row in grown if row.place >= 0]
        if grown:
            self._places.write_blocks(grown)

    def _preempt(self, row: Row) -> None:
        """Takes the blocks of a running row away, and lets it wait at the head of the queue."""
        (row.so_far,) = self._places.responses([row], [False])
        self._stop([row])
        row.prompt = self._await((*row.request.tokens, *row.so_far.tokens))
        self._waiting.appendleft(row)
        self.preempted += 1

    def _stop(self, rows: Sequence[Row]) -> None:
        """Frees the places and blocks of running rows."""
        for row in rows:
            self._free.append(row.place)
            self._blocks.release(row.blocks)
            self._samplings[row.sampling] -= 1
            row.place, row.blocks = -1, []
        self._rows = [row for row in self._rows if row.place >= 0]
        self._place_R = self._ints([row.place for row in self._rows])

    def _admit(self) -> tuple[list[Row], list[Prompt]]:
        """Gives places to waiting rows. Returns them, and the prompts that are to be computed."""
        new, prompts, tokens = list[Row](), list[Prompt](), 0
        while self._waiting and self._free:
            row, alone = self._waiting[0], not self._rows and not new
            if not row.prompt.blocks:
                known = self._blocks.find(row.prompt.tokens)
                tokens += len(row.prompt.tokens) - BLOCK * len(known)
                if (prompts and tokens > PASS_TOKENS) or not self._place(row.prompt, known, alone):
                    break
                prompts.append(row.prompt)
            if not self._fork(row, alone):
                break
            row.place = self._free.pop()
            self._samplings[row.sampling] += 1
            new.append(self._waiting.popleft())
        if new:
            self._places.begin(new)
            self._rows += new
            self._place_R = self._ints([row.place for row in self._rows])
        return new, prompts

    def _place(self, prompt: Prompt, known: list[int], beyond: bool) -> bool:
        """Gives a prompt blocks behind those that are known already; False: there are too few."""
        self._blocks.share(known)
        taken = self._blocks.take(count_blocks(len(prompt.tokens)) - len(known), beyond)
        if taken is None:
            self._blocks.release(known)
            return False
        prompt.blocks, prompt.known = known + taken, BLOCK * len(known)
        self._blocks.remember(prompt.tokens, prompt.blocks)
        return True

    def _fork(self, row: Row, beyond: bool) -> bool:
        """Gives a row the blocks of its prompt, the last of them as a copy if it is not full; False: there is none."""
        prompt = row.prompt
        full = len(prompt.tokens) // BLOCK
        own = prompt.blocks[full:]
        if own and prompt.waiting > 1:
            taken = self._blocks.take(1, beyond)
            if taken is None:
                return False
            self._copies.append((own[0], taken[0]))
            own = taken
            self._blocks.share(prompt.blocks[:full])
        else:
            self._blocks.share(prompt.blocks)
        row.blocks = prompt.blocks[:full] + own
        self._leave(prompt)
        return True

    def _compute(self, running: int, prompts: list[Prompt]) -> Tensor | None:
        """Makes a pass. Returns logits of running rows, then of prompts, which keep theirs; None: there are neither."""
        if not running and not prompts:
            return None
        prompts.sort(key=lambda prompt: prompt.known > 0)
        new = sum(len(prompt.tokens) - prompt.known for prompt in prompts)
        filling = -(running + new) % ROWS if self._exact else 0
        parts, growing, fresh, continued = list[Tokens](), None, None, None
        if running + filling:
            tokens, growing = take_newest(self._places, self._place_R[:running], self._rows[:running], filling)
            parts.append(tokens)
        if prompts:
            tokens, fresh, continued = take_prompts(prompts, self._device)
            parts.append(tokens)
        tokens = parts[0] if len(parts) == 1 else parts[0].join(parts[1])
        self._pool.resize(self._blocks.count)
        layout = Paged(
            self._pool, tokens.block, tokens.position, growing, fresh, continued, BLOCK if self._exact else 1
        )
        logits_MV = self._forward(tokens.token, tokens.position, layout, tokens.keep)
        self._places.filled_S[self._place_R[:running]] += 1
        for prompt, logits_V in zip(prompts, logits_MV[running:], strict=True):
            prompt.logits = logits_V if prompt.waiting == 0 else logits_V.clone()
        self.passes, self.computed = self.passes + 1, self.computed + running + new
        return logits_MV

    def _append(self, logits_RV: Tensor) -> None:
        """Samples a token for each running row, and ends those that are whole."""
        places, place_R = self._places, self._place_R
        token_R, logprob_R, stopped_R = self._draw(logits_RV, places.uniforms(place_R))
        places.append(place_R, token_R, logprob_R)
        whole_R = stopped_R | (places.made_S[place_R] >= places.room_S[place_R])
        stopped, whole, finite = torch.stack([stopped_R, whole_R, logprob_R.isfinite()]).tolist()
        if not all(finite):
            broken = self._rows[finite.index(False)]
            raise NotFinite(broken.number, int(places.made_S[broken.place]) - 1)
        ended = [(row, stop) for row, stop, end in zip(self._rows, stopped, whole, strict=True) if end]
        if ended:
            self._finish(*zip(*ended, strict=True))

    def _draw(self, logits_RV: Tensor, uniform_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Samples tokens. Returns them, their log-probabilities, and which of them stop a response [R]."""
        samplings = [sampling for sampling, number in self._samplings.items() if number]
        if len(samplings) == 1:
            return self._draw_alike(logits_RV, uniform_R, samplings[0])
        token_R, logprob_R = torch.zeros_like(self._place_R), torch.zeros_like(uniform_R, dtype=torch.float32)
        stopped_R = torch.zeros_like(token_R, dtype=torch.bool)
        for sampling in samplings:
            rows = self._ints([index for index, row in enumerate(self._rows) if row.sampling == sampling])
            drawn = self._draw_alike(logits_RV[rows], uniform_R[rows], sampling)
            for column, some in zip((token_R, logprob_R, stopped_R), drawn, strict=True):
                column[rows] = some
        return token_R, logprob_R, stopped_R

    def _draw_alike(
        self, logits_RV: Tensor, uniform_R: Tensor, sampling: SamplingParams
    ) -> tuple[Tensor, Tensor, Tensor]:
        token_R, logprob_R = draw(logits_RV, uniform_R, sampling, self._exact)
        if self._raw_logprobs:
            logprob_R, _ = token_scores(logits_RV, token_R, PLAIN, row_invariant=self._exact)
        return token_R, logprob_R, torch.isin(token_R, self._ints(sampling.stop_token_ids))

    def _finish(self, rows: Sequence[Row], stopped: Sequence[bool]) -> None:
        """Takes the responses of rows that are whole; their blocks stay known."""
        for row, response in zip(rows, self._places.responses(rows, stopped), strict=True):
            self.finished[row.number] = response
            self._blocks.remember((*row.request.tokens, *response.tokens[:-1]), row.blocks)
        self._stop(rows)

    def _ints(self, numbers: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)


def _of_rows(logits_MV: Tensor | None, running: int, prompts: Sequence[Prompt]) -> Tensor:
    """The logits of each row, those of running rows first, then those of each prompt that rows begin with."""
    kept = [] if logits_MV is None else [logits_MV[:running]]
    begun = [prompt.logits[None] for prompt in prompts if prompt.logits is not None]
    assert len(begun) == len(prompts), "a prompt was not computed"
    for prompt in prompts:
        if prompt.waiting == 0:
            prompt.logits = None
    return torch.cat([*kept, *begun]) if begun else kept[0]
