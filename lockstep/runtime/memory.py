"""How much memory and disk a run will take, on paper: sizes of the model's configuration times what is kept of each.

Weights, gradients, moments and caches are exact; what a forward pass keeps for its backward is a rough figure, measured
on small Llama-like models (bytes that autograd saves per token, in fp32): 44 per hidden unit and 16 per intermediate
unit of each layer; 12 per word of the vocabulary for logits, their softmax and its gradient.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from lockstep.recipe import LearnerSection

_FP32 = 4
_TRAINED = 4 * _FP32  # weights, gradients, first and second moments
_SAVED = 3 * _FP32  # weights and moments


@dataclass(frozen=True)
class Sizes:
    """What memory depends on, of a model.

    Attributes:
        policy: Parameters with the vocabulary head.
        critic: Parameters of the backbone and one unit.
        cache: Numbers that a key-value cache holds per token.
        kept: Bytes that a forward pass keeps per token, roughly, without logits.
        vocabulary: Rows of the embedding.
    """

    policy: int
    critic: int
    cache: int
    kept: int
    vocabulary: int

    @classmethod
    def of(cls, model: PreTrainedModel) -> Sizes:
        fields: Mapping[str, Any] = model.config.get_text_config().to_dict()
        hidden, layers, heads = (
            int(fields[name]) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")
        )
        head = int(fields.get("head_dim") or hidden // heads)
        return cls(
            policy=sum(parameter.numel() for parameter in model.parameters()),
            critic=sum(parameter.numel() for parameter in model.base_model.parameters()) + hidden + 1,
            cache=2 * layers * int(fields.get("num_key_value_heads") or heads) * head,
            kept=layers * (44 * hidden + 16 * int(fields.get("intermediate_size") or 4 * hidden)),
            vocabulary=int(fields["vocab_size"]),
        )


@dataclass(frozen=True)
class Part:
    """Memory of one thing in one process.

    Attributes:
        holder: Which process, or kind of processes.
        what: Is kept.
        size: In bytes.
        count: Processes of that kind.
    """

    holder: str
    what: str
    size: int
    count: int = 1


def trained(name: str, parameters: int, sizes: Sizes, learner: LearnerSection) -> list[Part]:
    """A model that learns: what it keeps, and what its largest micro-batch needs, roughly."""
    parallel = learner.parallel
    logits = 12 * sizes.vocabulary if name == "policy" else 0
    tokens = -(-learner.micro_batch_tokens // (parallel.cp * parallel.tp))
    return [
        Part(name, "weights, gradients, moments", -(-_TRAINED * parameters // parallel.copy_ranks), parallel.ranks),
        Part(name, "a micro-batch, roughly", tokens * (sizes.kept + logits), parallel.ranks),
    ]


def sampling(sizes: Sizes, learner: LearnerSection, rows: int, tokens: int) -> list[Part]:
    """The cache of `rows` sequences of `tokens` tokens, and weights where the learner's are elsewhere."""
    cache = Part("sampler", "cache", sizes.cache * rows * tokens * (2 if learner.dtype == "bf16" else _FP32))
    own = [Part("sampler", "weights", _FP32 * sizes.policy)] if learner.parallel.ranks > 1 else []
    return [cache, *own]


def frozen(sizes: Sizes, learner: LearnerSection) -> list[Part]:
    """A reference that is only scored with."""
    parallel = learner.parallel
    return [Part("reference", "weights", -(-_FP32 * sizes.policy // parallel.copy_ranks), parallel.ranks)]


def checkpoint_bytes(*parameters: int) -> int:
    """Of a checkpoint with models of so many parameters."""
    return sum(_SAVED * count for count in parameters)


def machine_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def readable(size: float) -> str:
    """Bytes for people."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}" if unit != "bytes" else f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"
