"""The definition of a model family: what Lockstep needs beyond an architecture's configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch.distributed.tensor.parallel import ParallelStyle


@dataclass(frozen=True)
class TensorParallel:
    """Tensor-parallel plan of a backbone.

    Attributes:
        plan: Returns the parallel style of each sharded module, by its name in the backbone; `*`
            stands for each layer.
        divided_fields: Fields of the configuration that must be multiples of the number of ranks.
    """

    plan: Callable[[], dict[str, ParallelStyle]]
    divided_fields: tuple[str, ...]


@dataclass(frozen=True)
class MegatronLayers:
    """Settings of a family on Megatron's own layers.

    These have RMS norms, gated SiLU, rotary positions and grouped queries.

    Attributes:
        tensors: Maps each parameter of a `GPTModel` to the checkpoint tensors in it, in order; `*`
            is the number of a layer. Names are relative to the backbone, except the vocabulary
            head's.
        refused_fields: Fields of the configuration that, if set, require features that these layers
            lack.
    """

    tensors: Mapping[str, tuple[str, ...]]
    refused_fields: tuple[str, ...]

    @property
    def qkv_bias(self) -> bool:
        """True if queries, keys and values have biases."""
        return "decoder.layers.*.self_attention.linear_qkv.bias" in self.tensors

    @property
    def qk_norm(self) -> bool:
        """True if queries and keys have norms."""
        return "decoder.layers.*.self_attention.q_layernorm.weight" in self.tensors


@dataclass(frozen=True)
class ModelFamily:
    """An architecture of `transformers`.

    Only the type is required; each other field enables a feature.

    Attributes:
        model_type: `model_type` in configurations.
        tensor_parallel: Tensor-parallel plan; None: tp is refused.
        megatron: Map to Megatron's layers; None: the Megatron backend refuses it.
        reads_boxes: Whether each rank reads only its own boxes of the files, so that no rank holds
            the full model. This requires that files name tensors as the network does, that logits
            are products of the last hidden states and the vocabulary head, and that buffers follow
            from the configuration.
        plain: Whether a layer adds attention and an MLP to its input, each after a norm, as
            `last_layer` computes it.
    """

    model_type: str
    tensor_parallel: TensorParallel | None = None
    megatron: MegatronLayers | None = None
    reads_boxes: bool = False
    plain: bool = False
