"""vLLM that forgets a part of what a refit has to do, for tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.cluster.specs import SamplerSpec
from lockstep.samplers.vllm.sampler import VLLMSampler


class ForgetfulSampler(VLLMSampler):
    """Forgets what it is told to."""

    worker = "forgetful_worker.ForgetfulReceiver"
    forgets = ""

    def forget(self, what: str) -> None:
        self.forgets = what
        self._on_worker("forget_one", what)

    def forget_old_weights(self) -> None:
        if self.forgets != "prefix cache":
            super().forget_old_weights()


@dataclass(frozen=True)
class ForgetfulSpec(SamplerSpec):
    def build(self) -> ForgetfulSampler:
        return ForgetfulSampler(self.model, self.section, self.learner)
