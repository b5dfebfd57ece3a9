"""bf16 on the torch sampler: weights are cast once in a rollout, and anew after a refit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tiny_models import requests
from torch.utils._python_dispatch import TorchDispatchMode

from lockstep.core.types import SamplingParams
from lockstep.models.load import load_causal_lm
from lockstep.samplers.torch.sampler import TorchSampler


class CastCount(TorchDispatchMode):
    """Counts casts of matrices to bf16, by shape."""

    def __init__(self) -> None:
        super().__init__()
        self.casts: Counter[tuple[int, ...]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default and kwargs.get("dtype") == torch.bfloat16:
            self.casts[tuple(args[0].shape)] += 1
        return func(*args, **kwargs)


def test_weights_are_cast_once_in_a_rollout(models: Callable[..., Path]) -> None:
    lm = load_causal_lm(models("qwen2"))
    sampler, wanted = TorchSampler(lm, 16, "bf16"), requests()
    with CastCount() as counted:
        sampler.generate(wanted, SamplingParams(max_tokens=12))
    joined = {
        parameter.untyped_storage().data_ptr(): parameter
        for parameter in lm.parameters()
        if parameter.ndim == 2
    }
    shapes = [
        (one.untyped_storage().nbytes() // (4 * one.shape[1]), one.shape[1])
        for one in joined.values()
    ]
    own = Counter(shapes)  # of what lies one behind the other, and is one product
    own[lm.config.vocab_size, lm.config.hidden_size] -= 1  # a look-up casts nothing
    assert {shape: counted.casts[shape] for shape in own} == dict(own)


def test_bf16_rollout_after_weight_sync_uses_new_weights(models: Callable[..., Path]) -> None:
    """Drawn log-probabilities are those of the new weights, to the rounding of bf16; those of the
    old are far off.
    """
    sampler = TorchSampler(load_causal_lm(models("qwen2")), 16, "bf16")
    sampling = SamplingParams(max_tokens=12)
    sampler.generate(requests(), sampling)
    old = load_causal_lm(models("qwen2"))
    sampler.load_weights(load_causal_lm(models("qwen2", seed=1)).named_parameters(), 1)
    batch = sampler.generate(requests(), sampling)

    def gap(lm: Any) -> float:
        scored = TorchSampler(lm, 16, "bf16").logprobs(batch)
        return float((scored - batch["sampler_logprob"])[batch.mask].abs().mean())

    assert gap(load_causal_lm(models("qwen2", seed=1))) < 0.1
    assert gap(old) > 0.5
