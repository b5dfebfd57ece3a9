"""Routers that a model's own code computes in fp32 are computed in fp32 under autocast."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.deepseek_v3 import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.dots1 import Dots1Config
from transformers.models.dots1.modeling_dots1 import Dots1TopkRouter
from transformers.models.glm4_moe import Glm4MoeConfig
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter
from transformers.models.openai_privacy_filter.configuration_openai_privacy_filter import (
    OpenAIPrivacyFilterConfig,
)
from transformers.models.openai_privacy_filter.modeling_openai_privacy_filter import (
    OpenAIPrivacyFilterTopKRouter,
)

from lockstep.models.routers import keep_in_fp32

FP32 = [
    (DeepseekV3TopkRouter, DeepseekV3Config),
    (
        Dots1TopkRouter,
        partial(Dots1Config, n_routed_experts=8, num_experts_per_tok=2, n_group=1, topk_group=1),
    ),
    (Glm4MoeTopkRouter, Glm4MoeConfig),
    (OpenAIPrivacyFilterTopKRouter, OpenAIPrivacyFilterConfig),
]


def _logits(router: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    found = router(hidden)
    return found if isinstance(found, torch.Tensor) else found[0]


def _make(router: type[nn.Module], config: Callable[..., Any]) -> nn.Sequential:
    torch.manual_seed(0)
    made = router(config(hidden_size=16))
    for weight in made.parameters():
        nn.init.normal_(weight)
    return nn.Sequential(made)


@pytest.mark.parametrize(("router", "config"), FP32)
def test_fp32_router_ignores_autocast_and_its_copy_uses_its_own_weights(
    router: type[nn.Module], config: Callable[..., Any]
) -> None:
    model = _make(router, config)
    hidden = torch.randn(1, 5, 16)
    expected = _logits(model[0], hidden)
    keep_in_fp32(model)
    copied = deepcopy(model)
    with torch.no_grad():
        nn.init.zeros_(copied[0].get_parameter("weight"))
    with torch.autocast("cpu", torch.bfloat16):
        found = _logits(model[0], hidden)
        doubled = _logits(copied[0], hidden)
    assert torch.equal(found, expected)
    assert not torch.equal(doubled, expected), "a copy computes with the copy's weights"
