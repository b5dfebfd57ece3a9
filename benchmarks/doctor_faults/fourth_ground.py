"""The models of the fourth faults: architectures that none of the first three lists uses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lockstep import keyed

VOCABULARY = 416
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_OLD_SHAPE = {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 256}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 48, "num_hidden_layers": 3}
_LOCAL = {"num_local_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 3}
_STATES = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 16, "mamba_chunk_size": 32}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 2.0,
    "original_max_position_embeddings": 128,
    "attention_factor": 1.0,
}
_CONVOLUTIONS = {
    "model_type": "lfm2",
    "layer_types": ["conv", "full_attention"] * 2,
    "block_auto_adjust_ff_dim": False,
}
FOURTH_MODELS: dict[str, dict[str, Any]] = {
    "apertus": {"model_type": "apertus", "rope_parameters": _YARN},
    "bamba": {"model_type": "bamba", "attn_layer_indices": [1, 3], **_STATES},
    "codegen": {"model_type": "codegen", "rotary_dim": 8, **_OLD_SHAPE},
    "command r": {"model_type": "cohere", "logit_scale": 1.0},
    "dots": {"model_type": "dots1", "first_k_dense_replace": 4},
    "ernie moe": {"model_type": "ernie4_5_moe", "moe_num_experts": 8, "moe_k": 2, **_EXPERTS},
    "gemma": {"model_type": "gemma"},
    "gpt oss": {"model_type": "gpt_oss", "sliding_window": 48, **_LOCAL},
    "hunyuan moe": {"model_type": "hunyuan_v1_moe", "num_experts": 4, "moe_topk": [2] * 4},
    "jetmoe": {"model_type": "jetmoe", "num_local_experts": 4, "num_key_value_heads": 4, "kv_channels": 16},
    "lfm, long convolution": {**_CONVOLUTIONS, "conv_L_cache": 16},
    "lfm, short convolution": {**_CONVOLUTIONS, "conv_L_cache": 3},
    "minimax": {"model_type": "minimax", "layer_types": ["full_attention"] * 3, **_LOCAL},
    "ministral": {"model_type": "ministral", "sliding_window": 64},
    "nanochat": {"model_type": "nanochat", "final_logit_softcapping": 6.0},
    "nemotron": {"model_type": "nemotron"},
    "olmo, first": {"model_type": "olmo"},
    "persimmon": {"model_type": "persimmon"},
    "phi moe": {"model_type": "phimoe", **_LOCAL},
    "qwen2 moe": {"model_type": "qwen2_moe", "num_experts": 8, "shared_expert_intermediate_size": 32, **_EXPERTS},
    "vaultgemma": {"model_type": "vaultgemma", "query_pre_attn_scalar": 16, "final_logit_softcapping": None},
}
TWINS = (*"ＡＢＣＤＥＦＧＨＩＪＫＬＭＮＯＰＱＲＳＴＵＶＷＸＹＺａ", "\u212a", "\u212b", "\u2126")
"""Letters that a normaliser writes otherwise: NFKC all of them, NFC the last three."""
_PLAIN = (*"ABCDEFGHIJKLMNOPQRSTUVWXYZa", "K", "\u00c5", "\u03a9")
_FIRST_TWIN, _FIRST_PLAIN = 20, 200
_SPREAD = 3.0
_SCALED = ("gemma", "vaultgemma")
"""Models that multiply their embedding by the root of the hidden size."""
_KEPT = ("dt_bias", "conv1d.weight")
_SLOWER, _SKIPPED = 4.0, 0.1
"""How far decays are moved towards none, in nats, and how much of its input a state space adds to its output."""
_OUT = ("o_proj.weight", "out_proj.weight", "dense.weight", "down_proj", "down_proj.weight", "fc_out.weight")
_OUT_OLD = ("c_proj.weight", "4h_to_h.weight", "w2.weight")


def write_fourth(name: str, seed: int, folder: Path) -> None:
    """Writes one of them, with weights of a seed and a tokenizer of single letters."""
    fields = FOURTH_MODELS[name]
    shape = {own: size for own, size in _SHAPE.items() if "n_embd" not in fields or own not in _RENAMED}
    with torch.random.fork_rng():
        torch.manual_seed(keyed.key("fourth", name, seed) & (2**31 - 1))
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**shape, **fields}))
        _draw(model, 1 / math.sqrt(shape.get("hidden_size", 1)) if name in _SCALED else 1.0)
    model.save_pretrained(folder)
    letters = dict(enumerate(_letters()))
    tokenizer = Tokenizer(BPE({letter: token for token, letter in letters.items()}, []))
    tokenizer.decoder = Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))


_RENAMED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
"""What older configurations call otherwise."""


def _letters() -> list[str]:
    letters = [chr(0x4E00 + token) for token in range(VOCABULARY)]
    letters[_FIRST_TWIN : _FIRST_TWIN + len(TWINS)] = TWINS
    for place, letter in enumerate(_PLAIN):
        if letter not in letters:
            letters[_FIRST_PLAIN + place] = letter
    return letters


@torch.no_grad()
def _draw(model: PreTrainedModel, embedded: float) -> None:
    """Columns of different lengths, and twins that are alike; layers that add less than they read."""
    for name, tensor in model.named_parameters():
        if name.endswith(_KEPT):
            continue
        if name.endswith("A_log"):
            tensor -= _SLOWER
        elif name.endswith(".D"):
            tensor *= _SKIPPED
        elif tensor.ndim == 1:
            tensor += 0.2 * torch.randn_like(tensor)
        else:
            tensor.normal_().mul_((torch.rand(tensor.shape[-1]) + 0.5) * _size(name, tensor, embedded))
        if len(tensor) == VOCABULARY:
            _make_twins(tensor)


def _size(name: str, tensor: Tensor, embedded: float) -> float:
    if len(tensor) == VOCABULARY:
        return _SPREAD / math.sqrt(tensor.shape[-1]) if name.endswith("lm_head.weight") else embedded
    return (0.6 if name.endswith((*_OUT, *_OUT_OLD)) else 1.0) / math.sqrt(tensor.shape[-1])


def _make_twins(rows_VD: Tensor) -> None:
    letters = _letters()
    for place, letter in enumerate(_PLAIN):
        twin = rows_VD[_FIRST_TWIN + place].clone()
        rows_VD[_FIRST_TWIN + place] = 0.99 * rows_VD[letters.index(letter)] + 0.1 * twin
