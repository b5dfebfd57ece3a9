"""Megatron's own model, patched: log-probabilities without logits, over two tensor-parallel ranks
in two copies.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import pytest
import torch
from ranks import Layout, Ranks
from torch import Tensor

pytestmark = [pytest.mark.needs("megatron"), pytest.mark.usefixtures("megatron")]

VOCABULARY, LENGTH = 16, 8


R = TypeVar("R")
P = ParamSpec("P")


def quietly(function: Callable[P, R]) -> Callable[P, R]:
    """Megatron tells of everything that it could use and does not find."""

    @functools.wraps(function)
    def silent(*args: P.args, **keywords: P.kwargs) -> R:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*args, **keywords)

    return silent


def model(tied: bool) -> torch.nn.Module:
    """A GPTModel of this rank; all four ranks have to call this."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.attention import SelfAttentionSubmodules
    from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules

    from lockstep.learners.megatron.model import LayoutAttention
    from lockstep.learners.megatron.on_cpu import compute_on_cpu

    compute_on_cpu()
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    assert isinstance(spec.submodules, TransformerLayerSubmodules)
    attention = spec.submodules.self_attention.submodules
    assert isinstance(attention, SelfAttentionSubmodules)
    attention.core_attention = LayoutAttention
    config = TransformerConfig(
        num_layers=2, hidden_size=16, num_attention_heads=4, kv_channels=4, use_cpu_initialization=True,
        tensor_model_parallel_size=2, add_bias_linear=False, normalization="RMSNorm", hidden_dropout=0.0,
    )  # fmt: skip
    torch.manual_seed(torch.distributed.get_rank() % 2)
    return GPTModel(
        config,
        spec,
        VOCABULARY,
        32,
        share_embeddings_and_output_weights=tied,
        position_embedding_type="none",
    )


def gradients_of(gpt: torch.nn.Module) -> list[Tensor]:
    """Copies, one for each parameter."""
    parameters = list(gpt.parameters())
    found = [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
    assert len(found) == len(parameters)
    return found


@quietly
def scored(layout: Layout, tied: bool, chunk_size: int) -> tuple[Tensor, Tensor, float]:
    """Log-probabilities by the patched model, those of its logits, and how far gradients are
    apart.
    """
    from lockstep.core.batch import Batch
    from lockstep.models.attention import PackedLayout
    from lockstep_logprobs import linear_ce

    gpt = model(tied)
    tokens = torch.randint(VOCABULARY, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    given = (
        tokens,
        torch.arange(LENGTH)[None],
        PackedLayout.from_batch(Batch(tokens[0], torch.tensor([LENGTH]))),
    )
    linear_ce.patch_gpt_model_forward_for_linear_ce_fusion(chunk_size=3)
    linear_ce.patch_gpt_model_forward_for_linear_ce_fusion(chunk_size=chunk_size)
    found = gpt(*given, labels=tokens, return_logprobs_for_linear_ce_fusion=True)
    found.sum().backward()
    gradients = gradients_of(gpt)
    gpt.zero_grad()
    local = gpt(*given)[0]  # as ever, for it is not asked
    parts = [torch.empty_like(local) for _ in range(2)]
    torch.distributed.all_gather(parts, local.detach(), group=layout.tp_group)
    parts[layout.tp_rank] = local
    logprob = torch.cat(parts, -1).log_softmax(-1)[:-1].gather(-1, tokens[0, 1:, None])[:, 0]
    # Each rank's logits alone have a gradient here; Megatron's layers sum what comes back over
    # ranks.
    logprob.sum().backward()
    apart = [
        (one - other).abs().max() for one, other in zip(gradients, gradients_of(gpt), strict=True)
    ]
    return found.detach()[0], logprob.detach(), float(torch.stack(apart).max())


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("chunk_size", [4, 1024])
def test_megatron_linear_ce_logprobs_and_gradients_match_full_logits(
    ranks: Ranks, tied: bool, chunk_size: int
) -> None:
    for found, expected, apart in ranks.run(scored, tied, chunk_size, tp=2, cp=2):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0.0)
        assert apart < 1e-5
