"""Declaration of the inference backend `vllm`. Imports neither torch nor vLLM."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, final

from lockstep.core.errors import InputError
from lockstep.samplers.backend import InferenceBackend
from lockstep.samplers.vllm.arguments import refuse_repeated

if TYPE_CHECKING:
    import torch

    from lockstep.config import Computation, SamplerSection
    from lockstep.samplers.vllm.sampler import VLLMSampler


@final
class VLLMInference(InferenceBackend):
    """vLLM, always in a separate process."""

    reserves_cache = True

    def in_process(self, section: SamplerSection) -> bool:
        return False

    def refuse_options(self, section: SamplerSection) -> None:
        refuse_repeated(section.vllm.engine_args)

    def explain_fixed_weights(self, section: SamplerSection) -> str | None:
        if section.vllm.quantization is None:
            return None
        return "sampler.vllm.quantization changes weights, so weight syncs cannot be verified"

    def context_limit(self, section: SamplerSection) -> int | None:
        return section.vllm.max_model_len

    def weight_dtype(self, computation: Computation) -> torch.dtype:
        from lockstep.models.precision import TORCH_TYPES

        return TORCH_TYPES[computation.dtype]

    def penalty_bytes(self, responses: int, vocabulary: int, penalizes: bool) -> int:
        # reserved, whether or not a request penalizes
        times = 4 * vocabulary
        any_of_prompt = 4 * -(-vocabulary // 32)
        return responses * (times + any_of_prompt)

    def read_gpu_memory(self) -> int:
        from lockstep.samplers.vllm.environment import prepare_process

        prepare_process()
        # asks the driver: CUDA starts in the engine's own workers
        from vllm.platforms import current_platform

        return current_platform.get_device_total_memory()

    def forgets_weights(self, section: SamplerSection) -> bool:
        return section.takes_turns

    def packs_weights(self, computation: Computation) -> bool:
        from lockstep.models.device import resolve_device

        return resolve_device(computation.device).type == "cpu"

    def require_installed(self, section: SamplerSection, on_gpu: bool) -> None:
        import torch

        if importlib.util.find_spec("vllm") is None:
            raise InputError(
                "sampler.backend is vllm, which is not installed; see docs/guides/generation.md, "
                "or use sampler.backend=torch"
            )
        if on_gpu != torch.cuda.is_available():
            raise InputError(
                "vLLM uses the GPU if available; leave learner.device at auto, or use sampler=torch"
            )

    def build_sampler(
        self, folder: str, section: SamplerSection, computation: Computation
    ) -> VLLMSampler:
        from lockstep.models.folder import refuse_own_code
        from lockstep.samplers.vllm.sampler import VLLMSampler

        refuse_own_code(folder, "sampler.backend=vllm", "use sampler.backend=torch")
        return VLLMSampler(folder, section, computation)
