"""Weights of the models, drawn so that each layer, position and neighbor matters and logits have some spread."""

from __future__ import annotations

import math
from itertools import chain

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.doctor_faults import model_tokens

_GAIN = {"qwen2": 1.15, "mixtral": 0.5}
"""What blocks multiply the length of a state by, if not 0.7: more where the head is tied to the embedding, or tokens
would repeat; less where rounding sends tokens to other experts."""
_LAID_OUT = ("A_log", ".D", "dt_bias", "conv1d.weight")
"""Scales of a state space are laid out, not drawn."""
_OFF_ZERO = {"qwen3, logits off zero": 2.5, "qwen3, logits far off zero": 5.0}
"""How large one channel of the embedding and the head is, for these."""
_SCALED = ("gemma", "vaultgemma", "ctrl", "gemma4", "xglm")
"""Models that multiply their embedding by the root of the hidden size."""
_OUT2 = ("o_proj.weight", "down_proj.weight", "c_proj.weight", "down_proj")
_OUT3 = (*_OUT2, "dense.weight", "fc2.weight", "4h_to_h.weight")
_OUT6 = (
    *("o_proj.weight", "out_proj.weight", "dense.weight", "down_proj", "down_proj.weight"),
    *("w2.weight", "fc2.weight", "4h_to_h.weight"),
)
_OUT4 = (*_OUT6[:5], "fc_out.weight", "c_proj.weight", "4h_to_h.weight", "w2.weight")
_OUT5 = ("o_proj.weight", "down_proj", "down_proj.weight", "c_proj.weight", "output_linear.weight")
"""What layers add to the residual stream, in each kind of model; it is smaller, so that a little noise stays little."""


@torch.no_grad()
def widen(model: PreTrainedModel, name: str) -> None:
    """The first kind: normal numbers; logits spread by 3.5, so entropies are one to three nats."""
    for path, tensor in model.named_parameters():
        if path.endswith(_LAID_OUT):
            continue
        if "embed" in path or "lm_head" in path:
            tensor.normal_(0.0, 3.5 / math.sqrt(int(model.config.hidden_size)))
        elif tensor.ndim == 1:
            tensor += 0.2 * torch.randn_like(tensor)
        else:
            tensor.normal_(0.0, _GAIN.get(name, 0.7) / math.sqrt(tensor.shape[-1]))


@torch.no_grad()
def draw_tails(model: PreTrainedModel, name: str) -> None:
    """The second kind: tails as heavy as a trained model's, gains and biases that matter."""
    saved = model.state_dict()
    for path, tensor in chain(model.named_parameters(), model.named_buffers()):
        if path not in saved:
            continue
        if tensor.ndim == 1:
            tensor += 0.3 * torch.randn_like(tensor)
        elif path.endswith("wpe.weight"):
            tensor.copy_(_waves(tensor))
        else:
            spread = 2.5 if len(tensor) == 384 else 0.6 if path.endswith(_OUT2) else 1.2
            tensor.copy_(_tailed(tensor) * (spread / math.sqrt(tensor.shape[-1])))
    if name in _OFF_ZERO:
        _shift_logits(model, _OFF_ZERO[name])


def _waves(tensor: Tensor) -> Tensor:
    """Positions as sines: near ones are alike."""
    rate = torch.logspace(0, -3, tensor.shape[1])
    return 0.3 * torch.sin(torch.arange(len(tensor))[:, None] * rate + torch.arange(tensor.shape[1]))


def _tailed(tensor: Tensor) -> Tensor:
    """Student's t with five degrees of freedom, scaled to variance 1."""
    chi = torch.randn(5, *tensor.shape).square().sum(0)
    return torch.randn_like(tensor) * (3.0 / chi).sqrt()


def _shift_logits(model: PreTrainedModel, size: float) -> None:
    """One channel that is large everywhere, as trained models have; it moves all logits by the same."""
    for path, parameter in model.named_parameters():
        if len(parameter) == 384:
            parameter[:, 0] = size
        elif path.endswith(_OUT2):
            parameter[0] = 0.0


@torch.no_grad()
def draw_rows(model: PreTrainedModel, name: str) -> None:
    """The third kind: rows of different lengths."""
    for path, tensor in model.named_parameters():
        if tensor.ndim == 1:
            tensor += 0.25 * torch.randn_like(tensor)
        elif path.endswith("embed_positions.weight"):
            tensor.copy_(torch.randn_like(tensor).cumsum(0) * 0.15)
        else:
            length = torch.exp(0.3 * torch.randn(*tensor.shape[:-1], 1))
            gain = 3.0 if len(tensor) == 448 else 0.7 if path.endswith(_OUT3) else 1.1
            tensor.normal_().mul_(length * gain / math.sqrt(tensor.shape[-1]))


@torch.no_grad()
def draw_twins(model: PreTrainedModel, name: str) -> None:
    """The fourth kind: columns of different lengths, twins that are alike, and slow decays of states."""
    embedded = 1 / math.sqrt(64) if name in _SCALED else 1.0
    for path, tensor in model.named_parameters():
        if path.endswith(("dt_bias", "conv1d.weight")):
            continue
        if path.endswith("A_log"):
            tensor -= 4.0
        elif path.endswith(".D"):
            tensor *= 0.1
        elif tensor.ndim == 1:
            tensor += 0.2 * torch.randn_like(tensor)
        else:
            size = (0.6 if path.endswith(_OUT4) else 1.0) / math.sqrt(tensor.shape[-1])
            if len(tensor) == 416:
                size = 3.0 / math.sqrt(tensor.shape[-1]) if path.endswith("lm_head.weight") else embedded
            tensor.normal_().mul_((torch.rand(tensor.shape[-1]) + 0.5) * size)
        if len(tensor) == 416:
            for twin, plain in model_tokens.twins():
                tensor[twin] = 0.99 * tensor[plain] + 0.1 * tensor[twin].clone()


@torch.no_grad()
def draw_columns(model: PreTrainedModel, name: str) -> None:
    """The fifth kind: columns of different lengths."""
    for path, tensor in model.named_parameters():
        if tensor.ndim == 1:
            tensor += 0.2 * torch.randn_like(tensor)
            continue
        size = 1 / math.sqrt(tensor.shape[-1]) * (3.0 if len(tensor) == 400 else 0.6 if path.endswith(_OUT5) else 1.0)
        tensor.normal_().mul_((0.5 + torch.rand(tensor.shape[-1])) * size)


@torch.no_grad()
def draw_both(model: PreTrainedModel, name: str) -> None:
    """The sixth kind: rows and columns of different lengths."""
    embedded = 1 / math.sqrt(56) if name in _SCALED else 1.0
    for path, tensor in model.named_parameters():
        if tensor.ndim == 1:
            tensor += 0.2 * torch.randn_like(tensor)
            continue
        length = torch.exp(0.25 * torch.randn(*tensor.shape[:-1], 1))
        size = 1 / math.sqrt(tensor.shape[-1])
        if len(tensor) == 320:
            size = size * 3.0 * (1.0 if path.startswith("lm_head") else embedded)
        elif path.endswith("q_b_proj.weight"):
            size = size * 2.5  # so that latent attention chooses between tokens
        else:
            size = size * (0.6 if path.endswith(_OUT6) else 1.0)
        tensor.normal_().mul_(length * size * (0.6 + torch.rand(tensor.shape[-1])))
