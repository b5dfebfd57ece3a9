"""Hugging Face folders from a learner's stream of weights: what `transformers` and vLLM open."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from lockstep.models.load import load_causal_lm


def save_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, generation_config: Path | None = None
) -> None:
    """Writes weights, configuration and tokenizer into `folder`, which appears whole or not at all.

    Args:
        model: What to write.
        tokenizer: Goes along.
        folder: Where to; must not exist.
        generation_config: A file to copy as it is: those of published models do not always pass `transformers`' checks.
    """
    aside = folder.with_name(f".{folder.name}-aside")
    shutil.rmtree(aside, ignore_errors=True)
    if generation_config is not None:
        model.generation_config = GenerationConfig()
    model.save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    if generation_config is not None:
        shutil.copy(generation_config, aside / generation_config.name)
    os.rename(aside, folder)


def export(
    source: str, weights: Iterable[tuple[str, Tensor]], tokenizer: PreTrainedTokenizerBase, folder: Path
) -> None:
    """Writes the model of folder `source` with other weights.

    Args:
        source: The folder the learner's model was loaded from; gives everything but the weights.
        weights: The learner's stream, canonical names.
        tokenizer: Goes along.
        folder: Where to; must not exist.
    """
    model = load_causal_lm(source)
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in weights:
            own[name].copy_(tensor)
    generation_config = Path(source) / "generation_config.json"
    save_model(model, tokenizer, folder, generation_config if generation_config.is_file() else None)
