"""The models of the sixth list's faults: architectures that no other list brings."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lockstep import keyed

VOCABULARY = 320
HEADS = 4
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 56,
    "intermediate_size": 104,
    "num_hidden_layers": 4,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "head_dim": 14,
    "max_position_embeddings": 288,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_EXPERTS = {"num_experts": 8, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
_RANKS_OF_LATENTS = {"kv_lora_rank": 24, "q_lora_rank": 20, "num_key_value_heads": HEADS}
_LATENT = {**_RANKS_OF_LATENTS, "qk_rope_head_dim": 8, "qk_nope_head_dim": 10, "v_head_dim": 14, "head_dim": 8}
_ALL_FULL = {"layer_types": ["full_attention"] * 4}
_NO_EXTRAS = {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}
_EMPTY = {"moe_topk": 2, "zero_expert_num": 2}
_NARROW = {"ffn_hidden_size": 104, "expert_ffn_hidden_size": 40}
SIXTH_MODELS: dict[str, dict[str, Any]] = {
    "bloom": {"model_type": "bloom", "n_layer": 4, "n_head": HEADS},
    "cohere2 moe": {"model_type": "cohere2_moe", **_EXPERTS, "intermediate_size": 48, "logit_scale": 1.0},
    "ctrl": {"model_type": "ctrl", "n_embd": 56, "n_layer": 4, "n_head": HEADS, "n_positions": 288, "dff": 104},
    "doge": {"model_type": "doge"},
    "gemma4": {"model_type": "gemma4_text", "global_head_dim": 14, **_ALL_FULL, **_NO_EXTRAS},
    "glm moe, latent": {"model_type": "glm4_moe_lite", **_LATENT, **_EXPERTS},
    "granite, sinks": {"model_type": "granite_swa", **_ALL_FULL},
    "hrm": {"model_type": "hrm_text", "H_cycles": 1, "L_cycles": 2},
    "jamba": {"model_type": "jamba", **_EXPERTS, "attn_layer_period": 1, "attn_layer_offset": 0},
    "lfm moe": {"model_type": "lfm2_moe", **_EXPERTS, **_ALL_FULL, "num_dense_layers": 1, "use_expert_bias": True},
    "longcat": {"model_type": "longcat_flash", "num_layers": 2, **_LATENT, **_EXPERTS, **_EMPTY, **_NARROW},
    "mimo": {"model_type": "mimo_v2_flash", **_EXPERTS, "v_head_dim": 14},
    "minicpm": {"model_type": "minicpm3", **_LATENT},
    "qwen3 next": {"model_type": "qwen3_next", **_EXPERTS, **_ALL_FULL, "shared_expert_intermediate_size": 32},
    "qwen3.5": {"model_type": "qwen3_5_text", **_ALL_FULL},
    "recurrent gemma": {"model_type": "recurrent_gemma", "lru_width": 56, "block_types": ["attention"]},
    "xglm": {"model_type": "xglm", "d_model": 56, "num_layers": 4, "attention_heads": HEADS, "ffn_dim": 104},
    "youtu": {"model_type": "youtu", **_LATENT, "attention_bias": True},
}
_SPREAD = 3.0
_SCALED = ("ctrl", "gemma4", "xglm")
"""Models that multiply their embedding by the root of the hidden size."""
_SHARP = ("q_b_proj.weight",)
"""What makes latent attention choose between tokens."""
_OUT = ("o_proj.weight", "out_proj.weight", "dense.weight", "down_proj", "down_proj.weight")
_OUT_OLD = ("w2.weight", "fc2.weight", "4h_to_h.weight")


def write_sixth(name: str, seed: int, folder: Path) -> None:
    """Writes one of them, with weights of a seed and a tokenizer of whole words."""
    with torch.random.fork_rng():
        torch.manual_seed(keyed.key("sixth", name, seed) & (2**31 - 1))
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**_SHAPE, **SIXTH_MODELS[name]}))
        _draw(model, 1 / math.sqrt(_SHAPE["hidden_size"]) if name in _SCALED else 1.0)
    model.save_pretrained(folder)
    words = {f"t{token}": token for token in range(VOCABULARY)}
    Tokenizer(WordLevel(words, unk_token="t0")).save(str(folder / "tokenizer.json"))


@torch.no_grad()
def _draw(model: PreTrainedModel, embedded: float) -> None:
    """Rows and columns of different lengths; layers that add less than they read."""
    for name, tensor in model.named_parameters():
        if tensor.ndim == 1:
            tensor += 0.2 * torch.randn_like(tensor)
        else:
            length = torch.exp(0.25 * torch.randn(*tensor.shape[:-1], 1))
            tensor.normal_().mul_(length * _size(name, tensor, embedded) * (0.6 + torch.rand(tensor.shape[-1])))


def _size(name: str, tensor: Tensor, embedded: float) -> float:
    size = 1 / math.sqrt(tensor.shape[-1])
    if len(tensor) == VOCABULARY:
        return size * _SPREAD * (1.0 if name.startswith("lm_head") else embedded)
    if name.endswith(_SHARP):
        return size * 2.5
    return size * (0.6 if name.endswith((*_OUT, *_OUT_OLD)) else 1.0)
