"""The models of the fifth faults: architectures that none of the first four lists uses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteFallback, Fuse, Sequence
from tokenizers.models import BPE
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lockstep import keyed

VOCABULARY = 400
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 72,
    "intermediate_size": 120,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 18,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
_EXPERTS = {"num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
_ROTARY = {"rope_type": "default", "rope_theta": 10_000.0}
_IN_TURN = ["sliding_attention", "full_attention"] * 2
_DENSE = {"first_k_dense_replace": 4}
_LATENT = {"kv_lora_rank": 24, "q_lora_rank": None, "qk_rope_head_dim": 8, "qk_nope_head_dim": 10, "v_head_dim": 18}


def _two_bases(ratio: float) -> dict[str, Any]:
    far = {**_ROTARY, "rope_theta": 10_000.0 * ratio}
    return {
        "model_type": "laguna",
        "layer_types": _IN_TURN,
        "mlp_layer_types": ["dense"] * 4,
        "rope_parameters": {"sliding_attention": _ROTARY, "full_attention": far},
    }


FIFTH_MODELS: dict[str, dict[str, Any]] = {
    "afmoe": {"model_type": "afmoe", "num_dense_layers": 2, **_EXPERTS},
    "biogpt": {"model_type": "biogpt"},
    "bitnet, few bytes": {"model_type": "bitnet"},
    "bitnet, many bytes": {"model_type": "bitnet"},
    "cwm": {"model_type": "cwm", "layer_types": _IN_TURN},
    "deepseek 2": {"model_type": "deepseek_v2", **_LATENT, "num_key_value_heads": 4, "head_dim": 8, **_DENSE},
    "diffllama": {"model_type": "diffllama"},
    "exaone moe": {"model_type": "exaone_moe", "mlp_layer_types": ["dense", "sparse"] * 2, **_EXPERTS},
    "flex olmo": {"model_type": "flex_olmo", **_EXPERTS, "intermediate_size": 48},
    "glm, first": {"model_type": "glm"},
    "granite moe": {"model_type": "granitemoe", **_EXPERTS, "intermediate_size": 48},
    "granite moe, shared": {"model_type": "granitemoeshared", **_EXPERTS, "shared_intermediate_size": 32},
    "hunyuan 3": {"model_type": "hy_v3", **_EXPERTS, "tie_word_embeddings": True},
    "hyperclova": {"model_type": "hyperclovax"},
    "jais": {"model_type": "jais2"},
    "laguna, bases apart": _two_bases(50.0),
    "laguna, bases together": _two_bases(1.1),
    "mellum": {"model_type": "mellum", **_EXPERTS},
    "minimax 2": {"model_type": "minimax_m2", **_EXPERTS, "intermediate_size": 48, "rope_parameters": _ROTARY},
    "ministral 3": {"model_type": "ministral3"},
    "solar": {"model_type": "solar_open", "n_routed_experts": 8, **_EXPERTS},
    "stablelm": {"model_type": "stablelm"},
}
_BYTES = {"bitnet, many bytes": 40, "bitnet, few bytes": 1}
"""How many tokens are single bytes that no character begins with."""
_FIRST_BYTE = 30
_REPLACEMENT = ("<0xEF>", "<0xBF>", "<0xBD>")
"""What stands for a byte that is no text."""
_SPREAD = 3.0
_OUT = ("o_proj.weight", "down_proj", "down_proj.weight", "c_proj.weight", "output_linear.weight")


def write_fifth(name: str, seed: int, folder: Path) -> None:
    """Writes one of them, with weights of a seed and a tokenizer of single letters, and of some bytes."""
    with torch.random.fork_rng():
        torch.manual_seed(keyed.key("fifth", name, seed) & (2**31 - 1))
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**_SHAPE, **FIFTH_MODELS[name]}))
        _draw(model)
    model.save_pretrained(folder)
    letters = [chr(0x1200 + token) for token in range(VOCABULARY)]
    letters[-len(_REPLACEMENT) :] = _REPLACEMENT
    for place in range(_BYTES.get(name, 0)):
        letters[_FIRST_BYTE + place] = f"<0x{0x80 + place:02X}>"
    tokenizer = Tokenizer(BPE({letter: token for token, letter in enumerate(letters)}, [], byte_fallback=True))
    tokenizer.decoder = Sequence([ByteFallback(), Fuse()])
    tokenizer.save(str(folder / "tokenizer.json"))


@torch.no_grad()
def _draw(model: PreTrainedModel) -> None:
    """Rows and columns of different lengths; layers that add less than they read; bytes of no text are never drawn."""
    for name, tensor in model.named_parameters():
        if tensor.ndim == 1:
            tensor += 0.2 * torch.randn_like(tensor)
            continue
        size = 1 / math.sqrt(tensor.shape[-1])
        if len(tensor) == VOCABULARY:
            size *= _SPREAD
        elif name.endswith(_OUT):
            size *= 0.6
        tensor.normal_().mul_((0.5 + torch.rand(tensor.shape[-1])) * size)
