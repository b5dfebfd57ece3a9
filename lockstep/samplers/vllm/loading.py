"""The weights of the module at a cut, as vLLM computes with them, and what loaded them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from lockstep.samplers.vllm.landings import as_in_files
from lockstep.samplers.vllm.sites import Site
from lockstep_doctor.builds import watch_build
from lockstep_doctor.cuts import CutPoint


def weight_at(model: Any, site: Site, cut: CutPoint, width: int) -> Tensor | None:
    """Returns the part of a module's weight that makes a cut; None where it has no one weight.

    A matrix that a kernel keeps in a form of its own is read through the kernel, by a product with the identity: so the
    loader is not asked where it put what.

    Args:
        model: vLLM's.
        site: Of the cut.
        cut: One of its cuts.
        width: Of the weight.
    """
    owner = site.path.rpartition(".")[0]
    module = model.lm_head if owner == "logits_processor" else attrgetter(owner)(model)
    if isinstance(module, LinearBase | ParallelLMHead):
        kernel: Any = module.quant_method
        held = dict(module.named_parameters(recurse=False)).get("weight")
        inputs = module.embedding_dim if isinstance(module, ParallelLMHead) else module.input_size
        if held is None or inputs != width:
            return None
        weight = kernel.apply(module, torch.eye(width, dtype=held.dtype, device=held.device)).T
    else:
        weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor):
        return None
    place = site.cuts.index(cut)
    return weight.detach().split(list(site.sizes), 0)[place] if site.sizes else weight.detach()


def is_loaded(model: Any, site: Site, cut: CutPoint, weights: Mapping[str, Tensor]) -> bool:
    """Returns if the module at a cut has the reference's weights; those of experts in any order.

    Args:
        model: vLLM's.
        site: Of the cut.
        cut: One of its cuts.
        weights: By name in the reference.
    """
    if len(weights) == 1:
        (weight,) = weights.values()
        own = weight_at(model, site, cut, weight.shape[-1])
        return own is None or own.dim() != weight.dim() or torch.equal(own[: len(weight)].cpu(), weight)
    owner = attrgetter(site.path.rpartition(".")[0])(model)
    held = [x.detach().cpu().flatten() for x in owner.parameters()]
    right = [x.flatten() for x in weights.values()]
    if sum(map(len, held)) != sum(map(len, right)):
        return True  # in a form of the kernel's own
    return torch.equal(torch.cat(held).sort().values, torch.cat(right).sort().values)


def names_in_files(network: PreTrainedModel, names: Iterable[str]) -> list[str]:
    """Returns the names that parameters of the reference have in files."""
    return list(as_in_files(network, {name: network.get_parameter(name) for name in names}))


@contextmanager
def watch_loading() -> Iterator[None]:
    """Watches every build of a model of vLLM's in the block."""
    plain = BaseModelLoader.load_model

    def load_model(self: BaseModelLoader, *args: Any, **keywords: Any) -> nn.Module:
        with watch_build() as models:
            models.append(plain(self, *args, **keywords))
        return models[0]

    BaseModelLoader.load_model = load_model
    try:
        yield
    finally:
        BaseModelLoader.load_model = plain
