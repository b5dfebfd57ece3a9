"""Writes Hugging Face model folders from a frame (all but the weights) and named weights."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lockstep.config import LoRA
from lockstep.core.errors import InputError, RunError, first_line
from lockstep.models.families.own_code import is_own, list_own_files, register_own
from lockstep.models.folder import read_fields
from lockstep.models.lora import build_adapter_config, name_in_file
from lockstep.models.tokenizer import is_generic
from lockstep.system.disk import name_disk_errors, sync_path, sync_tree

_FRAME = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
_OF_WEIGHTS = ".index.json"
FileType = Literal["fp32", "bf16"]
"""Types for written weights."""
_TYPES: Mapping[FileType, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes weights, configuration and tokenizer into a new `folder`, atomically."""
    with _write_atomically(folder) as aside:
        model.save_pretrained(aside)
        try:
            tokenizer.save_pretrained(aside)
        except Exception as error:  # tokenizers raises no OSError for disk errors
            number = re.search(r"\(os error (\d+)\)", str(error))
            if number is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(aside)) from error


def copy_frame(source: Path, folder: Path) -> None:
    """Copies all files but the weights, byte for byte, unless `folder` exists.

    These are configuration, tokenizer, chat template and generation settings.
    """
    if folder.exists():
        return
    with _write_atomically(folder) as aside:
        for path in _list_frame_files(source):
            with name_disk_errors(aside / path.name):
                shutil.copyfile(path, aside / path.name)


def assemble_folder(
    frame: Path,
    weights: Mapping[str, Tensor],
    folder: Path,
    dtype: FileType,
    card: str,
    reward_model: bool = False,
    adapter: Callable[[Path], None] | None = None,
) -> None:
    """Writes the folder of a model, atomically.

    Args:
        frame: Folder with everything but the weights.
        weights: Weights by canonical name.
        folder: Target folder; must not exist.
        dtype: Type of the written weights.
        card: Text of the model card, README.md.
        reward_model: Write a reward model: a sequence classifier with one label.
        adapter: Writes the folder of the adapters that were merged into the weights; None: no
            adapters.
    """
    register_own(frame, read_fields(frame))
    config = AutoConfig.from_pretrained(
        frame, trust_remote_code=False, **({"num_labels": 1} if reward_model else {})
    )
    if reward_model:
        kind = AutoModelForSequenceClassification
    else:
        kind = AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(config, dtype=_TYPES[dtype], trust_remote_code=False)
    try:
        model.load_state_dict(
            {name: w.to(_TYPES[dtype]) for name, w in weights.items()}, strict=False, assign=True
        )
    except RuntimeError as error:  # its message has a line for each error
        wrong = str(error).split("\n")[1:2] or [first_line(error)]
        raise InputError(
            f"{folder} cannot be written: the policy's weights do not match the shapes in "
            f"{frame}/config.json ({wrong[0].strip()}); use a different checkpoint"
        ) from error
    model.tie_weights()
    absent = sorted(name for name, tensor in model.state_dict().items() if tensor.is_meta)
    if absent:
        raise InputError(
            f"{folder} cannot be written: a {config.model_type} has {', '.join(absent[:3])}, "
            f"which the checkpoint lacks ({len(absent)} tensors); train it again with this "
            "version of Lockstep"
        )
    with _write_atomically(folder) as aside:
        model.save_pretrained(aside)
        # Published generation settings do not always pass the checks of `transformers`, so they are
        # copied as they are.
        for path in _list_frame_files(frame):
            if path.name != "config.json":
                shutil.copyfile(path, aside / path.name)
        opening = _describe_opening(aside, kind.__name__, is_own(config.model_type))
        (aside / "README.md").write_text(f"{card}\n{opening}", encoding="utf-8")
        if adapter is not None:
            adapter(aside / "adapter")


def save_adapter(
    tensors: Mapping[str, Tensor],
    network: PreTrainedModel,
    section: LoRA,
    base: Path,
    dtype: FileType,
    reward_model: bool,
    folder: Path,
) -> None:
    """Writes adapters as peft does, atomically, for its `PeftModel.from_pretrained`.

    Args:
        tensors: Tensors by their names in a model's files, including a reward model's value unit.
        network: The network that they adapt; it may be on the meta device.
        section: Their options in the recipe.
        base: The folder of the model that they adapt.
        dtype: Type of the written tensors.
        reward_model: Write a reward model's adapters: a sequence classifier with one label.
        folder: Target folder; must not exist.
    """
    kind = "SEQ_CLS" if reward_model else "CAUSAL_LM"
    whole = ["score"] if reward_model else None
    config = build_adapter_config(
        network, section, task_type=kind, modules_to_save=whole, inference_mode=True
    )
    config.base_model_name_or_path = str(base)
    named = {name_in_file(name): tensor.to(_TYPES[dtype]) for name, tensor in tensors.items()}
    with _write_atomically(folder) as aside:
        config.save_pretrained(str(aside))
        save_file(named, aside / "adapter_model.safetensors", metadata={"format": "pt"})


def _describe_opening(folder: Path, kind: str, own_code: bool) -> str:
    """The paragraph of a model card that explains how to load the model."""
    opener = "PreTrainedTokenizerFast" if is_generic(folder) else "AutoTokenizer"
    remote = ", trust_remote_code=True" if own_code else ""  # the folder has the code
    return f"""## How to open it
```python
from transformers import {kind}, {opener}

model = {kind}.from_pretrained(FOLDER{remote})
tokenizer = {opener}.from_pretrained(FOLDER)
```
"""


def _list_frame_files(source: Path) -> list[Path]:
    found = set(list_own_files(source, read_fields(source)))
    for pattern in _FRAME:
        found.update(source.glob(pattern))
    return sorted(path for path in found if not path.name.endswith(_OF_WEIGHTS))


@contextmanager
def _write_atomically(folder: Path) -> Iterator[Path]:
    """A temporary folder for the block to fill; renamed to `folder` once all bytes are on disk.

    Raises:
        RunError: If the disk is full or fails.
    """
    aside = folder.with_name(f".{folder.name}-aside")
    shutil.rmtree(aside, ignore_errors=True)
    # fails if an old one could not be removed; its files must not end up in the new one
    aside.mkdir(parents=True)
    try:
        yield aside
    except SafetensorError as error:  # disk error
        raise RunError(
            f"{folder} cannot be written ({first_line(error)}); check the disk, or free space"
        ) from error
    for path in aside.glob("*.safetensors"):
        path.chmod(aside.stat().st_mode & 0o666)  # safetensors creates private files
    sync_tree(aside)
    os.rename(aside, folder)
    sync_path(folder.parent)
