"""The model that both sides of a benchmark run: a Llama of 0.6 M parameters with random weights."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB = 1024


def llama_config(spread: float = 0.02, hidden: int = 128, layers: int = 2, vocab: int = VOCAB) -> LlamaConfig:
    """Two layers of width 128, without special tokens, so that nothing ends a response unless a benchmark says so.

    Args:
        spread: Standard deviation of the random weights.
        hidden: Width; a multiple of 32, the size of a head.
        layers: Depth.
        vocab: Tokens.
    """
    return LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
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


def random_prompts(lengths: list[int], seed: int = 0) -> list[list[int]]:
    """One prompt of random tokens per length."""
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCAB, (length,), generator=draw).tolist() for length in lengths]
