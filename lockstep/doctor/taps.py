"""Taps of `transformers` and of the torch learner, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from lockstep.batch import Batch
from lockstep.models import attention
from lockstep.models.heads import inputs
from lockstep_doctor import ModuleTap
from lockstep_doctor.engines import EngineOptions

_HF = """from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained({folder!r}, dtype={dtype}).eval()
def read(tokens):
    return model(input_ids=tokens[None], use_cache=False).logits[0]"""

_TORCH = """from lockstep.doctor.taps import load_torch, read_torch
model = load_torch({folder!r}, {dtype})
def read(tokens):
    return read_torch(model, tokens)"""


@contextmanager
def open_hf(folder: Path, options: EngineOptions) -> Iterator[ModuleTap]:
    """Implements `OpenTap`."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=options.dtype).to(options.device).eval()
    yield ModuleTap(model, "hf", _HF.format(folder=str(folder.resolve()), dtype=options.dtype))


@contextmanager
def open_torch(folder: Path, options: EngineOptions) -> Iterator[ModuleTap]:
    """Implements `OpenTap`."""
    model = load_torch(str(folder), options.dtype).to(options.device)
    yield ModuleTap(
        model, "torch", _TORCH.format(folder=str(folder.resolve()), dtype=options.dtype), read=read_torch
    )


def load_torch(folder: str, dtype: torch.dtype) -> nn.Module:
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention.NAME
    ).eval()
    model.lockstep_dtype = dtype
    return model


def read_torch(model: nn.Module, tokens_T: Tensor) -> Tensor:
    one = Batch(tokens_T, torch.tensor([tokens_T.numel()]))
    with torch.autocast("cpu", torch.bfloat16, enabled=model.lockstep_dtype == torch.bfloat16):
        return model(**inputs(one)).logits[0]
