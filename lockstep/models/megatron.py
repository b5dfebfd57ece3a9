"""Where the tensors of a Hugging Face checkpoint lie in the parameters of a Megatron model of the same sizes.

Megatron lays matrices that read the same states into one: queries, keys and values group by group, gate and up one
after the other. Tensor-parallel ranks have rows of what comes in and columns of what goes out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedConfig

from lockstep.errors import InputError
from lockstep.models.parallelize import FAMILIES

_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_PLAIN = {
    "embedding.word_embeddings.weight": "embed_tokens.weight",
    "decoder.final_layernorm.weight": "norm.weight",
    "input_layernorm.weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
    "output_layer.weight": "lm_head.weight",
}
_ROWS = ("embedding.word_embeddings.weight", "output_layer.weight")
_COLUMNS = ("self_attention.linear_proj.weight", "mlp.linear_fc2.weight")


@dataclass(frozen=True)
class Place:
    """Where a tensor of the checkpoint lies in a parameter of one tensor-parallel rank.

    Attributes:
        name: Of the tensor, without what stands before all layers.
        dim: Along which tensor-parallel ranks share it; None: each has all of it.
        view: It, or this rank's part of it, in memory that is laid out as the parameter.
    """

    name: str
    dim: int | None
    view: Callable[[Tensor], Tensor]


def require_known(config: PreTrainedConfig) -> None:
    """Raises ValueError if a model cannot be computed by Megatron's layers as they are used here."""
    kind = config.model_type
    if kind not in FAMILIES:
        raise InputError(
            f"learner.backend is megatron, which knows these families: {', '.join(FAMILIES)}; for a {kind} use "
            "learner.backend=torch"
        )
    fields = config.to_dict()
    if fields.get("use_sliding_window") or fields.get("mlp_bias") or (kind != "qwen2" and fields.get("attention_bias")):
        raise InputError(
            "the model has sliding windows or biases that learner.backend=megatron does not know; use "
            "learner.backend=torch"
        )


def stages(layers: int, pp: int) -> list[int]:
    """Layers of each pipeline stage: as many each, but for the first, which may have fewer, since it embeds.

    Raises:
        ValueError: If the first stage would have none.
    """
    each = -(-layers // pp)
    first = layers - (pp - 1) * each
    if first < 1:
        fitting = next(fewer for fewer in range(pp - 1, 0, -1) if layers > (fewer - 1) * -(-layers // fewer))
        raise InputError(
            f"learner.parallel.pp is {pp}, but {layers} layers make no {pp} stages, all of one length but the first, "
            f"which may be shorter; {fitting} would do"
        )
    return [first] + [each] * (pp - 1)


def places(parameter: str, config: PreTrainedConfig, first_layer: int = 0) -> tuple[Place, ...]:
    """What of the checkpoint lies in a Megatron parameter.

    Args:
        parameter: Its name in a `GPTModel` of Megatron's own layers.
        config: Of the Hugging Face model.
        first_layer: Of the parameter's pipeline stage.

    Raises:
        KeyError: If no tensor is known to lie there.
    """
    found = _LAYER.fullmatch(parameter)
    if found is None:
        return (Place(_PLAIN[parameter], 0 if parameter in _ROWS else None, _itself),)
    before, own = f"layers.{first_layer + int(found[1])}.", found[2]
    if own in ("self_attention.linear_qkv.weight", "self_attention.linear_qkv.bias"):
        kind, groups = own.rpartition(".")[2], _Groups.of(config)
        parts = (("q", groups.queries), ("k", groups.keys), ("v", groups.values))
        return tuple(Place(f"{before}self_attn.{letter}_proj.{kind}", 0, view) for letter, view in parts)
    if own == "mlp.linear_fc1.weight":
        return (Place(f"{before}mlp.gate_proj.weight", 0, _first), Place(f"{before}mlp.up_proj.weight", 0, _second))
    return (Place(f"{before}{_PLAIN[own]}", 1 if own in _COLUMNS else None, _itself),)


@dataclass(frozen=True)
class _Groups:
    """Of queries that share a key: the queries of a group, then its key and its value."""

    heads: int
    size: int

    @classmethod
    def of(cls, config: PreTrainedConfig) -> _Groups:
        heads = int(config.num_attention_heads)
        size = int(config.to_dict().get("head_dim") or config.hidden_size // heads)
        return cls(heads // int(config.num_key_value_heads), size)

    def queries(self, parameter: Tensor) -> Tensor:
        return self._heads(parameter)[:, :-2]

    def keys(self, parameter: Tensor) -> Tensor:
        return self._heads(parameter)[:, -2]

    def values(self, parameter: Tensor) -> Tensor:
        return self._heads(parameter)[:, -1]

    def _heads(self, parameter: Tensor) -> Tensor:
        """[groups, heads of one, size of a head, …]."""
        return parameter.view(-1, self.heads + 2, self.size, *parameter.shape[1:])


def _itself(parameter: Tensor) -> Tensor:
    return parameter


def _first(parameter: Tensor) -> Tensor:
    return parameter.chunk(2)[0]


def _second(parameter: Tensor) -> Tensor:
    return parameter.chunk(2)[1]
