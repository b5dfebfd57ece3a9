"""Hugging Face folders, which `transformers` and vLLM open: a frame (all but weights) and weights by canonical name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

_FRAME = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
_OF_WEIGHTS = ".index.json"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes weights, configuration and tokenizer into `folder`, which appears whole or not at all; must not exist."""
    aside = _aside(folder)
    model.save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    _appear(aside, folder)


def copy_frame(source: Path, folder: Path) -> None:
    """Copies configuration, tokenizer, chat template and generation settings, byte for byte, once."""
    if folder.exists():
        return
    aside = _aside(folder)
    aside.mkdir(parents=True)
    for path in _frame(source):
        shutil.copyfile(path, aside / path.name)
    os.rename(aside, folder)


def assemble(
    frame: Path, weights: Mapping[str, Tensor], folder: Path, dtype: Literal["fp32", "bf16"], card: str
) -> None:
    """Writes the folder of a model, whole or not at all.

    Args:
        frame: A folder that gives everything but the weights.
        weights: By canonical name.
        folder: Where to; must not exist.
        dtype: Of the weights that are written.
        card: The README.md.
    """
    config = AutoConfig.from_pretrained(frame)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype])
    model.load_state_dict({name: w.to(DTYPES[dtype]) for name, w in weights.items()}, strict=False, assign=True)
    model.tie_weights()
    aside = _aside(folder)
    model.save_pretrained(aside)
    # Published generation settings do not always pass `transformers`' own checks, so they go along as they are.
    for path in _frame(frame):
        if path.name != "config.json":
            shutil.copyfile(path, aside / path.name)
    (aside / "README.md").write_text(card, encoding="utf-8")
    _appear(aside, folder)


def _frame(source: Path) -> list[Path]:
    found = {path for pattern in _FRAME for path in source.glob(pattern)}
    return sorted(path for path in found if not path.name.endswith(_OF_WEIGHTS))


def _aside(folder: Path) -> Path:
    aside = folder.with_name(f".{folder.name}-aside")
    shutil.rmtree(aside, ignore_errors=True)
    return aside


def _appear(aside: Path, folder: Path) -> None:
    """Gives a folder that is whole its name, and its weights the mode of any file: safetensors makes them private."""
    for path in aside.glob("*.safetensors"):
        path.chmod(aside.stat().st_mode & 0o666)
    os.rename(aside, folder)
