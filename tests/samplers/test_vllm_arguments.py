"""Options of a recipe as arguments of vLLM's engine, and what is refused before one starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_models import SECTION

from lockstep.cluster.sampler_pool import SamplerPool
from lockstep.cluster.specs import SamplerSpec
from lockstep.config import Computation, SamplerSection
from lockstep.core.errors import InputError
from lockstep.core.types import Request, SamplingParams
from lockstep.samplers.cache_budget import USABLE, CacheBudget
from lockstep.samplers.vllm.arguments import OPTIONS, OURS, engine_arguments

BF16 = Computation(dtype="bf16")
CHOSEN: dict[str, Any] = {
    "max_model_len": 32, "quantization": "fp8", "engine_args": {"swap": 1},
}  # fmt: skip


def section(**own: Any) -> SamplerSection:
    return SamplerSection.model_validate(
        {"backend": "vllm", "max_batch_size": 8, "tensor_parallel": 2, "vllm": own}
    )


def test_vllm_options_become_engine_arguments_on_gpu() -> None:
    plain = engine_arguments(section(), BF16, 64, on_gpu=True)
    assert plain["max_num_seqs"] == 8
    assert plain["tensor_parallel_size"] == 2
    assert plain["dtype"] == "bfloat16"
    assert (
        engine_arguments(section(), Computation(dtype="fp16"), 64, on_gpu=True)["dtype"]
        == "float16"
    )
    assert plain["enforce_eager"] is False
    assert not plain.keys() & {"max_model_len", "quantization", "kv_cache_memory_bytes"}
    chosen = engine_arguments(section(**CHOSEN), BF16, 64, on_gpu=True)
    for name, value in CHOSEN.items():
        if name != "engine_args":
            assert chosen[name] == value
    assert chosen["swap"] == 1
    assert set(chosen) - {"swap", "enforce_eager"} <= {*OPTIONS, *OURS}, (
        "an option that is set twice is known"
    )


def test_kv_cache_budget_takes_wanted_or_available_memory_or_is_refused() -> None:
    budget = CacheBudget(wanted=2 * 10**9, least=10**9, other=3 * 10**9)
    assert budget.choose_bytes(10 * 10**9) == 2 * 10**9
    assert budget.choose_bytes(45 * 10**8) == 15 * 10**8
    gpu = int(45 * 10**8 / USABLE)
    told = budget.apply_to_section(section(), gpu).kv_cache_gib
    assert told is not None
    assert int(told * 2**30) == budget.choose_bytes(int(USABLE * gpu)), (
        "the plan and the engine have the same number"
    )
    with pytest.raises(
        InputError,
        match=r"of which 3 GB are already planned, which leaves no room for keys and values \(1 GB",
    ):
        budget.apply_to_section(section(), 4 * 10**9)


@pytest.mark.full
@pytest.mark.needs("vllm")
def test_vllm_engine_uses_configured_arguments_and_enforces_max_model_len(
    vllm: None, models: Callable[..., Path]
) -> None:
    own = {
        "max_model_len": 16,
        "engine_args": {"enable_chunked_prefill": True, "max_num_batched_tokens": 48},
    }
    chosen = SamplerSection.model_validate(
        {"backend": "vllm", "max_batch_size": 8, "kv_cache_gib": 0.05, "vllm": own}
    )
    pool = SamplerPool(SamplerSpec(str(models("llama")), chosen, SECTION))
    try:
        settings = pool.remotes[0].call("settings")
        assert settings["max_num_batched_tokens"] == 48
        assert settings["tensor_parallel_size"] == 1
        assert settings["enable_chunked_prefill"] is True, "on a CPU it is False else"
        assert len(pool.generate([Request((3, 4), 1)], SamplingParams(max_tokens=14))) == 1
        with pytest.raises(
            InputError, match=r"may have 18 tokens, but sampler.vllm.max_model_len is 16"
        ):
            pool.generate([Request((3, 4, 5, 6), 1)], SamplingParams(max_tokens=14))
    finally:
        pool.close()
