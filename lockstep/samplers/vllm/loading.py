"""The weights of the module at a cut, as vLLM computes with them, and whether they were loaded correctly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from lockstep.samplers.vllm.landings import as_in_files
from lockstep.samplers.vllm.sites import Site
from lockstep_doctor.builds import watch_build
from lockstep_doctor.cuts import CutPoint

_LAYER = {"weight", "bias"}
"""Parameters of a layer; experts have others, or several of these."""


def weight_at(module: Any, width: int) -> Any:
    """Returns a module's weight; None if it has no single weight.

    A matrix that a kernel may keep in its own form is read through the kernel, by a product with the identity, so that
    nothing depends on how the loader laid it out.

    Args:
        module: A module of vLLM's model.
        width: Width of the weight.
    """
    if isinstance(module, LinearBase | ParallelLMHead):
        kernel: Any = module.quant_method
        held = dict(module.named_parameters(recurse=False)).get("weight")
        inputs = module.embedding_dim if isinstance(module, ParallelLMHead) else module.input_size
        if held is None or inputs != width:
            return None
        return kernel.apply(module, torch.eye(width, dtype=held.dtype, device=held.device)).T
    return getattr(module, "weight", None)


def is_loaded(model: Any, site: Site, cut: CutPoint, weights: Mapping[str, Tensor]) -> bool:
    """True if the module at a cut has the reference's weights; those of experts in any order.

    Args:
        model: vLLM's model.
        site: The site of the cut.
        cut: One of its cuts.
        weights: Weights by name in the reference.
    """
    module = module_at(model, site)
    if not isinstance(module, nn.Module):
        return True  # what chooses experts has no weights
    parts = {name.rpartition(".")[2]: right for name, right in weights.items()}
    if len(parts) == len(weights) and parts.keys() <= _LAYER:
        place, bias = site.cuts.index(cut), dict(module.named_parameters(recurse=False)).get("bias")
        return has_parameters(module, weights) and all(
            _is_part(bias if name == "bias" else weight_at(module, right.shape[-1]), place, site.sizes, right)
            for name, right in parts.items()
        )
    held = [x.detach().cpu().flatten() for x in module.parameters()]
    right = [x.flatten() for x in weights.values()]
    if sum(map(len, held)) != sum(map(len, right)):
        return True  # the kernel keeps them in its own form, which cannot be compared
    return torch.equal(torch.cat(held).sort().values, torch.cat(right).sort().values)


def has_parameters(module: nn.Module, weights: Iterable[str]) -> bool:
    """True if a module has a bias exactly if the reference has one."""
    own = dict(module.named_parameters(recurse=False))
    return ("bias" in own) == any(name.endswith(".bias") for name in weights)


def module_at(model: Any, site: Site) -> Any:
    """Returns the module of vLLM's model whose weights determine the cuts of a site."""
    owner = site.path.rpartition(".")[0]
    return model.lm_head if owner == "logits_processor" else attrgetter(owner)(model)


def lay_as_linear(network: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns weights of the reference as [out, in], as a linear layer has them: `Conv1D` keeps [in, out]."""
    owners = {name: network.get_submodule(name.rpartition(".")[0]) for name in weights}
    return {name: x.T if isinstance(owners[name], Conv1D) and x.ndim == 2 else x for name, x in weights.items()}


def _is_part(own: Any, place: int, sizes: Sequence[int], right: Tensor) -> bool:
    """True if a part of a module's tensor equals the reference; padding rows and other forms are not compared."""
    if not isinstance(own, Tensor) or own.dim() != right.dim():
        return True
    part = own.split(list(sizes), 0)[place] if sizes else own
    if len(part) < len(right):  # the reference has all parts in one, in some models in another order
        held = own.detach().cpu().flatten()
        return torch.equal(held.sort().values, right.flatten().sort().values)
    return torch.equal(part.detach()[: len(right)].cpu(), right)


def as_read(network: PreTrainedModel, weights: Mapping[str, Tensor]) -> list[Tensor]:
    """Returns weights of the reference as they are read from files."""
    return list(as_in_files(network, weights).values())


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
