"""Selects a model's kernels at load time: attention without padding, experts in bf16."""

from __future__ import annotations

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from lockstep.config import DType, LearnerSection
from lockstep.models import grouped_experts
from lockstep.models.attention import UNPADDED
from lockstep.models.folder import carries_state, head_size
from lockstep.models.kernels import takes_heads
from lockstep.models.precision import TORCH_TYPES

_OLDEST = (8, 0)
"""Minimum compute capability for flash attention."""


def explain_padding(config: PreTrainedConfig, device: torch.device, dtype: DType) -> str | None:
    """Explains why attention over packed sequences is padded; None if it is not.

    Always padded: shares of a sequence (context parallelism), values with a different head size
    than queries, and layers with caps or sinks.
    """
    if device.type != "cuda":
        return "the device is not a GPU"
    if TORCH_TYPES[dtype] == torch.float32:
        return "flash attention does not support learner.dtype=fp32"
    if carries_state(config):
        return f"layers of a {config.model_type} carry a recurrent state"
    size = head_size(config.get_text_config())
    if not takes_heads(size):
        return f"head size is {size}; flash attention supports multiples of 8 up to 256"
    if torch.cuda.get_device_capability(device) < _OLDEST:
        return "flash attention needs a GPU of compute capability 8.0 or later"
    return None


def explain_unshared(
    config: PreTrainedConfig, section: LearnerSection, device: torch.device, is_exact: bool
) -> str | None:
    """Explains why a model computes each sequence separately; None if it computes prefixes once."""
    reason = section.explain_unshared()
    if reason is not None:
        return reason
    if carries_state(config):
        return f"layers of a {config.model_type} carry a recurrent state"
    if not is_exact and explain_padding(config, device, section.dtype) is None:
        return "flash attention over packed sequences takes each sequence by itself"
    return None


def settle_sharing(
    config: PreTrainedConfig, section: LearnerSection, device: torch.device
) -> LearnerSection:
    """The same section; `share_prefixes` is off if the model cannot compute prefixes once."""
    if explain_unshared(config, section, device, section.exact) is None:
        return section
    return section.model_copy(update={"share_prefixes": False})


def open_kernels(lm: PreTrainedModel, device: torch.device, dtype: DType) -> None:
    """Switches a model to the fastest kernels that it supports, in place."""
    grouped = lm.config._experts_implementation == grouped_experts.OF_TRANSFORMERS
    if device.type == "cuda" and TORCH_TYPES[dtype] == torch.bfloat16 and grouped:
        lm.set_experts_implementation(grouped_experts.NAME)
    if explain_padding(lm.config, device, dtype) is None:
        lm.set_attn_implementation(UNPADDED)


def describe_attention(config: PreTrainedConfig, device: torch.device, dtype: DType) -> str:
    """Describes the attention kernel, and why it pads."""
    reason = explain_padding(config, device, dtype)
    if reason is None:
        return "varlen_attn"
    return f"scaled_dot_product_attention, padded: {reason}"
