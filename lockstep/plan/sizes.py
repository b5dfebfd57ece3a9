"""Sizes of a model that determine its memory, from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from lockstep.config import LoRA
from lockstep.core.types import HeadKind
from lockstep.models.folder import count_cache_numbers, count_keys, find_context_length, head_size
from lockstep.models.heads import scores_tokens
from lockstep.models.lora import find_adapted
from lockstep.models.parallelize import find_vectors, list_layers

FP32 = 4
HALF = 2
INT64 = 8
"""Bytes per number."""


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of a model; numbers, not bytes.

    Attributes:
        layers: Number of layers.
        products: Parameters of a layer's matrices, which tensor-parallel ranks split.
        norms: A layer's other parameters, replicated on tensor-parallel ranks.
        vectors: Whether these are vectors in every layer: see `models.parallelize`.
        table: Parameters of the embedding, which tensor-parallel ranks split.
        head: Parameters of an untied vocabulary head, also split; 0 if tied to the embedding.
        rest: Parameters outside the layers that are replicated on tensor-parallel ranks.
        hidden: Size of the states between layers.
        intermediate: Hidden units of a layer.
        queries: Size of a token's queries in a layer: heads times head size.
        keys: Size of a token's keys in a layer; its values have the same size.
        heads: Number of query heads.
        cache: Numbers per token in a key-value cache.
        largest: Size of its largest tensor.
        normed: Size of a token's queries and keys if they have norms (Qwen3), else 0.
        adapters: Parameters of all adapters; 0 without adapters.
        inner: Sum of the ranks of a layer's adapters: numbers per token between their A and B.
        context: Maximum sequence length in tokens.
    """

    layers: int
    products: int
    norms: int
    vectors: bool
    table: int
    head: int
    rest: int
    hidden: int
    intermediate: int
    queries: int
    keys: int
    heads: int
    cache: int
    largest: int
    normed: int
    adapters: int = 0
    inner: int = 0
    context: int = 0

    @classmethod
    def from_model(cls, model: PreTrainedModel, lora: LoRA | None = None) -> ModelSizes:
        """Sizes of a model, perhaps a skeleton without weights, and of the adapters to add."""
        text = model.config.get_text_config()
        fields: Mapping[str, Any] = text.to_dict()
        hidden = int(fields["hidden_size"])
        heads = int(fields["num_attention_heads"])
        queries = heads * head_size(text)
        keys = count_keys(text)
        blocks = list_layers(model)
        products = 0
        for module in blocks[0].modules():
            if isinstance(module, nn.Linear):
                products += _count_parameters(module)
        table = _count_matrix(model.get_input_embeddings())
        head = _count_matrix(model.get_output_embeddings())
        own_head = 0 if fields.get("tie_word_embeddings") else head
        total = _count_parameters(model)
        layer = _count_parameters(blocks[0])
        adapted = [] if lora is None else find_adapted(model, lora)
        rank = 0 if lora is None else lora.rank
        return cls(
            layers=len(blocks),
            products=products,
            norms=layer - products,
            vectors=all(find_vectors(block) is not None for block in blocks),
            table=table,
            head=own_head,
            rest=total - len(blocks) * layer - table - own_head,
            hidden=hidden,
            intermediate=int(fields.get("intermediate_size") or 4 * hidden),
            queries=queries,
            keys=keys,
            heads=heads,
            cache=count_cache_numbers(model.config),
            largest=max(parameter.numel() for parameter in model.parameters()),
            normed=queries + keys
            if any(name.endswith("q_norm") for name, _ in blocks[0].named_modules())
            else 0,
            adapters=rank * sum(one.in_features + one.out_features for one in adapted),
            inner=rank * len(adapted) // len(blocks),
            context=find_context_length(model.config),
        )

    @property
    def policy_parameters(self) -> int:
        """Number of parameters, including the vocabulary head."""
        return self.layers * (self.products + self.norms) + self.table + self.head + self.rest

    @property
    def critic_parameters(self) -> int:
        """Number of parameters of the backbone with one output unit."""
        return self.policy_parameters - self.head + self.hidden + 1

    def count_trainable(self, head: HeadKind) -> int:
        """Number of trainable parameters: all, or only adapters and an output unit."""
        if not self.adapters:
            if scores_tokens(head):
                return self.policy_parameters
            return self.critic_parameters
        return self.adapters + (0 if scores_tokens(head) else self.hidden + 1)

    @property
    def key_heads(self) -> int:
        """Number of key heads."""
        return max(self.keys * self.heads // self.queries, 1)

    @property
    def vocabulary_size(self) -> int:
        """Rows of the embedding."""
        return self.table // self.hidden

    def layer_of(self, tp: int) -> int:
        """Parameters of a layer that each of `tp` tensor-parallel ranks uses."""
        return -(-self.products // tp) + self.norms + self.adapters // self.layers

    def root_of(self, tp: int, head: HeadKind) -> int:
        """Parameters outside the layers that such a rank uses; `head` is the learner's."""
        cut = self.table + (self.head if scores_tokens(head) else 0)
        return -(-cut // tp) + self.rest + (0 if scores_tokens(head) else self.hidden + 1)


def _count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _count_matrix(module: nn.Module | None) -> int:
    """Parameters of an embedding, or of a head without a bias."""
    if module is None:
        return 0
    return module.get_parameter("weight").numel()
