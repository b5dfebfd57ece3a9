"""Loads models from folders: always fp32 masters, always Lockstep's attention."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from lockstep.core import keyed
from lockstep.core.errors import first_line
from lockstep.models import attention
from lockstep.models.families.known import find_nearest, is_known
from lockstep.models.folder import (
    ModelError,
    build_skeleton,
    config_reason,
    read_config,
    require_usable,
)
from lockstep.models.routers import keep_in_fp32
from lockstep.models.weight_files import check_weights, require_finite


def load_causal_lm(folder: str | os.PathLike[str]) -> PreTrainedModel:
    """Loads a Hugging Face folder as a causal language model.

    Raises:
        ModelError: If the folder cannot be used.
    """
    check_weights(folder, build_skeleton(read_config(folder), str(folder)))
    return _load_model(folder)


def load_backbone(folder: str | os.PathLike[str]) -> PreTrainedModel:
    """Loads a Hugging Face folder, including a reward model's, without its head.

    Raises:
        ModelError: If the folder cannot be used.
    """
    check_weights(
        folder, build_skeleton(read_config(folder, headless=True), str(folder)), headless=True
    )
    with _silence_head_warnings():
        backbone = _load_model(folder).base_model
    assert isinstance(backbone, PreTrainedModel), (
        "a causal language model of transformers has its own backbone"
    )
    return backbone


def _load_model(folder: str | os.PathLike[str]) -> PreTrainedModel:
    """Loads the model, after checking the folder against its configuration."""
    require_finite(folder)
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation=attention.NAME,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
        )
    except (MemoryError, torch.OutOfMemoryError):
        raise  # not the folder's fault; a rerun may find more memory
    except Exception as error:  # transformers raises anything for unexpected files
        raise ModelError(f"the model in {folder} cannot be loaded: {first_line(error)}") from error
    keep_in_fp32(model)
    return model


@contextmanager
def _silence_head_warnings() -> Iterator[None]:
    """Silences warnings of `transformers` about missing heads, which are expected here."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def build_causal_lm(
    config: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, seed: int
) -> PreTrainedModel:
    """Makes a model with random weights from the fields of a `transformers` configuration.

    Args:
        config: Fields, including `model_type`; the tokenizer gives the vocabulary and the stop
            token.
        tokenizer: The tokenizer the model is made for.
        seed: Seed of the weights.
    """
    built = scratch_config(config, tokenizer)
    build_skeleton(built, "model.scratch.config")  # for its error messages
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(keyed.hash_key("initial weights", seed) & (2**63 - 1))
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            built, attn_implementation=attention.NAME, dtype=torch.float32, trust_remote_code=False
        )
    keep_in_fp32(model)
    return model


def scratch_config(
    config: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase
) -> PreTrainedConfig:
    """The configuration of a new model.

    Raises:
        ModelError: If `transformers` does not support the model type, or the model lacks a field.
    """
    fields = {**config, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    model_type = fields.pop("model_type", None)
    if not is_known(model_type):
        close = find_nearest(model_type)
        hint = f"; did you mean {close}?" if close else ""
        raise ModelError(
            f"model.scratch.config: transformers does not support model_type {model_type!r}{hint}"
        )
    require_usable(fields, "model.scratch.config")
    try:
        known = AutoConfig.for_model(model_type)
        built = AutoConfig.for_model(model_type, **fields)
    except Exception as error:  # transformers raises anything for unexpected values
        raise ModelError(f"model.scratch.config: {config_reason(error)}") from error
    names = {*known.to_dict(), *known.attribute_map}
    for name in sorted(fields.keys() - names):
        close = get_close_matches(name, names, 1)
        if close:
            hint = f"did you mean {close[0]}?"
        else:
            hint = f"choose from: {', '.join(sorted(names))}"
        raise ModelError(f"model.scratch.config: {model_type} has no field {name}; {hint}")
    return built
