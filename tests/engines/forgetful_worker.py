"""The part of a forgetful vLLM that lives in its worker; only there is vLLM imported."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from lockstep.samplers.vllm.worker import WeightReceiver
from lockstep.weight_sync.transfer import Bucket


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
