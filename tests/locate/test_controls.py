"""Programs that compute the same in other ways: `locate` finds no place, whatever the type, kernel
and batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from lockstep_doctor.examine import examine
from lockstep_doctor.modules import ModuleTap

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}
BF16, FP32 = torch.bfloat16, torch.float32
Read = Callable[[nn.Module, Tensor], Tensor]
REQUESTS = [torch.arange(24) * step % 97 for step in (7, 11, 23)]


@cache
def weights(family: str) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = build(family, "eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.15 * torch.randn_like(parameter) + float(parameter.ndim == 1))
    return model.state_dict()


def build(family: str, kernel: str) -> Any:
    usual = AutoConfig.for_model(family)
    sizes = {name: size for name, size in SIZES.items() if hasattr(usual, name)}
    config = AutoConfig.for_model(family, **sizes, pad_token_id=None)
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation=kernel)
    if hasattr(usual, "num_experts"):
        model.set_experts_implementation("eager")
    return model.eval()


def read_in_batch(model: nn.Module, tokens_T: Tensor) -> Tensor:
    """The sequence beside a longer one and a shorter one, padded."""
    rows = [tokens_T, tokens_T.repeat(2)[: tokens_T.numel() + 5], tokens_T[:-3] + 1]
    tokens = nn.utils.rnn.pad_sequence([row % 97 for row in rows], batch_first=True)
    mask = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    return model(input_ids=tokens, attention_mask=mask, use_cache=False).logits[
        0, : tokens_T.numel()
    ]


def tap(
    family: str, kernel: str, dtype: torch.dtype, name: str, read: Read | None = None
) -> ModuleTap:
    model = build(family, kernel)
    model.load_state_dict(weights(family))
    return ModuleTap(model if read is read_by_autocast else model.to(dtype), name, read=read)


def read_by_autocast(model: nn.Module, tokens_T: Tensor) -> Tensor:
    """With weights in fp32 and products in bf16."""
    with torch.autocast("cpu", BF16):
        return model(input_ids=tokens_T[None], use_cache=False).logits[0]


KERNELS = {"llama": ("eager", "sdpa"), "qwen3_moe": ("eager", "sdpa"), "gemma2": ("eager",)}
"""Gemma 2's logits of attention are capped by the eager kernel alone."""
TYPES = ((FP32, FP32), (BF16, BF16), (FP32, BF16))
CONTROLS = [
    (family, kernel, types, read)
    for family, kernels in KERNELS.items()
    for kernel, types, read in product(kernels, TYPES, (None, read_in_batch))
] + [(family, "eager", (BF16, BF16), read_by_autocast) for family in KERNELS]


@pytest.mark.parametrize(("family", "kernel", "types", "read"), CONTROLS)
def test_locate_finds_no_fault_in_equivalent_programs(
    family: str, kernel: str, types: tuple[torch.dtype, torch.dtype], read: Read | None
) -> None:
    reference, other = (
        tap(family, "eager", types[0], "one"),
        tap(family, kernel, types[1], "other", read),
    )
    witness, rounded = (
        tap(family, "eager", torch.float64, "float64"),
        [tap(family, "eager", x, "cast") for x in types],
    )
    found = examine(reference, other, REQUESTS, witness, rounded)
    assert found.agrees
    assert not found.location.places
