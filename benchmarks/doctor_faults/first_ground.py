"""The models of the first faults: small and random, every architecture that some fault needs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lockstep import keyed

VOCABULARY = 512
CONTEXT = 512
_LETTERS = 64
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
FIRST_MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "rms_norm_eps": 1e-5},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3"},
    "gemma2": {
        "tie_word_embeddings": False,
        "model_type": "gemma2",
        "attn_logit_softcapping": None,
        "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 16,
        "sliding_window": CONTEXT,
    },
    "mixtral": {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 96},
    "mamba2": {
        "model_type": "mamba2",
        "num_hidden_layers": 2,
        "num_heads": 12,
        "head_dim": 16,
        "state_size": 16,
        "n_groups": 1,
        "chunk_size": 32,
        "tie_word_embeddings": False,
    },
    "window": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1},
}
_LOGITS = 3.5
"""Standard deviation of logits: peaks near 15, entropies of one to three nats."""
_GAIN = {"qwen2": 1.15, "mixtral": 0.5}
"""What blocks multiply the length of a state by, if not 0.7: more where the head is tied to the embedding, or tokens
would repeat; less where rounding sends tokens to other experts."""


def write_first(name: str, seed: int, folder: Path) -> None:
    """Writes one of them, with weights and a tokenizer of a seed."""
    key = keyed.key(name, seed)
    with torch.random.fork_rng():
        torch.manual_seed(key & (2**31 - 1))
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**_SHAPE, **FIRST_MODELS[name]}))
        _widen(model, _GAIN.get(name, 0.7))
    model.save_pretrained(folder)
    _tokenizer(key).save(str(folder / "tokenizer.json"))


@torch.no_grad()
def _widen(model: PreTrainedModel, gain: float) -> None:
    """Draws weights so that each layer, position and neighbour matters, and logits have the spread wanted."""
    hidden = int(model.config.hidden_size)
    for name, tensor in _drawn(model):
        if "embed" in name or "lm_head" in name:
            tensor.normal_(0.0, _LOGITS / math.sqrt(hidden))
        elif tensor.ndim == 1:
            tensor += 0.2 * torch.randn_like(tensor)
        else:
            tensor.normal_(0.0, gain / math.sqrt(tensor.shape[-1]))


def _drawn(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Parameters, but for those of a state space: their scales are laid out, not drawn."""
    for name, parameter in model.named_parameters():
        if not name.endswith(("A_log", ".D", "dt_bias", "conv1d.weight")):
            yield name, parameter


def _tokenizer(seed: int) -> Tokenizer:
    """Byte pairs over a small alphabet. Drawn ids are seldom those that it would choose for their text."""
    letters = [chr(ord("A") + place) for place in range(_LETTERS)]
    order = keyed.permutation(_LETTERS * _LETTERS, "merges", seed)[: VOCABULARY - _LETTERS].tolist()
    merges = [(letters[pair // _LETTERS], letters[pair % _LETTERS]) for pair in order]
    words = letters + [first + second for first, second in merges]
    tokenizer = Tokenizer(BPE(vocab={word: place for place, word in enumerate(words)}, merges=merges))
    tokenizer.decoder = Fuse()
    return tokenizer
