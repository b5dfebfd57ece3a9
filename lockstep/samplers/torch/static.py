"""Static batching: all rows of a batch begin in one pass, and are dropped as they finish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lockstep import keyed
from lockstep.batch import Batch
from lockstep.distributed.penalties import penalize
from lockstep.distributed.sampling import draw, token_scores
from lockstep.models.attention import Cached
from lockstep.models.device import empty_cache
from lockstep.models.exact.model import find_multiple, is_exact
from lockstep.models.heads import PLAIN
from lockstep.samplers.base import Piece, require_room
from lockstep.samplers.stop_strings import open_stop_strings
from lockstep.samplers.torch.model_sampler import ModelSampler, join_prompts
from lockstep.samplers.torch.rows import NotFinite, Response
from lockstep.samplers.torch.seen import Seen
from lockstep.types import Request, SamplingParams

_COMPACT_BELOW = 0.8
"""Finished rows are dropped once fewer than this share of rows still runs: copying the cache costs about one step."""


class StaticSampler(ModelSampler):
    """A `ModelSampler` that decodes a batch to its end before it begins the next."""

    def pieces(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[Piece]:
        require_room(requests, self._context)
        for places in self._batches(requests):
            try:
                yield places, self._generate([requests[i] for i in places], sampling)
            except NotFinite as broken:
                raise self._not_finite(requests, places[broken.number], broken.token) from None

    def _batches(self, requests: Sequence[Request]) -> Iterator[list[int]]:
        """Batches prompts in the order of their lengths, so requests repeated after a crash get the same batches."""
        order = sorted(range(len(requests)), key=lambda i: len(requests[i].tokens))
        for start in range(0, len(order), self._max_batch_size):
            yield order[start : start + self._max_batch_size]

    def wake(self) -> None:
        """Does nothing: nothing is kept from one batch to the next."""

    def sleep(self) -> None:
        """Frees what torch keeps for later; only weights are held between rollouts."""
        empty_cache(self._lm.device)

    @torch.no_grad()
    def _generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        prompts = join_prompts(requests).to(self._lm.device)
        room_B = (self._context - prompts.lengths).clamp(max=sampling.max_tokens).to(self._lm.device)
        # Autocast keeps its narrow copies of the weights until it is left; in `inference_mode` it would keep none.
        with self._autocast():
            columns = self._decode(prompts, requests, sampling, room_B)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        responses = [Response(tokens[:length], own[:length], stopped) for tokens, own, length, stopped in rows]
        return self._assemble(requests, responses, sampling)

    def _decode(
        self, prompts: Batch, requests: Sequence[Request], sampling: SamplingParams, room_B: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Decodes token by token. Returns tokens and log-probabilities [B, K], lengths [B], and stopped rows [B]."""
        device, rows, most = self._lm.device, len(requests), int(room_B.max())
        exact = is_exact(self._lm)
        cache = self._cache(prompts, int(prompts.lengths.max()) + most)
        tokens_BK = torch.zeros(rows, most, dtype=torch.int64, device=device)
        logprob_BK = torch.zeros(rows, most, device=device)
        length_B = torch.zeros(rows, dtype=torch.int64, device=device)
        stopped_B = torch.zeros(rows, dtype=torch.bool, device=device)
        uniform_BK = keyed.uniforms(torch.tensor([r.key for r in requests]), torch.arange(most)).to(device)
        stops = torch.tensor(sampling.stop_token_ids, dtype=torch.int64, device=device)
        alive = torch.arange(rows, device=device)
        running = torch.ones(rows, dtype=torch.bool, device=device)
        logits = self._logits(prompts.tokens[None], prompts.position[None], cache, _last(prompts))[0]
        seen = self._watch(requests, logits.shape[1]) if sampling.penalizes else None
        for k in range(most):
            shaped = logits if seen is None else penalize(logits, seen.earlier(alive), sampling)
            token, logprob = draw(shaped, uniform_BK[alive, k], sampling, exact)
            if self._raw_logprobs:
                logprob, _ = token_scores(logits, token, PLAIN, row_invariant=exact)
            tokens_BK[alive, k], logprob_BK[alive, k] = token, logprob
            if seen is not None:
                seen.append(alive, token)
            broken = running & ~logprob.isfinite()
            length_B[alive] += running
            stopped_B[alive] |= running & torch.isin(token, stops)
            if sampling.stop:
                stopped_B[alive] |= running & self._complete(tokens_BK[alive, : k + 1], sampling)
            running = running & ~stopped_B[alive] & (room_B[alive] > k + 1)
            left, num_broken = torch.stack([running.sum(), broken.sum()]).tolist()  # one wait for the device
            if num_broken:
                raise NotFinite(int(alive[broken][0]), k)
            if left == 0:
                break
            if left < _COMPACT_BELOW * alive.numel():
                kept = running.nonzero().squeeze(-1)
                cache.keep(kept)
                alive, token, running = alive[kept], token[kept], running[kept]
            cache.next_token()
            logits = self._logits(token[:, None], cache.filled[:, None], cache, 1)[:, 0]
        return tokens_BK, logprob_BK, length_B, stopped_B

    def _complete(self, tokens_RK: Tensor, sampling: SamplingParams) -> Tensor:
        """Rows whose newest token completes a stop string."""
        strings = open_stop_strings(self._lm.config.name_or_path or "", sampling.stop)
        newest = tokens_RK[:, -strings.window :].tolist()
        return torch.tensor([strings.completes(tokens) for tokens in newest], device=tokens_RK.device)

    def _watch(self, requests: Sequence[Request], columns: int) -> Seen:
        seen = Seen(len(requests), columns, self._lm.device)
        for place, request in enumerate(requests):
            seen.begin(place, request.tokens)
        return seen

    def _cache(self, prompts: Batch, capacity: int) -> Cached:
        """Returns the layout that keeps keys and values."""
        return Cached(prompts, capacity, find_multiple(self._lm))

    def _logits(self, tokens: Tensor, position: Tensor, cache: Cached, keep: int | Tensor) -> Tensor:
        return self._lm(
            input_ids=tokens, position_ids=position, use_cache=False, layout=cache, logits_to_keep=keep
        ).logits


def _last(prompts: Batch) -> Tensor:
    """Flat index of each prompt's last token, which is the state before the first response token."""
    return (prompts.starts + prompts.lengths - 1).to(prompts.tokens.device)
