"""Layers whose linear maps come in bf16 compute what they compute in one process, in every family,
bit for bit.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig

from benchmarks.families import FAMILIES
from lockstep.core.batch import Batch
from lockstep.models.heads import LogitsHead
from lockstep.models.miniature import build_miniature
from lockstep.models.parallelize import find_vectors, list_layers

LENGTHS = (5, 1, 9, 13)
DAILY = ("qwen3", "gpt_neox", "deepseek_v3", "qwen3_5_text")
IN_FP32 = (
    "gpt2", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "phimoe", "minimax_m2", "gpt_oss", "mamba",
    "falcon_mamba", "mamba2", "qwen3_next", "granitemoehybrid", "jamba",
)  # fmt: skip
"""Families with products that are no linear maps, or with states, in each of their layers."""
REFUSED = ("stablelm", "nemotron", "falcon")
"""Families whose sequences cannot be packed."""


def compute(head: LogitsHead) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probabilities in bf16, and gradients."""
    vocabulary, total = int(head.lm.config.get_text_config().vocab_size), sum(LENGTHS)
    tokens = torch.randint(0, vocabulary, (total,), generator=torch.Generator().manual_seed(0))
    batch = Batch(tokens, torch.tensor(LENGTHS))
    head.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        logprob = head(batch.with_columns({"mask": batch.position > 0})).logprob
    assert logprob is not None
    logprob.sum().backward()
    return logprob.detach(), {
        name: p.grad.float() for name, p in head.named_parameters() if p.grad is not None
    }


def cast(layer: nn.Module, whole: set[nn.Parameter]) -> None:
    """Gives a layer the weights that ranks gather."""
    for parameter in set(layer.parameters()) - whole:
        parameter.grad = None
        parameter.data = parameter.data.to(torch.bfloat16)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=() if name in DAILY else pytest.mark.proof)
        for name in FAMILIES
        if name not in REFUSED
    ],
)
def test_linear_weights_cast_to_bf16_keep_logprob_and_gradient_bits(family: str) -> None:
    lm = build_miniature(AutoConfig.for_model(family, **FAMILIES[family]))
    head = LogitsHead(lm)
    expected, gradients = compute(head)
    narrow = [
        (layer, whole) for layer in list_layers(lm) if (whole := find_vectors(layer)) is not None
    ]
    assert bool(narrow) != (family in IN_FP32)
    for layer, whole in narrow:
        cast(layer, whole)
    logprob, found = compute(head)
    assert torch.equal(logprob, expected)
    assert found.keys() == gradients.keys()
    assert all(torch.equal(found[name], gradients[name]) for name in found)
