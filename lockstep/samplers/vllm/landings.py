"""The memory to which vLLM copies each checkpoint tensor, found by tracing its loaders.

vLLM renames, fuses, shards and transposes tensors, and each model has its own `load_weights`. All
of that ends in copies from a strided view of a given tensor to a strided view of a layer's
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
class WeightLanding:
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
class LandingSurvey:
    """The landings found in a survey.

    Attributes:
        of: Landings by tensor name.
        changed: Parameters, as layer and name, to which something other than a given tensor was
            copied.
    """

    of: Mapping[str, tuple[WeightLanding, ...]]
    changed: frozenset[tuple[nn.Module, str]]


def find_sent_tensors(network: PreTrainedModel) -> dict[str, Tensor]:
    """The tensors that a learner sends: parameters, each once, and a checkpoint's buffers."""
    kept = network.state_dict().keys()
    return dict(network.named_parameters()) | {
        name: b for name, b in network.named_buffers() if name in kept
    }


def split_as_in_files(network: PreTrainedModel, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors named and split as in the model's files: `transformers` fuses those of experts."""
    return revert_weight_conversion(network, dict(tensors))


def survey_landings(model: Any, model_config: Any, network: PreTrainedModel) -> LandingSurvey:
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
        places = take_plain_loaders(model)
        with torch.no_grad(), _CopyRecorder() as seen:
            model.load_weights(split_as_in_files(network, given).items())
    except (
        LookupError,
        ValueError,
        TypeError,
        RuntimeError,
        AssertionError,
        AttributeError,
    ) as error:
        what = (
            f"vLLM's {type(model).__name__} rejects new weights ({type(error).__name__}: "
            f"{first_line(error)})"
        )
        raise InputError(f"{what}; use sampler=torch") from error
    finally:
        layerwise.finalize_layerwise_reload(model, model_config)
    return _group_landings(
        seen.copies, {_storage_id(tensor): name for name, tensor in given.items()}, places
    )


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


def take_plain_loaders(model: nn.Module) -> dict[int, tuple[nn.Module, str, Tensor]]:
    """Maps memory to parameters and buffers, and disables deferred loading, which a reload uses."""
    places: dict[int, tuple[nn.Module, str, Tensor]] = {}
    for layer in model.modules():
        for name, tensor in (
            *layer.named_parameters(recurse=False),
            *layer.named_buffers(recurse=False),
        ):
            places.setdefault(_storage_id(tensor), (layer, name, tensor))
            tensor.weight_loader = layerwise._get_original_loader(tensor)  # pyright: ignore
    return places


def _group_landings(
    copies: Iterable[tuple[Tensor, Tensor]],
    names: Mapping[int, str],
    places: Mapping[int, tuple[nn.Module, str, Tensor]],
) -> LandingSurvey:
    found: dict[str, list[WeightLanding]] = {name: [] for name in names.values()}
    changed: set[tuple[nn.Module, str]] = set()
    for target, source in copies:
        if _storage_id(target) not in places:
            continue
        layer, parameter, whole = places[_storage_id(target)]
        name = names.get(_storage_id(source))
        if name is None:
            changed.add((layer, parameter))
        else:
            source, target = torch.broadcast_tensors(source, target)
            landing = WeightLanding(
                layer,
                parameter,
                tuple(whole.shape),
                StridedView.from_tensor(source),
                StridedView.from_tensor(target),
            )
            found[name].append(landing)
    return LandingSurvey(
        {name: tuple(landings) for name, landings in found.items()}, frozenset(changed)
    )


def _storage_id(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
