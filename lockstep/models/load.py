"""Models from folders: always fp32 weights (the masters), always Lockstep's attention."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from lockstep import keyed
from lockstep.models import attention

transformers_logging.disable_progress_bar()


class ModelError(ValueError):
    """A model folder that cannot be used, said in one sentence."""


def load_causal_lm(folder: str | os.PathLike[str]) -> PreTrainedModel:
    """Opens a Hugging Face folder as a causal language model."""
    if not (Path(folder) / "config.json").is_file():
        raise ModelError(
            f"{folder} is no Hugging Face model folder: it has no config.json; give the folder of a downloaded model"
        )
    try:
        opened: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation=attention.NAME,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ModelError(f"the model in {folder} cannot be opened: {error}") from error
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
    fields = {**config, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    model_type = fields.pop("model_type", None)
    try:
        built = AutoConfig.for_model(model_type, **fields)
    except (ValueError, TypeError) as error:
        raise ModelError(f"model.scratch.config: {error}") from error
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(keyed.key("initial weights", seed) & (2**63 - 1))
        return AutoModelForCausalLM.from_config(built, attn_implementation=attention.NAME, dtype=torch.float32)
