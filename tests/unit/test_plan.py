"""What a run takes on paper, against what it takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_models import CONTEXT, OPTIMIZER, SECTION, SquaredError, WeightedLogprob, ragged
from torch import Tensor

from lockstep.batch import Batch
from lockstep.learners.base import train
from lockstep.learners.torch.learner import TorchLearner
from lockstep.models.attention import Cached
from lockstep.models.folder import read_config, skeleton
from lockstep.models.heads import LogitsHead, ValueHead
from lockstep.models.load import load_backbone, load_causal_lm
from lockstep.recipe import LearnerSection
from lockstep.runtime.plan.estimate import checkpoint_bytes
from lockstep.runtime.plan.memory import Head, Rank
from lockstep.runtime.plan.sizes import Load, Sizes, readable

Models = Callable[..., Path]


def full(lengths: list[int]) -> Batch:
    """Sequences of which every token counts."""
    bare = ragged(lengths)
    return bare.with_columns({"mask": torch.ones_like(bare.mask)})


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


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("head", ["logits", "value"])
def test_what_a_pass_keeps_is_what_was_foretold(models: Models, architecture: str, dtype: str, head: Head) -> None:
    batch, folder = full([24, 24]), models(architecture)
    model = (
        LogitsHead(load_causal_lm(folder), products=True) if head == "logits" else ValueHead(load_backbone(folder), 0)
    )
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    cast = torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), cast:
        model(batch)
    held = sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in weights)
    learner = LearnerSection(device="cpu", dtype=dtype, micro_batch_tokens=48)
    foretold = Rank(sizes(folder), learner, Load(24, 1, 2), head).kept
    assert held == pytest.approx(foretold, rel=0.05), "all but a few numbers per token"


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1260, "1.26 kB"), (25.3e9, "25.3 GB"), (4.21e14, "421 TB")]
)
def test_sizes_are_readable(size: float, text: str) -> None:
    assert readable(size) == text
