"""Traces the copies by which vLLM loads each checkpoint tensor.

vLLM renames, fuses, shards and transposes tensors, and each model has its own `load_weights`. All
of that ends in copies from a strided view of a checkpoint tensor to a strided view of a layer's
parameter. These copies are recorded, with tensors on the meta device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from vllm.model_executor.model_loader.reload import layerwise

from lockstep.core.errors import InputError, first_line

_ALIASED = (torch.ops.aten.clone.default, torch.ops.aten._to_copy.default)


@dataclass(frozen=True)
class StridedView:
    """A strided view of a tensor's memory, in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def from_tensor(cls, tensor: Tensor) -> StridedView:
        return cls(tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset()))

    def apply_to(self, tensor: Tensor) -> Tensor:
        """The same view of another, contiguous tensor."""
        return tensor.as_strided(self.size, self.stride, self.offset)


@dataclass(frozen=True, eq=False)
class WeightCopy:
    """A copy from a checkpoint tensor to a vLLM parameter.

    Attributes:
        layer: Layer of the parameter.
        parameter: Name of the parameter in the layer.
        shape: Shape of the parameter as loaded, before a kernel packs it.
        source: View of the tensor.
        target: View of the parameter.
    """

    layer: nn.Module
    parameter: str
    shape: tuple[int, ...]
    source: StridedView
    target: StridedView


@dataclass(frozen=True)
class LoadTrace:
    """The copies that vLLM makes while it loads a model.

    Attributes:
        copies: Copies by name of the checkpoint tensor.
        changed: Parameters, as layer and name, to which another tensor was copied.
    """

    copies: Mapping[str, tuple[WeightCopy, ...]]
    changed: frozenset[tuple[nn.Module, str]]


def find_sent_tensors(network: PreTrainedModel) -> dict[str, Tensor]:
    """The tensors that a learner sends: parameters, each once, and a checkpoint's buffers."""
    kept = network.state_dict().keys()
    return dict(network.named_parameters()) | {
        name: b for name, b in network.named_buffers() if name in kept
    }


def split_as_in_files(network: PreTrainedModel, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors named and split as in the model's files: `transformers` fuses expert weights."""
    return revert_weight_conversion(network, dict(tensors))


def trace_loading(model: Any, model_config: Any, network: PreTrainedModel) -> LoadTrace:
    """Records how vLLM's model loads tensors, on the meta device; the model does not change.

    Args:
        model: vLLM's model.
        model_config: vLLM's configuration of it.
        network: The same model in `transformers`, on the meta device.

    Raises:
        InputError: If vLLM's loader fails.
    """
    given = {
        name: torch.empty(tensor.shape, dtype=model_config.dtype, device="meta")
        for name, tensor in find_sent_tensors(network).items()
    }
    layerwise.initialize_layerwise_reload(model)
    try:
        owners = use_plain_loaders(model)
        with torch.no_grad(), _CopyRecorder() as recorder:
            model.load_weights(split_as_in_files(network, given).items())
    except (
        LookupError,
        ValueError,
        TypeError,
        RuntimeError,
        AssertionError,
        AttributeError,
    ) as error:
        raise InputError(
            f"vLLM's {type(model).__name__} rejects new weights ({type(error).__name__}: "
            f"{first_line(error)}); use sampler=torch"
        ) from error
    finally:
        layerwise.finalize_layerwise_reload(model, model_config)
    names = {_storage_id(tensor): name for name, tensor in given.items()}
    return _group_copies(recorder.copies, names, owners)


class _CopyRecorder(TorchDispatchMode):
    """A mode that records copies instead of making them; clones and casts return a view."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self.copies.append((args[0], args[1]))
            return args[0]
        if func in _ALIASED:
            return args[0]
        return func(*args, **(kwargs or {}))


def use_plain_loaders(model: nn.Module) -> dict[int, tuple[nn.Module, str, Tensor]]:
    """Disables the deferred loading of a reload.

    Returns the layer, name and tensor of each parameter and buffer, by its memory.
    """
    owners: dict[int, tuple[nn.Module, str, Tensor]] = {}
    for layer in model.modules():
        for name, tensor in (
            *layer.named_parameters(recurse=False),
            *layer.named_buffers(recurse=False),
        ):
            owners.setdefault(_storage_id(tensor), (layer, name, tensor))
            tensor.weight_loader = layerwise._get_original_loader(tensor)  # pyright: ignore
    return owners


def _group_copies(
    copies: Iterable[tuple[Tensor, Tensor]],
    names: Mapping[int, str],
    owners: Mapping[int, tuple[nn.Module, str, Tensor]],
) -> LoadTrace:
    found: dict[str, list[WeightCopy]] = {name: [] for name in names.values()}
    changed: set[tuple[nn.Module, str]] = set()
    for target, source in copies:
        if _storage_id(target) not in owners:
            continue
        layer, parameter, held = owners[_storage_id(target)]
        name = names.get(_storage_id(source))
        if name is None:
            changed.add((layer, parameter))
        else:
            source, target = torch.broadcast_tensors(source, target)
            copy = WeightCopy(
                layer,
                parameter,
                tuple(held.shape),
                StridedView.from_tensor(source),
                StridedView.from_tensor(target),
            )
            found[name].append(copy)
    return LoadTrace({name: tuple(copies) for name, copies in found.items()}, frozenset(changed))


def _storage_id(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
