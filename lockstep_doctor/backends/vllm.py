"""vLLM in a separate process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lockstep.cluster.sampler_pool import SamplerPool
from lockstep.cluster.specs import SamplerSpec, require_sampler
from lockstep.cluster.workers import HERE, WorkerPool
from lockstep.config import Computation, SamplerSection
from lockstep.core.batch import Batch, concat_batches
from lockstep.core.errors import InputError
from lockstep.core.types import Request, SamplingParams
from lockstep.models.precision import TORCH_TYPES
from lockstep_doctor.table.base import USUAL, BackendCapability, BackendConditions


class VLLMBackend:
    """Implements `table.base.Backend`. An engine takes half a minute to start.

    Args:
        tp: Tensor-parallel size.
    """

    name = "vllm"
    capabilities: frozenset[BackendCapability] = frozenset(("generate",))
    spec: type[SamplerSpec] = SamplerSpec
    network = None

    def __init__(
        self,
        folder: str,
        section: SamplerSection,
        computation: Computation,
        note: Callable[[str], object] = print,
        workers: WorkerPool = HERE,
        tp: int = 1,
    ) -> None:
        if section.replicas > 1:
            raise InputError(
                f"the doctor uses one engine, not {section.replicas}; leave sampler.replicas at 1"
            )
        # The section's backend may differ if vLLM is one of several backends.
        section = section.model_copy(update={"backend": "vllm", "tensor_parallel": tp})
        require_sampler(section, computation)
        if tp > 1:
            self.name = f"vllm-tp{tp}"
        else:
            self.name = "vllm"
        spec = self.spec(folder, section, computation)
        self.context = spec.context_tokens
        note(f"vLLM starts with {folder}")
        self.engine = SamplerPool(spec, workers)
        try:
            self.engine.wait_until_ready()
        except BaseException:
            self.engine.close()
            raise

    def list_settings(self) -> Mapping[str, Any]:
        settings = self.engine.remotes[0].call("settings")
        dtype = settings["dtype"]
        for short, own in TORCH_TYPES.items():
            if str(own) == f"torch.{settings['dtype']}":
                dtype = short
        batch_size = settings["max_num_seqs"]
        return settings | {"dtype": dtype, "batch_size": batch_size, "training": False}

    def score(self, batch: Batch, conditions: BackendConditions = USUAL) -> Tensor:
        """Scores without the prefix cache, which vLLM does not use for log-probabilities of
        prompts.
        """
        if batch.sampling is not None and not batch.sampling.unshaped:
            raise InputError(
                "vLLM rescores only at temperature 1 over all tokens; leave out batch.sampling"
            )
        parts = batch.split(conditions.batch_size or len(batch))
        return torch.cat(list(map(self.engine.logprobs, parts)))

    def generate(
        self,
        requests: Sequence[Request],
        sampling: SamplingParams,
        conditions: BackendConditions = USUAL,
    ) -> Batch:
        """Implements `Backend.generate`.

        Returns:
            The batch, with a per-sample column `prefix_hits`: prompt tokens read from the prefix
                cache.
        """
        if conditions.fresh:
            self.engine.remotes[0].call("drop_caches")
        self.engine.remotes[0].call("take_prefix_hits")  # drops earlier counts
        size = conditions.batch_size or len(requests)
        parts = list[Batch]()
        for start in range(0, len(requests), size):
            parts.append(self.engine.generate(requests[start : start + size], sampling))
        hits = self.engine.remotes[0].call("take_prefix_hits")
        return concat_batches(parts).with_columns(sample={"prefix_hits": torch.tensor(hits)})

    def close(self) -> None:
        self.engine.close()
