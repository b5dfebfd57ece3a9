"""Declaration of the inference backend `openai`: a server that already runs. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from lockstep.config.backends import InferenceOptions

if TYPE_CHECKING:
    from lockstep.config import SamplerSection


@final
class OpenAIServer(InferenceOptions["SamplerSection"]):
    """A server that speaks OpenAI's protocol; `samplers.openai.client` calls it."""

    is_server = True
    changes_no_result = ("base_url", "api_key_env", "max_concurrency", "max_retries")

    def in_process(self, section: SamplerSection) -> bool:
        return False

    def refuse_options(self, section: SamplerSection) -> None:
        if section.openai is None:
            raise ValueError("backend: openai requires sampler.openai.base_url and .model")
        ours = {"max_batch_size", "replicas", "tensor_parallel", "kv_cache_gib"}
        if section.model_dump(include=ours) != type(section)().model_dump(include=ours):
            raise ValueError(
                "max_batch_size, replicas, tensor_parallel and kv_cache_gib are not supported "
                "with a server; use openai.max_concurrency to limit concurrent requests"
            )
