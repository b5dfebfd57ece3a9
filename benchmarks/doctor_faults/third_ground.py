"""The models of the third faults: other architectures than those of the first two lists."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lockstep import keyed

VOCABULARY = 448
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 80,
    "intermediate_size": 144,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 20,
    "max_position_embeddings": 384,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 48, "num_hidden_layers": 3}
_LATENT = {"kv_lora_rank": 24, "q_lora_rank": None, "qk_rope_head_dim": 12, "qk_nope_head_dim": 12, "v_head_dim": 20}
_GROUPED = {
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "n_group": 8,
    "topk_group": 6,
    "routed_scaling_factor": 0.5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "first_k_dense_replace": 1,
}
_SEED = {"model_type": "seed_oss"}
THIRD_MODELS: dict[str, dict[str, Any]] = {
    "arcee": {"model_type": "arcee"},
    "cohere": {"model_type": "cohere2", "sliding_window": 48, "logit_scale": 1.0, "tie_word_embeddings": False},
    "deepseek": {"model_type": "deepseek_v3", **_LATENT, **_GROUPED, "head_dim": 12, "num_key_value_heads": 4},
    "exaone": {"model_type": "exaone4", "sliding_window": None, "layer_types": ["full_attention"] * 4},
    "glm4": {"model_type": "glm4"},
    "helium": {"model_type": "helium"},
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "neox": {"model_type": "gpt_neox", "tie_word_embeddings": False},
    "olmoe": {"model_type": "olmoe", **_EXPERTS},
    "opt": {"model_type": "opt", "ffn_dim": 144, "word_embed_proj_dim": 80, "tie_word_embeddings": False},
    "phi2": {"model_type": "phi"},
    "seed oss, many spare rows": _SEED,
    "seed oss, few spare rows": _SEED,
}
SPARE_ROWS = {"seed oss, many spare rows": 40, "seed oss, few spare rows": 8}
"""How many rows of these have no token."""
_SPREAD = 3.0
_WRITERS = (
    "o_proj.weight",
    "dense.weight",
    "down_proj.weight",
    "down_proj",
    "fc2.weight",
    "4h_to_h.weight",
    "c_proj.weight",
)


def write_third(name: str, seed: int, folder: Path) -> None:
    """Writes one of them, with weights of a seed and a tokenizer of whole words."""
    fields = THIRD_MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(keyed.key("third", name, seed) & (2**31 - 1))
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**_SHAPE, **fields}))
        _draw(model)
    model.save_pretrained(folder)
    words = {f"w{token}": token for token in range(VOCABULARY - SPARE_ROWS.get(name, 0))}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))


@torch.no_grad()
def _draw(model: PreTrainedModel) -> None:
    """Rows of different lengths, gains and biases off their usual ones, and layers that add less than they read."""
    for name, tensor in model.named_parameters():
        if tensor.ndim == 1:
            tensor += 0.25 * torch.randn_like(tensor)
            continue
        if name.endswith("embed_positions.weight"):
            tensor.copy_(torch.randn_like(tensor).cumsum(0) * 0.15)
            continue
        length = torch.exp(0.3 * torch.randn(*tensor.shape[:-1], 1))
        tensor.normal_().mul_(length * _gain(name, tensor.shape[0]) / math.sqrt(tensor.shape[-1]))


def _gain(name: str, rows: int) -> float:
    if rows == VOCABULARY:
        return _SPREAD
    return 0.7 if name.endswith(_WRITERS) else 1.1
