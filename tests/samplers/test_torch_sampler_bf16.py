"""bf16 on the torch sampler: weights are cast once in a rollout, and anew after a refit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tiny_models import requests
from torch.utils._python_dispatch import TorchDispatchMode

from lockstep.models.load import load_causal_lm
from lockstep.samplers.torch.sampler import TorchSampler
from lockstep.types import SamplingParams


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
    joined = {parameter.untyped_storage().data_ptr(): parameter for parameter in lm.parameters() if parameter.ndim == 2}
    shapes = [(one.untyped_storage().nbytes() // (4 * one.shape[1]), one.shape[1]) for one in joined.values()]
    own = Counter(shapes)  # of what lies one behind the other, and is one product
    own[lm.config.vocab_size, lm.config.hidden_size] -= 1  # a look-up casts nothing
    assert {shape: counted.casts[shape] for shape in own} == dict(own)
