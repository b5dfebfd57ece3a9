"""Probes whether this machine is batch-invariant at the shapes of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig

from lockstep.config import DType, LoRA
from lockstep.core.types import SamplingParams
from lockstep.distributed.sampling import draw_tokens, token_scores
from lockstep.models.exact.attention import KEYS, BlockwiseKernel
from lockstep.models.exact.chunks import count_map_chunks
from lockstep.models.exact.experts import EXPERTS, ROUTERS
from lockstep.models.exact.linear import exact_product
from lockstep.models.exact.norm import rms_norm
from lockstep.models.families.registry import GPU_EXACT_TYPES, has_exact_layers_on_gpus
from lockstep.models.folder import build_skeleton, head_size
from lockstep.models.lora import add_adapters
from lockstep.models.precision import TORCH_TYPES
from lockstep_logprobs.hidden import ROWS
from lockstep_logprobs.kernel import runs_fused
from lockstep_logprobs.softmax import TILE_COLUMNS, column_tiles

_LARGEST_HEAD = 128
"""Largest head size on a GPU; larger ones exceed the shared memory of an A100."""

_SIZES = (1, 5, 9, 17, 65, 264)
"""Numbers of rows to try."""

_DRAWN = 256
"""Random columns of a weight; the others repeat them, since values do not select a kernel."""

_LENGTH = 300
"""Sequence length for trying attention: several blocks."""

_SAMPLINGS = (SamplingParams(1), SamplingParams(1, temperature=0.7, top_k=20, top_p=0.9))


def explain_no_gpu_kernels(config: PreTrainedConfig) -> str | None:
    """Explains why a model has no exact GPU kernels; None if it has them."""
    if not has_exact_layers_on_gpus(config):
        return (
            f"{config.model_type} models have no exact GPU kernels; supported types: "
            f"{', '.join(GPU_EXACT_TYPES)}"
        )
    if head_size(config.get_text_config()) > _LARGEST_HEAD:
        return (
            f"the model's heads have more than {_LARGEST_HEAD} dimensions, which exact GPU "
            "kernels do not support"
        )
    if find_spec("triton") is None:
        return "exact GPU kernels need Triton, which is not installed"
    return None


def probe_exactness(
    config: PreTrainedConfig,
    dtype: DType,
    device: torch.device | str = "cpu",
    adapters: LoRA | None = None,
) -> str | None:
    """Names an operation that depends on the batch on this machine; None if none does.

    Tried on one thread and on all.

    Each shape is tried once in this process, for each number of threads and precision.
    """
    for name, is_exact in _list_trials(config, TORCH_TYPES[dtype], torch.device(device), adapters):
        key = name, str(device), torch.get_num_threads(), torch.get_float32_matmul_precision()
        if key not in _known:
            with torch.no_grad():
                _known[key] = is_exact()
        if not _known[key]:
            return f"{name} depends on the batch on this machine"
    return None


_known = dict[tuple[object, ...], bool]()


def _list_trials(
    config: PreTrainedConfig, dtype: torch.dtype, device: torch.device, adapters: LoRA | None
) -> Iterator[tuple[str, Callable[[], bool]]]:
    """Yields the name and the check of each operation of a model over several tokens."""
    lm = build_skeleton(config, config.name_or_path or config.model_type)
    if adapters is not None:
        with torch.device("meta"):
            add_adapters(lm, adapters)
    text = config.get_text_config()
    fused = runs_fused(torch.empty(1, device=device))
    hidden = int(text.hidden_size)
    vocabulary = int(text.vocab_size)
    for own, module in lm.named_modules():
        if fused or module is not lm.get_output_embeddings():
            chunks = count_map_chunks(config, own)
            for width, columns, kind, turned in _list_linear_maps(module, dtype):
                size = width // chunks
                name = (
                    f"a product of {size} by {columns} in {kind}{', transposed,' if turned else ''}"
                )
                wider = width - size
                name += f", a chunk of {width}," if wider else ""
                yield name, partial(_try_map, size, columns, kind, turned, device, wider)
    heads = text.num_attention_heads
    groups = text.num_key_value_heads or text.num_attention_heads
    size = head_size(text)
    name = f"attention of {heads} heads on {groups} of {size} numbers"
    yield name, partial(_try_attention, heads, groups, size, device)
    if fused:
        yield f"a norm of {hidden} in {dtype}", partial(_try_norm, hidden, dtype, device)
        name = f"a log-probability of {vocabulary} tokens in {dtype}"
        yield name, partial(_try_scores, vocabulary, dtype, device)
    else:
        yield (
            f"the head's product, {hidden} by {vocabulary} in {dtype},",
            partial(_try_head, hidden, vocabulary, dtype),
        )


def _list_linear_maps(
    module: Any, dtype: torch.dtype
) -> Iterator[tuple[int, int, torch.dtype, bool]]:
    """The linear maps of a module: size, columns, type, and whether the weight is transposed."""
    kind = type(module).__name__
    if isinstance(module, nn.Linear) or kind in ROUTERS:
        columns, size = module.weight.shape
        yield size, columns, dtype, False
    elif kind in EXPERTS:
        turned = bool(module.is_transposed)
        for weight in (module.gate_up_proj[0], module.down_proj[0]):
            size, columns = (weight if turned else weight.mT).shape
            yield size, columns, torch.float32, turned  # in the weights' type


@contextmanager
def use_threads(number: int) -> Iterator[None]:
    """A context with this number of torch threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _draw_tensor(*shape: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(
        device, dtype
    )


def _draw_cancelling(
    rows: int, columns: int, size: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Random factors [rows, size] and [columns, size] whose products cancel.

    The remaining rounding shows the order of summation. With other numbers, bf16 rounds the
    difference away in all but 1 of about 40,000 elements.
    """
    half = -(-size // 2)
    draw = torch.Generator().manual_seed(rows + columns + size)
    halves = list[Tensor]()
    for n in (rows, columns):
        normal = torch.randn(n, half, generator=draw)
        halves.append(normal * torch.randint(-6, 7, (n, half), generator=draw).exp2())
    order = torch.randperm(2 * half, generator=draw)[:size]
    x, weight = halves
    x = torch.cat([x, x], 1)[:, order]
    weight = torch.cat([weight, -weight], 1)[:, order]
    return x.to(dtype), weight.to(dtype)


def _try_map(
    size: int, columns: int, dtype: torch.dtype, turned: bool, device: torch.device, wider: int
) -> bool:
    """Compares batches of repeated rows with each row alone, on one thread and on all.

    Batches are the first columns of tensors that are `wider` by some.
    """
    repeats = -(-columns // _DRAWN)
    times = -(-_SIZES[-1] // ROWS)
    x, weight = _draw_cancelling(ROWS, min(columns, _DRAWN), size, dtype)
    x = x.to(device)
    weight = weight.repeat(repeats, 1)[:columns].to(device)
    weight = weight.mT.contiguous().mT if turned else weight
    with use_threads(1):
        few = torch.cat([exact_product(row, weight) for row in x.split(1)]).repeat(times, 1)
    x = x.repeat(times, 1)
    if wider:
        x, weight = (F.pad(tensor, (0, wider))[:, :size] for tensor in (x, weight))
    for threads in {1, torch.get_num_threads()}:
        with use_threads(threads):
            if not all(torch.equal(exact_product(x[:rows], weight), few[:rows]) for rows in _SIZES):
                return False
    return True


def _try_head(size: int, vocabulary: int, dtype: torch.dtype) -> bool:
    """Checks the first and last tile of a vocabulary head on a CPU; scoring computes tiles."""
    columns = min(vocabulary, TILE_COLUMNS + vocabulary % TILE_COLUMNS)
    x, weight = _draw_cancelling(ROWS, columns, size, dtype)
    tiles = [weight[tile] for tile in column_tiles(columns, row_invariant=True)]
    return torch.equal(
        exact_product(x, weight), torch.cat([exact_product(x, tile) for tile in tiles], 1)
    )


def _try_attention(heads: int, groups: int, size: int, device: torch.device) -> bool:
    """Checks that queries computed one at a time, as in decoding, equal a full pass."""
    kernel = BlockwiseKernel()
    scaling = size**-0.5
    q, k, v = (
        _draw_tensor(2, number, _LENGTH, size, device=device) for number in (heads, groups, groups)
    )
    whole = kernel.attend_causally(q, k, v, scaling, None).unflatten(0, (2, _LENGTH))
    with use_threads(1):
        for at in (0, KEYS, 150, _LENGTH - 1):
            missing = -(at + 1) % KEYS
            keys, values = (F.pad(x[:, :, : at + 1], (0, 0, 0, missing)) for x in (k, v))
            mask = kernel.build_mask(
                (torch.arange(at + 1 + missing, device=device) <= at).expand(2, -1)
            )
            if not torch.equal(
                kernel.attend_newest(q[:, :, at], keys, values, mask, scaling), whole[:, at]
            ):
                return False
    return True


def _try_norm(size: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Checks that a GPU's RMS norm gives rows the same bits in small and large batches."""
    weight = _draw_tensor(size, device=device)
    x = _draw_tensor(_SIZES[-1], size, device=device, dtype=dtype)
    whole = rms_norm(x, weight, 1e-6)
    for count in _SIZES:
        for rows in (slice(0, count), slice(-count, None)):
            if not torch.equal(rms_norm(x[rows], weight, 1e-6), whole[rows]):
                return False
    return True


def _try_scores(vocabulary: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Checks that a GPU scores single rows and small batches as it sampled the full batch."""
    logits = _draw_tensor(32, vocabulary, device=device, dtype=dtype)
    uniform = torch.linspace(0.01, 0.99, 32, dtype=torch.float64, device=device)
    for sampling in _SAMPLINGS:
        token, logprob = draw_tokens(logits, uniform, sampling, row_invariant=True)
        for rows in (slice(0, 1), slice(7, 12)):
            again, _ = token_scores(
                logits[rows], token[rows], sampling, row_invariant=True, entropy=False
            )
            if not torch.equal(again, logprob[rows]):
                return False
    return True
