"""The weight of the module at a cut, as vLLM computes with it, and the lines that write it when it is loaded."""

from __future__ import annotations

from contextlib import suppress
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import layerwise

from lockstep.samplers.vllm.landings import as_in_files, take_plain_loaders
from lockstep.samplers.vllm.sites import Site
from lockstep_doctor.cuts import CutPoint
from lockstep_doctor.operators import Operator, find_frames, find_writes


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


class _Writes(TorchDispatchMode):
    """A mode that notes the lines of writes to some memory."""

    def __init__(self, memory: set[int]) -> None:
        super().__init__()
        self._memory = memory
        self.found: dict[Operator, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(x.untyped_storage()._cdata in self._memory for x in find_writes(func, args, kwargs or {})):
            self.found[Operator(str(func), tuple(find_frames()), (), (), ())] = None
        return func(*args, **(kwargs or {}))


def watch_writers(model: nn.Module, config: Any, network: PreTrainedModel, name: str) -> list[Operator]:
    """Loads one tensor, without memory, into a model, which is left as it was; returns what writes it.

    Args:
        model: vLLM's.
        config: vLLM's, of the model.
        network: The same model in `transformers`, on the meta device.
        name: Of the tensor, there.
    """
    shape = network.get_parameter(name).shape
    given = {name: torch.empty(shape, dtype=config.dtype, device="meta")}
    layerwise.initialize_layerwise_reload(model)
    # A loader may want the whole checkpoint; what it has written is known.
    incomplete = suppress(LookupError, ValueError, TypeError, RuntimeError, AssertionError, AttributeError)
    try:
        seen = _Writes(set(take_plain_loaders(model)))
        with incomplete, torch.no_grad(), seen:
            model.load_weights(as_in_files(network, given).items())  # pyright: ignore
    finally:
        layerwise.finalize_layerwise_reload(model, config)
    return list(seen.found)
