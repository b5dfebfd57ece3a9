"""The choice of kernels when a model is opened: attention without padding, experts in bf16."""

from __future__ import annotations

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from lockstep.models import grouped_experts
from lockstep.models.attention import UNPADDED
from lockstep.models.folder import carries_state, head_size
from lockstep.models.kernels import FUSED, VARLEN, Kernel, takes_heads

_OLDEST = (8, 0)
"""Least compute capability for flash attention."""


def explain_padding(config: PreTrainedConfig, device: torch.device, bf16: bool) -> str | None:
    """Says why attention of packed sequences is padded; None if it is not.

    Padded in any case are shares of a sequence (context parallelism), and heads whose values have another size than
    queries. Layers with caps or sinks are computed by `models.flex`.
    """
    if device.type != "cuda":
        return "the device is no GPU"
    if not bf16:
        return "learner.dtype is fp32, which flash attention does not take"
    if carries_state(config):
        return f"layers of a {config.model_type} carry a state along rows"
    size = head_size(config.get_text_config())
    if not takes_heads(size):
        return f"heads have {size} numbers, and flash attention takes multiples of 8 up to 256"
    if torch.cuda.get_device_capability(device) < _OLDEST:
        return "flash attention runs on GPUs of compute capability 8.0 and later"
    return None


def open_kernels(lm: PreTrainedModel, device: torch.device, bf16: bool) -> None:
    """Switches a model to the fastest kernels that it supports, in place."""
    if device.type == "cuda" and bf16 and lm.config._experts_implementation == grouped_experts.OF_TRANSFORMERS:
        lm.set_experts_implementation(grouped_experts.NAME)
    if explain_padding(lm.config, device, bf16) is None:
        lm.set_attn_implementation(UNPADDED)


def describe_attention(config: PreTrainedConfig, device: torch.device, bf16: bool) -> str:
    """Names what computes attention of packed sequences, and why it is padded."""
    reason = explain_padding(config, device, bf16)
    return "varlen_attn" if reason is None else f"scaled_dot_product_attention in padded grids: {reason}"


def kernel_of(lm: PreTrainedModel) -> Kernel:
    """The attention kernel of a model after `open_kernels`, if it does not compute exactly."""
    return VARLEN if lm.config._attn_implementation == UNPADDED else FUSED
