"""Configurations of Hugging Face folders; `lockstep.models.weight_files` reads the weights.

Both check a folder before `transformers` opens it, and report a fault in one sentence.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicCache, LinearAttentionCacheLayerMixin
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from lockstep.core.errors import InputError, first_line
from lockstep.models import attention
from lockstep.models.config_values import find_fault
from lockstep.models.families.known import has_classifier, is_known
from lockstep.models.families.own_code import is_own, register_own
from lockstep.models.routers import keep_in_fp32
from lockstep.system import lfs

_CONTEXT = "max_position_embeddings"
_ADAPTER = "adapter_config.json"
_HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")


CONFIG_ERRORS = (OSError, ValueError, KeyError, TypeError, StrictDataclassError)
"""Errors that `transformers` raises for a configuration that it cannot use."""


class ModelError(InputError):
    """The model folder cannot be used; the message is one sentence."""


def require_folder(folder: str | os.PathLike[str]) -> Path:
    """Raises ModelError if the folder does not exist, with a hint for hub-like names."""
    path = Path(folder)
    if path.is_dir():
        for file in sorted(path.glob("*")):
            if lfs.is_pointer(file):
                raise ModelError(f"{file} is only a Git LFS pointer; run `git lfs pull` in {path}")
        return path
    if path.exists():
        raise ModelError(f"{path} is a file; use the Hugging Face folder of a model")
    hint = ""
    if path.parts[0] == "runs":
        hint = ", or train that run first"
    elif _HUB_NAME.fullmatch(str(folder)):
        hint = f", or hf:{folder} for the model of that name on the hub"
    elif not path.is_absolute():
        hint = f"; relative paths start in {Path.cwd()}"
    raise ModelError(
        f"folder {path} does not exist; use the folder of a model on this machine{hint}"
    )


def read_config(folder: str | os.PathLike[str], headless: bool = False) -> PreTrainedConfig:
    """The configuration of a causal language model, or of its backbone only (for reward models).

    Raises:
        ModelError: If it is missing, unreadable, or of a different kind of model.
    """
    path = require_folder(folder)
    if (path / _ADAPTER).is_file():
        raise ModelError(
            f"{path} holds adapters ({_ADAPTER}); merge them into their model with peft and use "
            "the result"
        )
    fields = read_fields(path)
    require_usable(fields, f"{path}/config.json")
    register_own(path, fields)
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises anything for unexpected values
        kind = fields.get("model_type")
        if kind is None:
            reason = "model_type is missing"
        elif is_known(kind):
            reason = config_reason(error)
        else:
            version = transformers.__version__
            reason = f"transformers {version} does not support the model type {kind!r}"
        raise ModelError(f"{path}/config.json cannot be used: {reason}") from error
    named = fields.get("architectures") or []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise ModelError(f"{path}/config.json: architectures must be a list of names; correct it")
    causal = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    also = ("Model", "ForSequenceClassification") if headless else ("Model",)
    if (
        named
        and not is_own(config.model_type)
        and not any(name in causal or name.endswith(also) for name in named)
    ):
        raise ModelError(
            f"{path} holds a {' or '.join(named)}, which is not a causal language model; use one "
            "that is"
        )
    return config


def read_fields(folder: Path) -> dict[str, Any]:
    """The fields of a folder's config.json; raises as `read_json`."""
    final = folder / "final"  # of a run
    model = final if final.is_dir() else "the folder of a downloaded model"
    run = folder.parent.parent
    if (run / "recipe.yaml").is_file():
        step = folder.name.removeprefix("step_").lstrip("0")
        model = f"what `lockstep export {run} MODEL --checkpoint {step}` writes"
    return read_json(folder, "config.json", f"not a Hugging Face model folder; use {model}")


def refuse_own_code(folder: str, option: str, instead: str) -> None:
    """Raises ModelError if a model needs code from its folder, which other engines do not run."""
    kind = read_config(folder).model_type
    if is_own(kind):
        raise ModelError(
            f"{option} does not run a model's own code, and {folder} computes a {kind!r} by it; "
            f"{instead}"
        )


def require_usable(fields: Mapping[str, Any], source: str) -> None:
    """Raises ModelError for quantized weights and impossible values in a configuration.

    Args:
        fields: Fields of the configuration.
        source: Path of the configuration; the message begins with it.
    """
    quantized = fields.get("quantization_config")
    if quantized:
        if isinstance(quantized, dict):
            method = quantized.get("quant_method")
        else:
            method = None
        raise ModelError(
            f"{source}: its weights are quantized ({method or 'quantization_config'}), but "
            "training needs fp32, bf16 or fp16; use the original model"
        )
    fault = find_fault(fields)
    if fault is not None:
        raise ModelError(f"{source}: {fault}")


def require_classifier(folder: str | os.PathLike[str]) -> None:
    """Raises ModelError if `transformers` has no sequence classifier for the folder's backbone."""
    kind = read_config(folder, headless=True).model_type
    if not has_classifier(kind):
        raise ModelError(
            f"{folder}: transformers has no sequence classifier for {kind}, which a reward model "
            "needs; use a model of a different type"
        )


def build_skeleton(config: PreTrainedConfig, source: str) -> PreTrainedModel:
    """Builds the model on the meta device: names, shapes and sizes without weights.

    Raises:
        ModelError: If `transformers` cannot build it; begins with `source`.
    """
    fields = config.get_text_config().to_dict()
    heads = fields.get("num_attention_heads")
    groups = fields.get("num_key_value_heads")
    if heads and groups and heads % groups:
        raise ModelError(
            f"{source}: num_attention_heads ({heads}) is not a multiple of num_key_value_heads "
            f"({groups})"
        )
    try:
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                config,
                attn_implementation=attention.NAME,
                dtype=torch.float32,
                trust_remote_code=False,
            )
    except Exception as error:  # transformers raises anything for unexpected values
        if error.args == (attention.NAME,):
            raise ModelError(
                f"{source}: {config.model_type} uses its own attention classes, which Lockstep "
                "cannot replace, so sequences cannot be packed; use a model of a different family"
            ) from error
        why = f"{type(error).__name__}: {config_reason(error)}"
        raise ModelError(f"{source}: transformers cannot construct this model ({why})") from error
    keep_in_fp32(model)
    return model


def head_size(config: PreTrainedConfig) -> int:
    """Size of an attention head."""
    return int(config.to_dict().get("head_dim") or config.hidden_size // config.num_attention_heads)


def count_keys(text: PreTrainedConfig) -> int:
    """Number of elements of one token's keys in one layer, by the text model's configuration."""
    return int(text.to_dict().get("num_key_value_heads") or text.num_attention_heads) * head_size(
        text
    )


def count_cache_numbers(config: PreTrainedConfig) -> int:
    """Number of elements of one token's keys and values in all layers."""
    text = config.get_text_config()
    return 2 * int(text.num_hidden_layers) * count_keys(text)


def find_context_length(config: PreTrainedConfig) -> int:
    """The longest sequence in which a position does not depend on the rest of the batch.

    With rope type longrope, all positions of a batch change once one sequence is longer than the
    model's original context, so such models return their original context.

    Raises:
        ModelError: If the configuration does not limit the length of sequences.
    """
    fields = config.get_text_config().to_dict()
    longest = fields.get(config.get_text_config().attribute_map.get(_CONTEXT, _CONTEXT))
    if longest is None:
        raise ModelError(
            f"{config.name_or_path}/config.json lacks {_CONTEXT}; add the longest sequence length"
        )
    rope = fields.get("rope_parameters") or {}
    parts = [rope, *(part for part in rope.values() if isinstance(part, dict))]
    for part in parts:
        if part.get("rope_type") == "longrope":
            longest = min(longest, part["original_max_position_embeddings"])
    return int(longest)


def carries_state(config: PreTrainedConfig) -> bool:
    """True if layers carry a recurrent state: Mamba, delta nets, short convolutions.

    Decided by the cache with which `transformers` decodes such a model.
    """
    return any(
        isinstance(layer, LinearAttentionCacheLayerMixin)
        for layer in DynamicCache(config=config).layers
    )


def config_reason(error: BaseException) -> str:
    """The first line of a configuration's error, or of its cause if a field is invalid."""
    cause = error.__cause__ if isinstance(error, StrictDataclassError) else None
    return first_line(cause or error)


def read_json(folder: Path, name: str, missing: str) -> dict[str, Any]:
    """Reads a JSON object in a folder; raises ModelError, with `missing` for a missing file."""
    file = folder / name
    if not file.is_file():
        raise ModelError(f"{folder} has no {name}: {missing}")
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, RecursionError):
            why = "nested too deeply"
        else:
            why = error
        raise ModelError(f"{file} is invalid JSON ({why}); copy or download it again") from error
    if not isinstance(fields, dict):
        raise ModelError(f"{file} is not a JSON object; copy or download it again")
    return fields
