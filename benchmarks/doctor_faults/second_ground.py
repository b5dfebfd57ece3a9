"""The models of the second faults: other architectures than those that the rules were written with."""

from __future__ import annotations

import math
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lockstep import keyed

VOCABULARY = 384
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_DEEP = {"num_hidden_layers": 6, "hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 3}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
_GEMMA = {
    "model_type": "gemma3_text",
    "query_pre_attn_scalar": 16,
    "sliding_window": 512,
    "tie_word_embeddings": False,
}
SECOND_MODELS: dict[str, dict[str, Any]] = {
    "ernie": {"model_type": "ernie4_5", "tie_word_embeddings": False},
    "gemma3": {**_GEMMA, "final_logit_softcapping": 12.0},
    "gemma3, high cap": {**_GEMMA, "final_logit_softcapping": 60.0},
    "glm": {
        "model_type": "glm4_moe",
        **_EXPERTS,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "use_qk_norm": True,
    },
    "gpt2": {"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512},
    "granite": {"model_type": "granite", "logits_scaling": 0.8, "residual_multiplier": 0.7},
    "hunyuan": {"model_type": "hunyuan_v1_dense", **_DEEP},
    "mixtral, four experts": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "olmo": {"model_type": "olmo3", "sliding_window": 80, "num_hidden_layers": 4},
    "olmo, tied": {"model_type": "olmo2", "tie_word_embeddings": True},
    "phi": {"model_type": "phi3"},
    "qwen3, deep": {"model_type": "qwen3", **_DEEP},
    "qwen3, logits off zero": {"model_type": "qwen3"},
    "qwen3, logits far off zero": {"model_type": "qwen3"},
    "qwen3 moe": {"model_type": "qwen3_moe", **_EXPERTS, "num_experts": 8, "norm_topk_prob": True},
    "smollm": {"model_type": "smollm3", "no_rope_layer_interval": 3, "tie_word_embeddings": False},
    "starcoder": {"model_type": "starcoder2", "tie_word_embeddings": False},
}
_SPREAD = 2.5
_OFF_ZERO = {"qwen3, logits off zero": 2.5, "qwen3, logits far off zero": 5.0}
"""How large one channel of the embedding and the head is, for these."""
_WRITERS = ("o_proj.weight", "down_proj.weight", "c_proj.weight", "down_proj")


def write_second(name: str, seed: int, folder: Path) -> None:
    """Writes one of them, with weights of a seed."""
    # The key says what these models were when they were drawn first, so that they stay the same.
    key, fields = keyed.key("held out", name, seed), SECOND_MODELS[name]
    shape = {own: size for own, size in _SHAPE.items() if not ("n_embd" in fields and own.startswith("num_"))}
    with torch.random.fork_rng():
        torch.manual_seed(key & (2**31 - 1))
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**shape, **fields}))
        _draw(model)
        if name in _OFF_ZERO:
            _shift_logits(model, _OFF_ZERO[name])
    model.save_pretrained(folder)
    words = {f"<{token}>": token for token in range(VOCABULARY)}
    Tokenizer(WordLevel(words, unk_token="<0>")).save(str(folder / "tokenizer.json"))


@torch.no_grad()
def _draw(model: PreTrainedModel) -> None:
    """Weights with tails as heavy as a trained model's, gains and biases that matter, and logits of some spread."""
    saved = model.state_dict()
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if name not in saved:
            continue
        if tensor.ndim == 1:
            tensor += 0.3 * torch.randn_like(tensor)
        elif name.endswith("wpe.weight"):
            tensor.copy_(_waves(tensor))
        else:
            tensor.copy_(_tailed(tensor) * _spread(name, tensor))


def _spread(name: str, tensor: Tensor) -> float:
    """Of a matrix; what layers add to the residual stream is small enough that a little noise stays little."""
    if len(tensor) == VOCABULARY:
        return _SPREAD / math.sqrt(tensor.shape[-1])
    return (0.6 if name.endswith(_WRITERS) else 1.2) / math.sqrt(tensor.shape[-1])


def _waves(tensor: Tensor) -> Tensor:
    """Positions as sines: near ones are alike."""
    rate = torch.logspace(0, -3, tensor.shape[1])
    return 0.3 * torch.sin(torch.arange(len(tensor))[:, None] * rate + torch.arange(tensor.shape[1]))


@torch.no_grad()
def _shift_logits(model: PreTrainedModel, size: float) -> None:
    """One channel that is large everywhere, as trained models have; it moves all logits by the same."""
    channel = torch.zeros(int(model.config.hidden_size), dtype=torch.bool)
    channel[0] = True
    for name, parameter in model.named_parameters():
        if len(parameter) == VOCABULARY:
            parameter[:, channel] = size
        elif name.endswith(_WRITERS):
            parameter[channel] = 0.0


def _tailed(tensor: Tensor) -> Tensor:
    """Student's t with five degrees of freedom, scaled to variance 1."""
    chi = torch.randn(5, *tensor.shape).square().sum(0)
    return torch.randn_like(tensor) * (3.0 / chi).sqrt()
