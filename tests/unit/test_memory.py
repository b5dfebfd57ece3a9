"""What a run takes on paper, against what it takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_models import CONTEXT, OPTIMIZER, SECTION, SquaredError, WeightedLogprob, ragged
from torch import Tensor

from lockstep.learners.base import train
from lockstep.learners.torch.learner import TorchLearner
from lockstep.models.attention import Cached
from lockstep.models.folder import read_config, skeleton
from lockstep.models.heads import LogitsHead, ValueHead
from lockstep.models.load import load_backbone, load_causal_lm
from lockstep.runtime.memory import Sizes, checkpoint_bytes, readable

Models = Callable[..., Path]


def sizes(folder: Path) -> Sizes:
    return Sizes.of(skeleton(read_config(folder), str(folder)))


@pytest.mark.parametrize("architecture", ["llama", "qwen2 tied", "qwen3"])
def test_checkpoints_have_the_size_that_was_foretold(models: Models, tmp_path: Path, architecture: str) -> None:
    folder, batch = models(architecture), ragged([9, 12])
    policy = TorchLearner(LogitsHead(load_causal_lm(folder)), SECTION, OPTIMIZER)
    critic = TorchLearner(ValueHead(load_backbone(folder), 0), SECTION, OPTIMIZER)
    train(policy, batch, WeightedLogprob())
    train(critic, batch, SquaredError())
    for name, learner in (("policy", policy), ("critic", critic)):
        learner.save(tmp_path / name)
        assert learner.saved(wait=True)
    written = sum(file.stat().st_size for file in tmp_path.rglob("*.safetensors"))
    foretold = checkpoint_bytes(sizes(folder).policy, sizes(folder).critic)
    assert 0 < written - foretold < 40_000, "but for the headers"


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_the_cache_has_the_size_that_was_foretold(models: Models, architecture: str) -> None:
    lm, prompts = load_causal_lm(models(architecture)), ragged([5, 7, 6])
    held = 0

    class Counting(Cached):
        def _store(self, layer: int, key: Tensor, value: Tensor) -> None:
            nonlocal held
            super()._store(layer, key, value)
            held += self._keys[layer].numel() + self._values[layer].numel()

    cache = Counting(prompts, CONTEXT)
    with torch.no_grad():
        lm(input_ids=prompts.tokens[None], position_ids=prompts.position[None], use_cache=False, layout=cache)
    assert held == sizes(models(architecture)).cache * len(prompts) * CONTEXT


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_what_a_pass_keeps_is_about_what_was_foretold(models: Models, architecture: str) -> None:
    lm, batch = load_causal_lm(models(architecture)), ragged([20, 20])
    weights = {parameter.untyped_storage().data_ptr() for parameter in lm.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        LogitsHead(lm)(batch)
    held = sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in weights)
    found = sizes(models(architecture))
    foretold = batch.tokens.numel() * (found.kept + 12 * found.vocabulary)
    assert held < foretold < 3 * held, "an upper bound, of the right order"


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1260, "1.26 kB"), (25.3e9, "25.3 GB"), (4.21e14, "421 TB")]
)
def test_sizes_are_readable(size: float, text: str) -> None:
    assert readable(size) == text
