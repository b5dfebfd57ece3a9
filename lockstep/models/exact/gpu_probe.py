"""A probe of this GPU: whether Triton's kernels give a row the same bits in any batch, at the shapes of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig

from lockstep.config import DType
from lockstep.distributed.sampling import draw, token_scores
from lockstep.models.exact.attention import Blockwise
from lockstep.models.exact.linear import product
from lockstep.models.exact.norm import rms_norm
from lockstep.models.exact.verdicts import recall
from lockstep.models.families.registry import GPU_EXACT_TYPES, has_exact_layers_on_gpus
from lockstep.models.folder import head_size, skeleton
from lockstep.models.precision import TORCH_TYPES
from lockstep.types import SamplingParams

_LARGEST_HEAD = 128
"""Largest head size; attention with larger heads takes more shared memory than an A100 has."""

_SIZES = (1, 5, 16, 65, 264)
"""Rows of a batch that are compared with those of the largest."""

_LENGTH = 300

_SAMPLINGS = (SamplingParams(1), SamplingParams(1, temperature=0.7, top_k=20, top_p=0.9))


def explain_inexact_gpu(config: PreTrainedConfig, dtype: DType, device: torch.device) -> str | None:
    """Says why a model is not computed exactly on this GPU; None: it is, as far as was tried."""
    if not has_exact_layers_on_gpus(config):
        return f"a {config.model_type} has no exact kernels for GPUs; these have: {', '.join(GPU_EXACT_TYPES)}"
    if head_size(config.get_text_config()) > _LARGEST_HEAD:
        return f"the model's heads have more than {_LARGEST_HEAD} numbers, for which a GPU has no exact kernel"
    if find_spec("triton") is None:
        return "exact kernels for GPUs are Triton's, which is not installed"
    where = f"{torch.cuda.get_device_name(device)}, triton {version('triton')}" if device.type == "cuda" else "here"
    for name, is_exact in list_trials(config, TORCH_TYPES[dtype], device):
        if not recall(f"{name} on {where}", is_exact):
            return f"{name} is not the same in any batch on this GPU"
    return None


def list_trials(
    config: PreTrainedConfig, dtype: torch.dtype, device: torch.device
) -> Iterator[tuple[str, Callable[[], bool]]]:
    """All that is tried, each shape once, by name."""
    lm = skeleton(config, config.name_or_path or config.model_type)
    text = config.get_text_config()
    maps = dict.fromkeys(tuple(module.weight.shape) for module in lm.modules() if isinstance(module, nn.Linear))
    for columns, size in maps:
        yield f"a product of {size} by {columns} in {dtype}", partial(_tries_map, size, columns, dtype, device)
    yield f"a norm of {text.hidden_size} in {dtype}", partial(_tries_norm, text.hidden_size, dtype, device)
    heads, size = text.num_attention_heads, head_size(text)
    groups = text.num_key_value_heads or heads
    name = f"attention of {heads} heads on {groups} of {size} numbers"
    yield name, partial(_tries_attention, heads, groups, size, device)
    vocabulary = int(text.vocab_size)
    name = f"a log-probability of {vocabulary} tokens in {dtype}"
    yield name, partial(_tries_scores, vocabulary, dtype, device)


def _random(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(device, dtype)


def _is_same(compute: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """True if rows come out the same in each of some batches, at their beginning and at their end."""
    whole = compute(x)
    return all(
        torch.equal(compute(x[:size]), whole[:size]) and torch.equal(compute(x[-size:]), whole[-size:])
        for size in _SIZES
    )


@torch.no_grad()
def _tries_map(size: int, columns: int, dtype: torch.dtype, device: torch.device) -> bool:
    """True if a product's rows are the same in any batch, and if it is computed in two halves, as fused maps are."""
    weight = _random(columns, size, dtype=dtype, device=device)
    x = _random(_SIZES[-1], size, dtype=dtype, device=device)
    apart = torch.cat([product(x, part) for part in weight.tensor_split(2)], 1)
    return torch.equal(apart, product(x, weight)) and _is_same(lambda rows: product(rows, weight), x)


@torch.no_grad()
def _tries_norm(size: int, dtype: torch.dtype, device: torch.device) -> bool:
    weight = _random(size, dtype=torch.float32, device=device)
    x = _random(_SIZES[-1], size, dtype=dtype, device=device)
    return _is_same(lambda rows: rms_norm(rows, weight, 1e-6), x)


@torch.no_grad()
def _tries_attention(heads: int, groups: int, size: int, device: torch.device) -> bool:
    """True if some queries give the same alone, as in decoding, as among all."""
    kernel, scale = Blockwise(), size**-0.5
    q, k, v = (
        _random(2, number, _LENGTH, size, dtype=torch.float32, device=device) for number in (heads, groups, groups)
    )
    whole = kernel.causal(q, k, v, scale, None).unflatten(0, (2, _LENGTH))
    for at in (0, 31, 150, _LENGTH - 1):
        room = -(at + 1) % 16
        keys, values = (F.pad(x[:, :, : at + 1], (0, 0, 0, room)) for x in (k, v))
        mask = kernel.mask((torch.arange(at + 1 + room, device=device) <= at).expand(2, -1))
        if not torch.equal(kernel.newest(q[:, :, at], keys, values, mask, scale), whole[:, at]):
            return False
    return True


@torch.no_grad()
def _tries_scores(vocabulary: int, dtype: torch.dtype, device: torch.device) -> bool:
    """True if tokens are scored, alone and among some, as they were sampled among all."""
    logits = _random(32, vocabulary, dtype=dtype, device=device)
    uniform = torch.linspace(0.01, 0.99, 32, dtype=torch.float64, device=device)
    for sampling in _SAMPLINGS:
        token, logprob = draw(logits, uniform, sampling, row_invariant=True)
        for rows in (slice(0, 1), slice(7, 12)):
            again, _ = token_scores(logits[rows], token[rows], sampling, row_invariant=True, entropy=False)
            if not torch.equal(again, logprob[rows]):
                return False
    return True
