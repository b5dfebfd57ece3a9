"""Maps Hugging Face checkpoint tensors to parameters of a Megatron model of the same sizes.

A family names the tensors (`models.families`); their layout is the same for all. Megatron fuses
matrices with the same input: queries, keys and values group by group, gate and up one after the
other. Tensor parallelism shards the rows of QKV, gate and up, embedding and head, and the columns
of attention's output and of down.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedConfig

from lockstep.core.errors import InputError
from lockstep.models.families.base import MegatronLayers
from lockstep.models.families.registry import find_family, list_megatron
from lockstep.models.folder import head_size

_LAYER = re.compile(r"(?<=^decoder\.layers\.)\d+")
_QKV = ("self_attention.linear_qkv.weight", "self_attention.linear_qkv.bias")
_HALVES = ("mlp.linear_fc1.weight",)
_ROWS = ("embedding.word_embeddings.weight", "output_layer.weight", *_QKV, *_HALVES)
_COLUMNS = ("self_attention.linear_proj.weight", "mlp.linear_fc2.weight")


@dataclass(frozen=True)
class ParameterSlice:
    """A view of one tensor-parallel rank's parameter that holds a checkpoint tensor.

    Attributes:
        name: Name of the tensor within the backbone.
        dim: Dimension along which tensor parallelism shards it; None: replicated.
        view: Maps memory laid out like the parameter to the tensor, or this rank's part of it.
    """

    name: str
    dim: int | None
    view: Callable[[Tensor], Tensor]


_ACTIVATION = "silu"
"""Activation of the gated units."""


def require_known(config: PreTrainedConfig) -> None:
    """Raises ValueError if Megatron's layers, as used here, cannot compute a model."""
    fields = config.to_dict()
    if any(map(fields.get, find_megatron_layers(config).refused_fields)):
        raise InputError(
            "the model has sliding windows or biases that learner.backend=megatron does not "
            "support; use learner.backend=torch"
        )
    if fields["hidden_act"] != _ACTIVATION:
        raise InputError(
            f"the model's hidden_act is {fields['hidden_act']}, but learner.backend=megatron "
            f"supports only {_ACTIVATION}; use learner.backend=torch"
        )


def find_megatron_layers(config: PreTrainedConfig) -> MegatronLayers:
    """The Megatron layers of a model's family; raises ValueError if it has none."""
    family = find_family(config)
    if family.megatron is None:
        raise InputError(
            f"learner.backend=megatron supports only {list_megatron()}; for {family.model_type} "
            "use learner.backend=torch"
        )
    return family.megatron


def split_stages(layers: int, pp: int, layout_key: str = "learner.parallel") -> list[int]:
    """Layers per pipeline stage: equal, but the first, which has the embedding, may have fewer.

    Raises:
        ValueError: If the first stage would have none.
    """
    each = -(-layers // pp)
    first = layers - (pp - 1) * each
    if first < 1:
        raise InputError(
            f"{layout_key}.pp is {pp}, but {layers} layers cannot be split into {pp} equal "
            "stages, the first of which may be shorter; lower it"
        )
    return [first] + [each] * (pp - 1)


def list_slices(
    parameter: str, config: PreTrainedConfig, first_layer: int = 0
) -> tuple[ParameterSlice, ...]:
    """Lists the tensors of the checkpoint that lie in a Megatron parameter.

    Args:
        parameter: Its name in a `GPTModel` of Megatron's own layers.
        config: Configuration of the Hugging Face model.
        first_layer: First layer of the parameter's pipeline stage.

    Raises:
        KeyError: If the parameter is unknown.
    """
    found = _LAYER.search(parameter)
    number = "" if found is None else str(first_layer + int(found[0]))
    names = [
        name.replace("*", number)
        for name in find_megatron_layers(config).tensors[_LAYER.sub("*", parameter)]
    ]
    if parameter.endswith(_ROWS):
        dim = 0
    elif parameter.endswith(_COLUMNS):
        dim = 1
    else:
        dim = None
    views: tuple[Callable[[Tensor], Tensor], ...] = (view_unchanged,)
    if parameter.endswith(_QKV):
        groups = _QueryGroups.from_config(config)
        views = groups.view_queries, groups.view_keys, groups.view_values
    elif parameter.endswith(_HALVES):
        views = _view_first_half, _view_second_half
    return tuple(ParameterSlice(name, dim, view) for name, view in zip(names, views, strict=True))


@dataclass(frozen=True)
class _QueryGroups:
    """Rows of a fused QKV matrix: for each group, its queries, then its key and its value."""

    heads: int
    size: int

    @classmethod
    def from_config(cls, config: PreTrainedConfig) -> _QueryGroups:
        heads = int(config.num_attention_heads)
        return cls(heads // int(config.num_key_value_heads), head_size(config))

    def view_queries(self, parameter: Tensor) -> Tensor:
        return self._view_heads(parameter)[:, :-2]

    def view_keys(self, parameter: Tensor) -> Tensor:
        return self._view_heads(parameter)[:, -2]

    def view_values(self, parameter: Tensor) -> Tensor:
        return self._view_heads(parameter)[:, -1]

    def _view_heads(self, parameter: Tensor) -> Tensor:
        """Views a matrix as [groups, heads per group, size of a head, …]."""
        return parameter.view(-1, self.heads + 2, self.size, *parameter.shape[1:])


def view_unchanged(parameter: Tensor) -> Tensor:
    """The view for a tensor that fills its parameter."""
    return parameter


def _view_first_half(parameter: Tensor) -> Tensor:
    return parameter.chunk(2)[0]


def _view_second_half(parameter: Tensor) -> Tensor:
    return parameter.chunk(2)[1]
