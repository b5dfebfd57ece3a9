"""Attention without padding: torch's own is stood in for on the CPU, so that what it is asked for
is seen.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import cpu_varlen  # noqa: F401 -- gives torch's operation a kernel for CPUs
import pytest
import torch
from gpus import show_gpus
from tiny_models import ragged
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig

from lockstep.config import DType
from lockstep.models.attention import NAME, UNPADDED, PackedLayout
from lockstep.models.heads import LogitsHead
from lockstep.models.kernels import FUSED, VARLEN
from lockstep.models.load import load_causal_lm
from lockstep.models.open_kernels import describe_attention, explain_padding, open_kernels
from lockstep.models.parallelize import list_layers

LENGTHS = (5, 1, 9, 3, 8, 4)
GPU = torch.device("cuda", 0)


def projections(tokens: int, size: int = 8, values: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of 4 heads, and keys and values of 2, [1, heads, N, size]."""
    draw = torch.Generator().manual_seed(0)

    def numbers(heads: int, size: int) -> Tensor:
        return torch.randn(
            1, heads, tokens, size, generator=draw, dtype=torch.float64, requires_grad=True
        )

    return numbers(4, size), numbers(2, size), numbers(2, values)


@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_unpadded_attention_and_gradients_match_padded_attention(window: int | None) -> None:
    batch = ragged(LENGTHS)
    packed, given = PackedLayout.from_batch(batch), projections(batch.tokens.numel())
    found = list[list[Tensor]]()
    for kernel in (FUSED, VARLEN):
        out = packed.attend(kernel, 0, *given, 0.3, window)
        found.append([out, *torch.autograd.grad((out * torch.arange(8)).sum(), given)])
    for ours, expected in zip(*reversed(found), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-12, rtol=0.0)


@pytest.mark.parametrize(("size", "values"), [(12, 12), (264, 264), (16, 8)])
def test_unpadded_attention_with_unsupported_head_sizes_equals_padded_attention(
    size: int, values: int
) -> None:
    batch = ragged(LENGTHS)
    packed, given = PackedLayout.from_batch(batch), projections(batch.tokens.numel(), size, values)
    assert torch.equal(*(packed.attend(kernel, 0, *given, 0.3, None) for kernel in (FUSED, VARLEN)))


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # torch's compiler asks for it
@pytest.mark.parametrize("kind", ["llama", "qwen2 window"])
def test_unpadded_model_matches_padded_model_and_compiles_once(
    models: Callable[..., Path], kind: str
) -> None:
    torch.compiler.reset()
    plain = load_causal_lm(models(kind))
    unpadded = copy.deepcopy(plain)
    unpadded.set_attn_implementation(UNPADDED)
    compiled = copy.deepcopy(unpadded)
    for layer in list_layers(compiled):
        layer.forward = torch.compile(
            layer.forward, dynamic=True, fullgraph=True, backend="aot_eager"
        )
    for number, lengths in enumerate((LENGTHS, (7, 2), (3, 30, 6))):
        with torch.compiler.set_stance("default" if number == 0 else "fail_on_recompile"):
            batch, found = ragged(lengths), []
            for lm in (plain, unpadded, compiled):
                logprob = LogitsHead(lm, products=True)(batch).logprob
                assert logprob is not None
                found.append([logprob, *torch.autograd.grad(logprob.sum(), list(lm.parameters()))])
        for expected, *ours in zip(*found, strict=True):
            for one in ours:
                torch.testing.assert_close(one, expected, atol=1e-5, rtol=1e-4)


def config(kind: str = "llama", **fields: int) -> PreTrainedConfig:
    return AutoConfig.for_model(kind, **fields)


@pytest.mark.parametrize(
    ("of", "device", "dtype", "reason"),
    [
        (config(), GPU, "bf16", None),
        (config("qwen3", head_dim=256), GPU, "bf16", None),
        (config(), torch.device("cpu"), "fp16", "the device is not a GPU"),
        (config(), GPU, "fp32", "fp32"),
        (config(head_dim=80 + 4), GPU, "bf16", "head size is 84"),
        (config(head_dim=512), GPU, "bf16", "head size is 512"),
        (config("mamba"), GPU, "bf16", "carry a recurrent state"),
    ],
)
def test_padded_attention_is_chosen_with_reason_when_flash_attention_cannot_run(
    monkeypatch: pytest.MonkeyPatch,
    of: PreTrainedConfig,
    device: torch.device,
    dtype: DType,
    reason: str | None,
) -> None:
    show_gpus(monkeypatch, 1)
    found = explain_padding(of, device, dtype)
    assert (found is None) == (reason is None)
    assert (reason or "") in (found or "")
    assert describe_attention(of, device, dtype).startswith(
        "varlen_attn" if reason is None else "scaled_dot_product"
    )


def test_gpu_with_old_compute_capability_uses_padded_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    show_gpus(monkeypatch, 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    assert "compute capability" in str(explain_padding(config(), GPU, dtype="bf16"))


def test_open_kernels_selects_unpadded_attention_for_bf16_on_gpu(
    monkeypatch: pytest.MonkeyPatch, models: Callable[..., Path]
) -> None:
    show_gpus(monkeypatch, 1)
    lm = load_causal_lm(models("llama"))
    open_kernels(lm, GPU, dtype="fp32")
    assert lm.config._attn_implementation == NAME
    open_kernels(lm, GPU, dtype="bf16")
    assert lm.config._attn_implementation == UNPADDED
