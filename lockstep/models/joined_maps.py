"""Weights of maps with the same input, one after the other in memory: the torch sampler takes one product of them.

The modules' weights are views of that memory, so a weight sync needs nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation

from lockstep.models.exact.model import ROTARY, computes_as_written
from lockstep.models.families.registry import family_of
from lockstep.models.lora import Adapted

_PARTS = ("ForCausalLM", "Model", "DecoderLayer", "Attention", "MLP", "RMSNorm", "RotaryEmbedding")
_COMMON = (nn.Linear, nn.Embedding, nn.ModuleList, nn.SiLU, SiLUActivation)
_OF_ADAPTERS = (nn.ModuleDict, nn.ParameterDict, nn.Identity)


def can_step(lm: PreTrainedModel) -> bool:
    """True if the torch sampler can compute without a model's modules; False if any of them was changed."""
    family = family_of(lm.config)
    if family.plain is None or lm.config.rope_parameters.get("rope_type", "default") not in ROTARY:
        return False
    own = f"transformers.models.{family.model_type}.modeling_{family.model_type}"
    parts = {(own, family.plain.prefix + part) for part in _PARTS}
    return all(
        (
            (type(module).__module__, type(module).__name__) in parts
            or type(module) in (*_COMMON, *_OF_ADAPTERS)
            or Adapted.of(module) is not None
        )
        and computes_as_written(module)
        and all(type(parameter) is nn.Parameter for parameter in module.parameters(recurse=False))
        for module in lm.modules()
    )


def _maps(lm: Any) -> Iterator[list[nn.Linear]]:
    """Maps of the same input."""
    for layer in lm.base_model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        yield [attention.q_proj, attention.k_proj, attention.v_proj]
        yield [mlp.gate_proj, mlp.up_proj]


@torch.no_grad()
def join_maps(lm: PreTrainedModel) -> None:
    """Places weights with the same input one after the other in memory. Call it before their memory is shared."""
    for modules in _maps(lm) if can_step(lm) else ():
        biases = [module.bias for module in modules if module.bias is not None]
        for parameters in filter(None, ([module.weight for module in modules], biases)):
            joined = torch.cat([parameter.data for parameter in parameters])
            for parameter, rows in zip(parameters, joined.split(list(map(len, parameters))), strict=True):
                parameter.data = rows
