"""Declaration of the inference backend `torch`. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from lockstep.samplers.backend import InferenceBackend

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from lockstep.config import Computation, SamplerSection
    from lockstep.samplers.torch.model_sampler import ModelSampler


@final
class TorchInference(InferenceBackend):
    """PyTorch with Lockstep's own KV cache."""

    is_exact = True
    is_self_checked = True
    threads = 1  # with more, bits would depend on how many samplers share the machine

    def in_process(self, section: SamplerSection) -> bool:
        return section.replicas == 1

    def refuse_options(self, section: SamplerSection) -> None:
        if section.tensor_parallel > 1:
            raise ValueError("tensor_parallel requires backend: vllm")

    def weight_dtype(self, computation: Computation) -> torch.dtype:
        import torch

        return torch.float32

    def penalty_bytes(self, responses: int, vocabulary: int, penalizes: bool) -> int:
        present_and_count = 1 + 4  # of `penalty_counts.PenaltyCounts`
        if penalizes:
            return responses * vocabulary * present_and_count
        return 0

    def build_sampler(
        self, folder: str, section: SamplerSection, computation: Computation
    ) -> ModelSampler:
        from lockstep.models.device import load_on_device

        return self.wrap_model(load_on_device(folder, computation), section, computation)

    def wrap_model(
        self, lm: PreTrainedModel, section: SamplerSection, computation: Computation
    ) -> ModelSampler:
        from lockstep.samplers.torch.stateful import torch_sampler

        return torch_sampler(
            lm, section.max_batch_size, computation.dtype, self.cache_bytes(section)
        )
