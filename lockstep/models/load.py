"""Models from folders: always fp32 weights (the masters), always Lockstep's attention."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lockstep import keyed
from lockstep.errors import first_line
from lockstep.models import attention
from lockstep.models.folder import CONFIG_ERRORS, ModelError, check_weights, config_reason, read_config, skeleton


def load_causal_lm(folder: str | os.PathLike[str]) -> PreTrainedModel:
    """Opens a Hugging Face folder as a causal language model.

    Raises:
        ModelError: If the folder cannot be used.
    """
    check_weights(folder, skeleton(read_config(folder), str(folder)))
    try:
        opened: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation=attention.NAME,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"the model in {folder} cannot be opened: {first_line(error)}") from error
    model, report = opened
    if report["missing_keys"]:
        names = ", ".join(sorted(report["missing_keys"]))
        raise ModelError(f"the model in {folder} has no weights for {names}; download it again, or name a causal model")
    return model


def load_backbone(folder: str | os.PathLike[str]) -> PreTrainedModel:
    """Opens the same folder without its vocabulary head, for a critic."""
    backbone = load_causal_lm(folder).base_model
    assert isinstance(backbone, PreTrainedModel), "a causal language model of transformers has a backbone of its own"
    return backbone


def build_causal_lm(config: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """Makes a model with random weights from the fields of a `transformers` configuration.

    Args:
        config: Fields, `model_type` among them; the vocabulary and the stop token are the tokenizer's.
        tokenizer: The tokenizer the model is made for.
        seed: Of the weights.
    """
    built = scratch_config(config, tokenizer)
    skeleton(built, "model.scratch.config")  # for its errors
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(keyed.key("initial weights", seed) & (2**63 - 1))
        return AutoModelForCausalLM.from_config(built, attn_implementation=attention.NAME, dtype=torch.float32)


def scratch_config(config: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    """The configuration of a new model.

    Raises:
        ModelError: If `transformers` knows no such model, or the model no such field.
    """
    fields = {**config, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    model_type = fields.pop("model_type", None)
    if model_type not in CONFIG_MAPPING:
        close = get_close_matches(str(model_type), CONFIG_MAPPING.keys(), 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ModelError(f"model.scratch.config: transformers knows no model_type {model_type!r}{hint}")
    try:
        known = AutoConfig.for_model(model_type)
        built = AutoConfig.for_model(model_type, **fields)
    except CONFIG_ERRORS as error:
        raise ModelError(f"model.scratch.config: {config_reason(error)}") from error
    names = {*known.to_dict(), *known.attribute_map}
    for name in sorted(fields.keys() - names):
        close = get_close_matches(name, names, 1)
        hint = f"did you mean {close[0]}?" if close else f"it has: {', '.join(sorted(names))}"
        raise ModelError(f"model.scratch.config: a {model_type} has no field {name}; {hint}")
    return built
