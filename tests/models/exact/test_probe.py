"""The probe of products: each is tried once in a process, on one thread and on all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoConfig, PreTrainedConfig

from lockstep.config import LoRA
from lockstep.models.exact import probe
from lockstep.models.exact.linear import exact_linear
from lockstep_logprobs.hidden import ROWS

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@pytest.fixture
def config() -> PreTrainedConfig:
    return AutoConfig.for_model("llama", **SHAPE)


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    probe._known.clear()
    yield
    probe._known.clear()


def test_repeated_exactness_probe_reuses_results_of_known_products(
    config: PreTrainedConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert probe.probe_exactness(config, dtype="fp32") is None
    monkeypatch.setattr(probe, "exact_product", None)
    monkeypatch.setattr(probe, "BlockwiseKernel", None)
    assert probe.probe_exactness(config, dtype="fp32") is None
    # of the same products
    deeper = AutoConfig.for_model("llama", **{**SHAPE, "num_hidden_layers": 3})
    assert probe.probe_exactness(deeper, dtype="fp32") is None
    with probe.use_threads(2), pytest.raises(TypeError, match="not callable"):
        probe.probe_exactness(config, dtype="fp32")


@pytest.mark.parametrize("rank", [1, 3, 8, 12])
def test_adapters_of_any_rank_are_exact_in_bf16(config: PreTrainedConfig, rank: int) -> None:
    assert probe.probe_exactness(config, dtype="bf16", adapters=LoRA(rank=rank)) is None


def test_exactness_probe_detects_summation_order_change_in_bf16_adapter_product(
    config: PreTrainedConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch does not give small products to oneDNN: by rows in multiples of 8 alone, 1 element of
    40,000 differs.

    A processor for which oneDNN has no bf16 products, such as one with AVX2 alone, has one order of
    sums.
    """

    def multiply(x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(F.pad(x, (0, 0, 0, -len(x) % ROWS)), weight)[: len(x)]

    monkeypatch.setattr(probe, "exact_product", multiply)
    assert probe.probe_exactness(config, dtype="bf16") is None
    reason = probe.probe_exactness(config, dtype="bf16", adapters=LoRA(rank=8))
    has_two_orders = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    seen = "a product of 64 by 8 in torch.bfloat16 depends on the batch on this machine"
    assert reason == (seen if has_two_orders else None)


@pytest.mark.parametrize("threads", [1, 2])
def test_exactness_probe_detects_difference_on_one_thread_or_all_threads(
    config: PreTrainedConfig, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    def on_threads(x: Tensor, weight: Tensor) -> Tensor:
        return (
            exact_linear(x, weight) + (len(x) == 65 and torch.get_num_threads() == threads) * 1e-2
        )

    monkeypatch.setattr(probe, "exact_product", on_threads)
    with probe.use_threads(2):
        assert probe.probe_exactness(config, dtype="fp32") is not None
