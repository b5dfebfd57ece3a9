"""The torch sampler for models whose layers carry a state, such as Mamba: it decodes with the model's own cache.

Prompts of one length are generated side by side, so that no padding enters a state.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterator, Sequence

from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from lockstep.batch import Batch
from lockstep.config import DType
from lockstep.errors import InputError
from lockstep.models.attention import Cached, SideBySide
from lockstep.models.folder import carries_state
from lockstep.samplers.torch.model_sampler import ModelSampler
from lockstep.samplers.torch.sampler import TorchSampler
from lockstep.samplers.torch.static import StaticSampler
from lockstep.types import Request

_KEYWORDS = ("past_key_values", "cache_params", "cache")
"""Names of the cache in the signatures of `transformers` models."""


class OwnCache(SideBySide, Cached):
    """Keys, values and states of rows of one length, in the model's own cache; see `Cached` for the rest."""

    def __init__(self, lm: PreTrainedModel, prompts: Batch) -> None:
        known = inspect.signature(lm.forward).parameters
        keyword = next((name for name in _KEYWORDS if name in known), None)
        if keyword is None:
            raise InputError(
                f"{type(lm).__name__} carries a state and takes no cache that Lockstep knows, so it cannot be sampled "
                "from here; use sampler.backend=vllm, if that runs it"
            )
        self.own = DynamicCache(config=lm.config)
        self.keywords = {keyword: self.own}
        self.filled = prompts.lengths.to(prompts.tokens.device)
        self._filling = True

    def next_token(self) -> None:
        if not self._filling:
            self.filled = self.filled + 1
        self._filling = False

    def keep(self, rows: Tensor) -> None:
        self.own.reorder_cache(rows)  # pyright: ignore[reportArgumentType] -- any int64 tensor is one
        self.filled = self.filled[rows]


class StatefulTorchSampler(StaticSampler):
    """A `StaticSampler` for models whose layers carry a state."""

    def _batches(self, requests: Sequence[Request]) -> Iterator[list[int]]:
        """Prompts of one length together."""
        alike = defaultdict[int, list[int]](list)
        for place, request in enumerate(requests):
            alike[len(request.tokens)].append(place)
        size = self._max_batch_size
        for _, places in sorted(alike.items()):
            for start in range(0, len(places), size):
                yield places[start : start + size]

    def _cache(self, prompts: Batch, capacity: int) -> Cached:
        return OwnCache(self._lm, prompts)

    def _logits(self, tokens: Tensor, position: Tensor, cache: Cached, keep: int | Tensor) -> Tensor:
        assert isinstance(cache, OwnCache), "made by this sampler"
        rows = cache.filled.numel()
        logits_B1V = self._lm(
            input_ids=tokens.view(rows, -1),
            position_ids=position.reshape(rows, -1),
            use_cache=True,
            layout=cache,
            logits_to_keep=1,
            **cache.keywords,
        ).logits
        return logits_B1V if isinstance(keep, int) else logits_B1V.transpose(0, 1)


def torch_sampler(
    lm: PreTrainedModel,
    max_batch_size: int,
    dtype: DType = "fp32",
    raw_logprobs: bool = False,
    cache_bytes: int | None = None,
) -> ModelSampler:
    """The torch sampler for a model; the arguments are those of `ModelSampler`."""
    if not carries_state(lm.config):
        return TorchSampler(lm, max_batch_size, dtype, raw_logprobs, cache_bytes)
    if cache_bytes is not None:
        raise InputError(
            f"a {lm.config.model_type} keeps states, which sampler.kv_cache_gib does not bound; leave it out"
        )
    return StatefulTorchSampler(lm, max_batch_size, dtype, raw_logprobs)
