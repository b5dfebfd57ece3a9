"""Arguments for vLLM's engine, from the sections of a recipe.

Imports neither torch nor vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.config import Computation, SamplerSection

_CPU_CACHE_GIB = 1.0
_CPU_BLOCK = 32
_CPU_BATCH_TOKENS = 4096
_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_ANY_SHARE = {"gpu_memory_utilization": 0.01}

OPTIONS: Mapping[str, str] = {
    "max_num_seqs": "sampler.max_batch_size",
    "tensor_parallel_size": "sampler.tensor_parallel",
    "kv_cache_memory_bytes": "sampler.kv_cache_gib",
    "gpu_memory_utilization": "sampler.kv_cache_gib",
    "enable_sleep_mode": "cluster.offload_idle",
    "max_model_len": "sampler.vllm.max_model_len",
    "quantization": "sampler.vllm.quantization",
    "dtype": "learner.dtype",
    "model": "model.path",
}
"""Arguments of vLLM that options of a recipe set."""

OURS = (
    "seed",
    "worker_extension_cls",
    "logprobs_mode",
    "skip_tokenizer_init",
    "enable_prefix_caching",
    "disable_log_stats",
    "use_tqdm_on_load",
)
"""Arguments of vLLM that Lockstep sets itself."""


def refuse_repeated(engine_args: Mapping[str, Any]) -> None:
    """Raises ValueError for arguments that have their own option or that Lockstep sets."""
    for name in engine_args:
        if name in OPTIONS:
            raise ValueError(f"vllm.engine_args has {name}, which is {OPTIONS[name]}; set that")
        if name in OURS:
            raise ValueError(
                f"vllm.engine_args has {name}, which Lockstep sets itself; leave it out"
            )


def engine_arguments(
    section: SamplerSection, computation: Computation, context: int, on_gpu: bool
) -> dict[str, Any]:
    """Arguments of vLLM's `EngineArgs`.

    Args:
        section: The inference engine.
        computation: The learner's; vLLM computes in its type.
        context: Longest sequence.
        on_gpu: True if it computes on GPUs.
    """
    own = section.vllm
    arguments: dict[str, Any] = {
        "skip_tokenizer_init": True,
        "dtype": _TYPES[computation.dtype],
        "max_num_seqs": section.max_batch_size,
        "tensor_parallel_size": section.tensor_parallel,
        "enable_prefix_caching": True,
        "enable_sleep_mode": section.takes_turns,
        "enforce_eager": not on_gpu,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "seed": 0,
    }
    chosen = {"max_model_len": own.max_model_len, "quantization": own.quantization}
    arguments |= {name: value for name, value in chosen.items() if value is not None}
    gib = section.kv_cache_gib
    if not on_gpu:
        arguments |= {
            "kv_cache_memory_bytes": int((gib or _CPU_CACHE_GIB) * 2**30),
            "block_size": _CPU_BLOCK,
            # vLLM on a CPU crashes with chunked prefill and seeds: it cannot undo the sample of an
            # unfinished prompt.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(_CPU_BATCH_TOKENS, context),
        }
    elif gib is not None:
        # With an explicit cache size, gpu_memory_utilization only decides whether vLLM starts at
        # all.
        arguments |= {"kv_cache_memory_bytes": int(gib * 2**30)} | _ANY_SHARE
    return arguments | dict(own.engine_args)
