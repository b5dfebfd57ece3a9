"""What a Hugging Face folder holds, by its configuration and the headers of its weights; no weight is read.

Whatever is wrong with a folder is found here, and said in one sentence, before `transformers` opens it.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
)

from lockstep.errors import first_line
from lockstep.models import attention

_INDEX, _WHOLE = "model.safetensors.index.json", "model.safetensors"
_UNIT = "score.weight"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


CONFIG_ERRORS = (OSError, ValueError, KeyError, TypeError, StrictDataclassError)
"""What `transformers` raises for a configuration that it cannot use."""


class ModelError(ValueError):
    """A model folder that cannot be used, said in one sentence."""


def require_folder(folder: str | os.PathLike[str]) -> Path:
    """Raises ModelError where there is no such folder; names that look like those of a hub get a hint."""
    path = Path(folder)
    if path.is_dir():
        return path
    if path.exists():
        raise ModelError(f"{path} is a file; give the Hugging Face folder of a model")
    hint = ""
    if path.parts[0] == "runs":
        hint = ", or train that run first"
    elif _HUB_NAME.fullmatch(str(folder)):
        hint = f" (`hf download {folder} --local-dir {path.name}` fetches one of that name)"
    raise ModelError(
        f"there is no folder {path}, and Lockstep downloads nothing; give the folder of a model on this machine{hint}"
    )


def read_config(folder: str | os.PathLike[str], headless: bool = False) -> PreTrainedConfig:
    """The configuration of a causal language model; or only of its backbone, which a reward model has as well.

    Raises:
        ModelError: If there is none, it cannot be read, or it is of another kind of model.
    """
    path = require_folder(folder)
    fields = _json(path, "config.json", "it is no Hugging Face model folder; give the folder of a downloaded model")
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
    except CONFIG_ERRORS as error:
        kind = fields.get("model_type")
        known = kind is None or kind in CONFIG_MAPPING
        why = config_reason(error) if known else f"transformers {transformers.__version__} knows no model type {kind!r}"
        raise ModelError(f"{path}/config.json cannot be used: {why}") from error
    named = [str(name) for name in fields.get("architectures") or ()]
    causal = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    also = ("Model", "ForSequenceClassification") if headless else ("Model",)
    if named and not any(name in causal or name.endswith(also) for name in named):
        raise ModelError(f"{path} holds a {' or '.join(named)}, which is no causal language model; give one that is")
    return config


def require_classifier(folder: str | os.PathLike[str]) -> None:
    """Raises ModelError where `transformers` has no sequence classifier on the folder's backbone."""
    kind = read_config(folder, headless=True).model_type
    if kind not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES:
        raise ModelError(
            f"{folder}: transformers has no sequence classifier for {kind}, as which a reward model is written; begin "
            "with a model of another type"
        )


def skeleton(config: PreTrainedConfig, source: str) -> PreTrainedModel:
    """The model without memory for its weights: names, shapes and sizes.

    Raises:
        ModelError: If `transformers` cannot build it; begins with `source`.
    """
    fields = config.get_text_config().to_dict()
    heads, groups = fields.get("num_attention_heads"), fields.get("num_key_value_heads")
    if heads and groups and heads % groups:
        raise ModelError(f"{source}: num_attention_heads ({heads}) is no multiple of num_key_value_heads ({groups})")
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, attn_implementation=attention.NAME, dtype=torch.float32)
    except (*CONFIG_ERRORS, RuntimeError, AttributeError, ArithmeticError) as error:
        why = f"{type(error).__name__}: {config_reason(error)}"
        raise ModelError(f"{source}: transformers cannot build this model ({why})") from error


def check_weights(folder: str | os.PathLike[str], model: PreTrainedModel) -> None:
    """Compares the headers of a folder's weights with the model that its configuration asks for.

    Raises:
        ModelError: If weights are missing, pickled, damaged, or of another shape.
    """
    path = Path(folder)
    wanted = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    for file in weight_files(path):
        for name, shape in _shapes(file).items():
            if wanted.get(name, shape) != shape:
                raise ModelError(
                    f"{file}: {name} has shape {shape}, but config.json asks for {wanted[name]}; weights and "
                    "configuration are of two models"
                )


def require_rewards(folder: Path) -> None:
    """Raises ModelError where a folder's weights have no unit of one label, as reward models have."""
    units = [shapes[_UNIT] for file in weight_files(folder) if _UNIT in (shapes := _shapes(file))]
    labels = units[0][0] if units else 0
    if labels != 1:
        why = f"has {labels} labels" if labels else f"has no {_UNIT}"
        raise ModelError(
            f"{folder} holds no reward model: it {why}; `lockstep train` makes one with algorithm: reward_model"
        )


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder; raises ModelError where one is missing."""
    if (folder / _INDEX).is_file():
        index = _json(folder, _INDEX, "")
        files = sorted({folder / str(name) for name in index.get("weight_map", {}).values()})
    else:
        files = [folder / _WHOLE]
    missing = [file for file in files if not file.is_file()]
    if not missing and files:
        return files
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        raise ModelError(
            f"{folder} has its weights as pickles only, which may run code when they are opened; save the model again "
            "with transformers, which writes safetensors"
        )
    names = ", ".join(file.name for file in missing) or "those its index should name"
    raise ModelError(f"{folder} has no weights: {names} missing; copy or download the folder again")


def config_reason(error: BaseException) -> str:
    """What an error of a configuration says first; of a wrong field the cause tells more."""
    cause = error.__cause__ if isinstance(error, StrictDataclassError) else None
    return first_line(cause or error)


def _shapes(file: Path) -> dict[str, list[int]]:
    try:
        with safe_open(file, "pt") as opened:
            return {name: list(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file} is damaged ({first_line(error)}); copy or download it again") from error


def _json(folder: Path, name: str, missing: str) -> dict[str, Any]:
    file = folder / name
    if not file.is_file():
        raise ModelError(f"{folder} has no {name}: {missing}")
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{file} is no JSON ({error}); copy or download it again") from error
    if not isinstance(fields, dict):
        raise ModelError(f"{file} holds no JSON object; copy or download it again")
    return fields
