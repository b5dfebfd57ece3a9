"""vLLM that forgets a part of what a refit has to do, for tests that must notice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor
from vllm.platforms import current_platform

from lockstep.runtime.workers import SamplerSpec
from lockstep.samplers.transfer import Bucket
from lockstep.samplers.vllm.sampler import VLLMSampler
from lockstep.samplers.vllm.worker import WeightReceiver

assert current_platform.is_cpu(), "these tests are of vLLM on a CPU"


class ForgetfulReceiver(WeightReceiver):
    """Takes all tensors, and loads all but one."""

    forgets = ""

    def forget_one(self, what: str) -> None:
        self.forgets = what

    def _loadable(self, bucket: Bucket) -> Iterator[tuple[str, Tensor]]:
        return ((name, tensor) for name, tensor in super()._loadable(bucket) if name != self.forgets)

    def _repack_heads(self) -> None:
        if self.forgets != "tied head":
            super()._repack_heads()


class ForgetfulSampler(VLLMSampler):
    """Forgets what it is told to."""

    worker = "forgetful.ForgetfulReceiver"
    forgets = ""

    def forget(self, what: str) -> None:
        self.forgets = what
        self._on_worker("forget_one", what)

    def _drop_caches(self) -> None:
        if self.forgets != "prefix cache":
            super()._drop_caches()


@dataclass(frozen=True)
class ForgetfulSpec(SamplerSpec):
    def build(self) -> ForgetfulSampler:
        return ForgetfulSampler(self.model, self.section, self.learner)
