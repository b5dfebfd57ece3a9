"""The models that faults are put into: small, random, of many architectures; and prompts for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarks.doctor_faults import model_tokens as tokens
from benchmarks.doctor_faults import model_weights as weights
from lockstep import keyed
from lockstep.models.folder import read_config
from lockstep.types import Request

Fields = dict[str, Any]
HEADS = 4
"""Of the sixth kind of model."""


def _shape(
    vocabulary: int, hidden: int, inner: int, layers: int, heads: int, size: int, context: int, **more: Any
) -> Fields:
    fields: Fields = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    fields |= {"vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers}
    fields |= {"num_attention_heads": heads, "num_key_value_heads": 2, "head_dim": size}
    return {**fields, "max_position_embeddings": context, **more}


def _plain(*names: str) -> dict[str, Fields]:
    """Models whose names are their types, with no other fields."""
    return {name: {"model_type": name} for name in names}


_UNTIED: Fields = {"tie_word_embeddings": False}
_ALL_FULL: Fields = {"layer_types": ["full_attention"] * 4}
_IN_TURN: Fields = {"layer_types": ["sliding_attention", "full_attention"] * 2}
_GEMMA: Fields = {"query_pre_attn_scalar": 16, "sliding_window": 512, **_UNTIED}
_GEMMA2: Fields = {**_GEMMA, "attn_logit_softcapping": None, "final_logit_softcapping": 30.0}
_STATES: Fields = {"num_heads": 12, "head_dim": 16, "state_size": 16, "n_groups": 1, "chunk_size": 32}
_FIRST: dict[str, Fields] = {
    **_plain("qwen3"),
    "llama": {"model_type": "llama", "rms_norm_eps": 1e-5},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "gemma2": {"model_type": "gemma2", **_GEMMA2},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 96},
    "mamba2": {"model_type": "mamba2", "num_hidden_layers": 2, **_STATES, **_UNTIED},
    "window": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1},
}
_DEEP: Fields = {"num_hidden_layers": 6, "hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 3}
_TWO: Fields = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
_SHARED: Fields = {"n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "use_qk_norm": True}
_SECOND: dict[str, Fields] = {
    "ernie": {"model_type": "ernie4_5", **_UNTIED},
    "gemma3": {"model_type": "gemma3_text", **_GEMMA, "final_logit_softcapping": 12.0},
    "gemma3, high cap": {"model_type": "gemma3_text", **_GEMMA, "final_logit_softcapping": 60.0},
    "glm": {"model_type": "glm4_moe", **_TWO, **_SHARED},
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
    "qwen3 moe": {"model_type": "qwen3_moe", **_TWO, "num_experts": 8, "norm_topk_prob": True},
    "smollm": {"model_type": "smollm3", "no_rope_layer_interval": 3, **_UNTIED},
    "starcoder": {"model_type": "starcoder2", **_UNTIED},
}
_LATENT3: Fields = {"kv_lora_rank": 24, "qk_rope_head_dim": 12, "qk_nope_head_dim": 12, "v_head_dim": 20}
_GROUPED: Fields = {"n_routed_experts": 16, "n_shared_experts": 1, "n_group": 8, "topk_group": 6} | {
    "routed_scaling_factor": 0.5, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "first_k_dense_replace": 1
}  # fmt: skip
_OLMOE: Fields = {"num_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 48, "num_hidden_layers": 3}
_THIRD: dict[str, Fields] = {
    **_plain("arcee", "glm4", "helium"),
    "cohere": {"model_type": "cohere2", "sliding_window": 48, "logit_scale": 1.0, **_UNTIED},
    "deepseek": {"model_type": "deepseek_v3", "q_lora_rank": None, **_LATENT3, **_GROUPED}
    | {"head_dim": 12, "num_key_value_heads": 4},
    "exaone": {"model_type": "exaone4", "sliding_window": None, **_ALL_FULL},
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "neox": {"model_type": "gpt_neox", **_UNTIED},
    "olmoe": {"model_type": "olmoe", **_OLMOE},
    "opt": {"model_type": "opt", "ffn_dim": 144, "word_embed_proj_dim": 80, **_UNTIED},
    "phi2": {"model_type": "phi"},
    "seed oss, many spare rows": {"model_type": "seed_oss"},
    "seed oss, few spare rows": {"model_type": "seed_oss"},
}
_EXPERTS4: Fields = {"num_experts_per_tok": 2, "moe_intermediate_size": 48, "num_hidden_layers": 3}
_LOCAL: Fields = {"num_local_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 3}
_MAMBA: Fields = {f"mamba_{name}": size for name, size in
                  (("n_heads", 8), ("d_head", 16), ("n_groups", 1), ("d_state", 16), ("chunk_size", 32))}  # fmt: skip
_YARN: Fields = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 2.0, "attention_factor": 1.0}
_LFM: Fields = {"layer_types": ["conv", "full_attention"] * 2, "block_auto_adjust_ff_dim": False}
_FOURTH: dict[str, Fields] = {
    **_plain("gemma", "nemotron", "persimmon"),
    "apertus": {"model_type": "apertus", "rope_parameters": {**_YARN, "original_max_position_embeddings": 128}},
    "bamba": {"model_type": "bamba", "attn_layer_indices": [1, 3], **_MAMBA},
    "codegen": {"model_type": "codegen", "rotary_dim": 8, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 256},
    "command r": {"model_type": "cohere", "logit_scale": 1.0},
    "dots": {"model_type": "dots1", "first_k_dense_replace": 4},
    "ernie moe": {"model_type": "ernie4_5_moe", "moe_num_experts": 8, "moe_k": 2, **_EXPERTS4},
    "gpt oss": {"model_type": "gpt_oss", "sliding_window": 48, **_LOCAL},
    "hunyuan moe": {"model_type": "hunyuan_v1_moe", "num_experts": 4, "moe_topk": [2] * 4},
    "jetmoe": {"model_type": "jetmoe", "num_local_experts": 4, "num_key_value_heads": 4, "kv_channels": 16},
    "lfm, long convolution": {"model_type": "lfm2", **_LFM, "conv_L_cache": 16},
    "lfm, short convolution": {"model_type": "lfm2", **_LFM, "conv_L_cache": 3},
    "minimax": {"model_type": "minimax", "layer_types": ["full_attention"] * 3, **_LOCAL},
    "ministral": {"model_type": "ministral", "sliding_window": 64},
    "nanochat": {"model_type": "nanochat", "final_logit_softcapping": 6.0},
    "olmo, first": {"model_type": "olmo"},
    "phi moe": {"model_type": "phimoe", **_LOCAL},
    "qwen2 moe": {"model_type": "qwen2_moe", "num_experts": 8, "shared_expert_intermediate_size": 32, **_EXPERTS4},
    "vaultgemma": {"model_type": "vaultgemma", "query_pre_attn_scalar": 16, "final_logit_softcapping": None},
}
_EXPERTS5: Fields = {"num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
_ROTARY: Fields = {"rope_type": "default", "rope_theta": 10_000.0}
_LATENT5: Fields = {"kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 10, "v_head_dim": 18}


def _two_bases(ratio: float) -> Fields:
    far = {**_ROTARY, "rope_theta": 10_000.0 * ratio}
    bases = {"rope_parameters": {"sliding_attention": _ROTARY, "full_attention": far}}
    return {"model_type": "laguna", "mlp_layer_types": ["dense"] * 4, **_IN_TURN, **bases}


_FIFTH: dict[str, Fields] = {
    **_plain("biogpt", "diffllama", "stablelm"),
    "afmoe": {"model_type": "afmoe", "num_dense_layers": 2, **_EXPERTS5},
    "bitnet, few bytes": {"model_type": "bitnet"},
    "bitnet, many bytes": {"model_type": "bitnet"},
    "cwm": {"model_type": "cwm", **_IN_TURN},
    "deepseek 2": {"model_type": "deepseek_v2", "q_lora_rank": None, **_LATENT5}
    | {"num_key_value_heads": 4, "head_dim": 8, "first_k_dense_replace": 4},
    "exaone moe": {"model_type": "exaone_moe", "mlp_layer_types": ["dense", "sparse"] * 2, **_EXPERTS5},
    "flex olmo": {"model_type": "flex_olmo", **_EXPERTS5, "intermediate_size": 48},
    "glm, first": {"model_type": "glm"},
    "granite moe": {"model_type": "granitemoe", **_EXPERTS5, "intermediate_size": 48},
    "granite moe, shared": {"model_type": "granitemoeshared", **_EXPERTS5, "shared_intermediate_size": 32},
    "hunyuan 3": {"model_type": "hy_v3", **_EXPERTS5, "tie_word_embeddings": True},
    "hyperclova": {"model_type": "hyperclovax"},
    "jais": {"model_type": "jais2"},
    "laguna, bases apart": _two_bases(50.0),
    "laguna, bases together": _two_bases(1.1),
    "mellum": {"model_type": "mellum", **_EXPERTS5},
    "minimax 2": {"model_type": "minimax_m2", **_EXPERTS5, "intermediate_size": 48, "rope_parameters": _ROTARY},
    "ministral 3": {"model_type": "ministral3"},
    "solar": {"model_type": "solar_open", "n_routed_experts": 8, **_EXPERTS5},
}
_EXPERTS6: Fields = {"num_experts": 8, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
_LATENT6: Fields = {"kv_lora_rank": 24, "q_lora_rank": 20, "num_key_value_heads": HEADS} | {
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 10, "v_head_dim": 14, "head_dim": 8
}  # fmt: skip
_LONGCAT: Fields = {"num_layers": 2, **_LATENT6, **_EXPERTS6, "moe_topk": 2, "zero_expert_num": 2}
_SIXTH: dict[str, Fields] = {
    **_plain("doge"),
    "bloom": {"model_type": "bloom", "n_layer": 4, "n_head": HEADS},
    "cohere2 moe": {"model_type": "cohere2_moe", **_EXPERTS6, "intermediate_size": 48, "logit_scale": 1.0},
    "ctrl": {"model_type": "ctrl", "n_embd": 56, "n_layer": 4, "n_head": HEADS, "n_positions": 288, "dff": 104},
    "gemma4": {"model_type": "gemma4_text", "global_head_dim": 14, **_ALL_FULL}
    | {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
    "glm moe, latent": {"model_type": "glm4_moe_lite", **_LATENT6, **_EXPERTS6},
    "granite, sinks": {"model_type": "granite_swa", **_ALL_FULL},
    "hrm": {"model_type": "hrm_text", "H_cycles": 1, "L_cycles": 2},
    "jamba": {"model_type": "jamba", **_EXPERTS6, "attn_layer_period": 1, "attn_layer_offset": 0},
    "lfm moe": {"model_type": "lfm2_moe", **_EXPERTS6, **_ALL_FULL, "num_dense_layers": 1, "use_expert_bias": True},
    "longcat": {"model_type": "longcat_flash", **_LONGCAT, "ffn_hidden_size": 104, "expert_ffn_hidden_size": 40},
    "mimo": {"model_type": "mimo_v2_flash", **_EXPERTS6, "v_head_dim": 14},
    "minicpm": {"model_type": "minicpm3", **_LATENT6},
    "qwen3 next": {"model_type": "qwen3_next", **_EXPERTS6, **_ALL_FULL, "shared_expert_intermediate_size": 32},
    "qwen3.5": {"model_type": "qwen3_5_text", **_ALL_FULL},
    "recurrent gemma": {"model_type": "recurrent_gemma", "lru_width": 56, "block_types": ["attention"]},
    "xglm": {"model_type": "xglm", "d_model": 56, "num_layers": 4, "attention_heads": HEADS, "ffn_dim": 104},
    "youtu": {"model_type": "youtu", **_LATENT6, "attention_bias": True},
}


@dataclass(frozen=True)
class _Drawn:
    """Models whose weights are drawn in one way.

    Attributes:
        key: First part of the key of their random numbers.
        shape: Fields that they share.
        models: Their other fields.
        draw: Draws the weights of a model, by its name.
        tokenizer: Made for a model's name and key.
    """

    key: tuple[str, ...]
    shape: Fields
    models: dict[str, Fields]
    draw: Callable[[PreTrainedModel, str], None]
    tokenizer: Callable[[str, int], Tokenizer]

    def write(self, name: str, seed: int, folder: Path) -> None:
        """Writes a model, with weights and a tokenizer of a seed."""
        key, fields = keyed.key(*self.key, name, seed), self.models[name]
        shape = {own: size for own, size in self.shape.items() if "n_embd" not in fields or own not in _RENAMED}
        with torch.random.fork_rng():
            torch.manual_seed(key & (2**31 - 1))
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**shape, **fields}))
            self.draw(model, name)
        model.save_pretrained(folder)
        self.tokenizer(name, key).save(str(folder / "tokenizer.json"))


_RENAMED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
"""What older configurations call otherwise."""
_TEXT: Fields = {"bos_token_id": 1, "eos_token_id": 2, **_UNTIED}
_ALL = (
    _Drawn((), _shape(512, 96, 192, 4, 6, 16, 512), _FIRST, weights.widen, tokens.pairs),
    # The key says what these models were when they were drawn first, so that they stay the same.
    _Drawn(("held out",), _shape(384, 64, 160, 3, 4, 16, 512), _SECOND, weights.draw_tails, tokens.bracketed),
    _Drawn(("third",), _shape(448, 80, 144, 4, 4, 20, 384), _THIRD, weights.draw_rows, tokens.spare),
    _Drawn(("fourth",), _shape(416, 64, 112, 4, 4, 16, 256, **_UNTIED), _FOURTH, weights.draw_twins, tokens.twinned),
    _Drawn(("fifth",), _shape(400, 72, 120, 4, 4, 18, 256, **_TEXT), _FIFTH, weights.draw_columns, tokens.byte_ends),
    _Drawn(("sixth",), _shape(320, 56, 104, 4, HEADS, 14, 288, **_UNTIED), _SIXTH, weights.draw_both, tokens.numbered),
)
_BY_NAME = {name: drawn for drawn in _ALL for name in drawn.models}
MODELS = tuple(_BY_NAME)
"""Their names, each once."""


class Ground:
    """Folders of the models, each written once, and prompts for them.

    Args:
        root: Where they are written.
        model: A folder that stands for "llama" instead of a random model.
        seed: Of weights and prompts.
    """

    def __init__(self, root: Path, model: str | None = None, seed: int = 0) -> None:
        self._root, self._model, self.seed = root, model, seed

    def folder(self, name: str) -> str:
        """The folder of one of the models."""
        if name == "llama" and self._model is not None:
            return self._model
        folder = self._root / f"{name.replace(',', '').replace(' ', '-')}-{self.seed}"
        if not folder.exists():
            _BY_NAME[name].write(name, self.seed, folder)
        return str(folder)

    def requests(self, name: str, count: int = 32) -> tuple[Request, ...]:
        """Prompts of random ids, from 8 to 64 tokens long."""
        vocabulary = int(read_config(self.folder(name)).get_text_config().vocab_size)
        return tuple(_request(vocabulary, ("prompt", name, self.seed, row)) for row in range(count))


def _request(vocabulary: int, parts: tuple[int | str, ...]) -> Request:
    draw = keyed.generator(*parts)
    length = int(torch.randint(8, 65, (), generator=draw))
    tokens = torch.randint(3, vocabulary, (length,), generator=draw)
    return Request(tuple(tokens.tolist()), keyed.key(*parts, "response"))
