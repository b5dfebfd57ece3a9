"""The model that both sides of a benchmark run: a Llama of 0.6 M parameters with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB = 1024
SMOLLM2 = 576
"""The width of SmolLM2-135M; a model of this width has its heads and its other widths, too."""


@dataclass(frozen=True)
class Size:
    """The width, depth and vocabulary of a model."""

    hidden: int
    layers: int
    vocab: int

    @property
    def options(self) -> tuple[str, ...]:
        """As options of a side of a benchmark."""
        return (
            "--hidden",
            str(self.hidden),
            "--layers",
            str(self.layers),
            "--vocab",
            str(self.vocab),
        )


SIZES = {
    "toy": Size(64, 2, 256),
    "default": Size(128, 2, VOCAB),
    "512x8": Size(512, 8, VOCAB),
    "100M": Size(768, 12, 16384),
    "SmolLM2": Size(SMOLLM2, 30, 49152),
}
"""Sizes by name; `toy` is that of `ppo_arithmetic`."""


def llama_config(
    spread: float = 0.02, hidden: int = 128, layers: int = 2, vocab: int = VOCAB
) -> LlamaConfig:
    """Two layers of width 128, without special tokens, so that nothing ends a response unless a
    benchmark says so.

    Args:
        spread: Standard deviation of the random weights.
        hidden: Width; a multiple of 32, the size of a head.
        layers: Depth.
        vocab: Tokens.
    """
    if hidden == SMOLLM2:
        shape: dict[str, Any] = {
            "intermediate_size": 1536,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "tie_word_embeddings": True,
        }
    else:
        shape = {"intermediate_size": hidden * 11 // 4, "num_attention_heads": hidden // 32}
    return LlamaConfig(
        **shape,
        vocab_size=vocab,
        hidden_size=hidden,
        num_hidden_layers=layers,
        max_position_embeddings=512,
        initializer_range=spread,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def causal_lm(config: LlamaConfig, seed: int = 0) -> LlamaForCausalLM:
    """The language model, fp32."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)


def random_prompts(lengths: list[int], seed: int = 0, vocab: int = VOCAB) -> list[list[int]]:
    """One prompt of random tokens per length."""
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab, (length,), generator=draw).tolist() for length in lengths]
