"""The torch sampler for models with recurrent state, such as Mamba.

It decodes with the model's own cache. A batch has prompts of one length, so that no padding enters
a state.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from lockstep.config import DType
from lockstep.core import keyed
from lockstep.core.batch import Batch
from lockstep.core.errors import InputError
from lockstep.core.types import Request, SamplingParams
from lockstep.distributed.penalties import apply_penalties
from lockstep.distributed.sampling import draw_tokens
from lockstep.models.attention import SideBySide
from lockstep.models.device import empty_cache
from lockstep.models.folder import carries_state
from lockstep.samplers.base import ResponsePiece, require_room
from lockstep.samplers.stop_strings import open_stop_strings
from lockstep.samplers.torch.model_sampler import ModelSampler
from lockstep.samplers.torch.penalty_counts import PenaltyCounts
from lockstep.samplers.torch.sampler import TorchSampler
from lockstep.samplers.torch.sequences import NotFinite, Response

_KEYWORDS = ("past_key_values", "cache_params", "cache")
"""Argument names of the cache in `transformers` models."""


class StatefulTorchSampler(ModelSampler):
    """A `ModelSampler` for models with recurrent state; finishes a batch before the next."""

    def pieces(
        self, requests: Sequence[Request], sampling: SamplingParams
    ) -> Iterator[ResponsePiece]:
        require_room(requests, self._context)
        by_length = defaultdict[int, list[int]](list)
        for index, request in enumerate(requests):
            by_length[len(request.tokens)].append(index)
        for _, alike in sorted(by_length.items()):
            for start in range(0, len(alike), self._max_batch_size):
                indices = alike[start : start + self._max_batch_size]
                try:
                    yield indices, self._generate_batch([requests[i] for i in indices], sampling)
                except NotFinite as broken:
                    raise self._not_finite(requests, indices[broken.number], broken.token) from None

    def wake(self) -> None:
        """Does nothing: no state is kept between batches."""

    def sleep(self) -> None:
        """Frees torch's cached memory; only weights stay between rollouts."""
        empty_cache(self._lm.device)

    @torch.no_grad()
    def _generate_batch(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        # Autocast caches its casts of the weights until it exits; in `inference_mode` it would
        # cache none.
        with self._autocast_context():
            columns = self._decode_tokens(requests, sampling)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        responses: list[Response] = []
        for tokens, own, length, stopped in rows:
            responses.append(Response(tokens[:length], own[:length], stopped))
        return self._assemble_batch(requests, responses, sampling)

    def _decode_tokens(
        self, requests: Sequence[Request], sampling: SamplingParams
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Decodes token by token.

        Returns tokens and log-probabilities [B, K], lengths [B], and stopped rows [B].
        """
        device = self._lm.device
        rows = len(requests)
        start = len(requests[0].tokens)
        most = min(sampling.max_tokens, self._context - start)
        cache = {_find_keyword(self._lm): DynamicCache(config=self._lm.config)}
        tokens_BK = torch.zeros(rows, most, dtype=torch.int64, device=device)
        logprob_BK = torch.zeros(rows, most, device=device)
        length_B = torch.zeros(rows, dtype=torch.int64, device=device)
        stopped_B = torch.zeros(rows, dtype=torch.bool, device=device)
        uniform_BK = keyed.draw_uniforms(
            torch.tensor([r.key for r in requests]), torch.arange(most)
        ).to(device)
        stops = torch.tensor(sampling.stop_token_ids, dtype=torch.int64, device=device)
        every_B = torch.arange(rows, device=device)
        logits = self._compute_logits(
            torch.tensor([request.tokens for request in requests], device=device), 0, cache
        )
        counts = None
        if sampling.penalizes:
            counts = PenaltyCounts(rows, logits.shape[1], device)
            for slot, request in enumerate(requests):
                counts.start_sequence(slot, request.tokens)
        for k in range(most):
            shaped = logits
            if counts is not None:
                shaped = apply_penalties(logits, counts.earlier_tokens(every_B), sampling)
            token, logprob = draw_tokens(shaped, uniform_BK[:, k], sampling)
            tokens_BK[:, k] = token
            logprob_BK[:, k] = logprob
            if counts is not None:
                counts.add_tokens(every_B, token)
            running = ~stopped_B
            broken = running & ~logprob.isfinite()
            length_B += running
            stopped_B |= running & torch.isin(token, stops)
            if sampling.stop:
                strings = open_stop_strings(self._lm.config.name_or_path or "", sampling.stop)
                newest = tokens_BK[:, max(0, k + 1 - strings.window) : k + 1].tolist()
                completes = list(map(strings.contains_stop, newest))
                stopped_B |= running & torch.tensor(completes, device=device)
            # the only device sync
            left, num_broken = torch.stack([(~stopped_B).sum(), broken.sum()]).tolist()
            if num_broken:
                raise NotFinite(int(every_B[broken][0]), k)
            if left == 0 or k + 1 == most:
                break
            logits = self._compute_logits(token[:, None], start + k, cache)
        return tokens_BK, logprob_BK, length_B, stopped_B

    def _compute_logits(
        self, tokens_RT: Tensor, first: int, cache: dict[str, DynamicCache]
    ) -> Tensor:
        """Logits [R, V] after some tokens; the first token is at position `first`."""
        position = torch.arange(
            first, first + tokens_RT.shape[1], device=tokens_RT.device
        ).expand_as(tokens_RT)
        return self._lm(
            input_ids=tokens_RT,
            position_ids=position,
            use_cache=True,
            layout=SideBySide(),
            logits_to_keep=1,
            **cache,
        ).logits[:, 0]


def _find_keyword(lm: PreTrainedModel) -> str:
    """The name of the model's cache argument."""
    parameters = inspect.signature(lm.forward).parameters
    keyword = next((name for name in _KEYWORDS if name in parameters), None)
    if keyword is None:
        raise InputError(
            f"{type(lm).__name__} keeps a recurrent state in a cache that the torch sampler does "
            "not support; use sampler.backend=vllm, if it supports the model"
        )
    return keyword


def torch_sampler(
    lm: PreTrainedModel,
    max_batch_size: int,
    dtype: DType = "fp32",
    cache_bytes: int | None = None,
) -> ModelSampler:
    """The torch sampler for a model; takes the arguments of `ModelSampler`."""
    if not carries_state(lm.config):
        return TorchSampler(lm, max_batch_size, dtype, cache_bytes)
    if cache_bytes is not None:
        raise InputError(
            f"a {lm.config.model_type} keeps recurrent states, which sampler.kv_cache_gib does "
            "not limit; leave it out"
        )
    return StatefulTorchSampler(lm, max_batch_size, dtype)
