"""Hugging Face folders from a learner's stream of weights: what `transformers` and vLLM open."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lockstep.models.load import load_causal_lm


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes weights, configuration and tokenizer into `folder`, which appears whole or not at all."""
    aside = folder.with_name(f".{folder.name}-{os.getpid()}")
    model.save_pretrained(aside)
    tokenizer.save_pretrained(aside)
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
    save_model(model, tokenizer, folder)
