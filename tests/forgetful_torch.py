"""A torch sampler that takes weights wrongly, for tests that must notice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor

from lockstep.batch import Batch
from lockstep.cluster.specs import SamplerSpec
from lockstep.models.load import load_causal_lm
from lockstep.samplers.torch.sampler import TorchSampler


class WrongTaker(TorchSampler):
    """Goes wrong as it is told to."""

    fault, victim = "", ""

    def go_wrong(self, fault: str, victim: str) -> None:
        self.fault, self.victim = fault, victim
        self._remembered: Tensor | None = None

    def logprobs(self, batch: Batch) -> Tensor:
        if self.fault != "remembers":
            return super().logprobs(batch)
        if self._remembered is None:
            self._remembered = super().logprobs(batch)
        return self._remembered

    def _take(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        super()._take(self._damaged(stream))

    def _damaged(self, stream: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        swapped = {"up": "gate", "gate": "up"}
        for name, tensor in stream:
            if name != self.victim and self.fault != "swaps":
                yield name, tensor
            elif self.fault == "swaps":
                place = next((word for word in swapped if f"{self.victim}.{word}_proj" in name), "")
                yield (name.replace(f".{place}_", f".{swapped[place]}_") if place else name), tensor
            elif self.fault == "permutes":
                yield name, tensor.flip(0)
            elif self.fault == "rounds":
                yield name, tensor.bfloat16().float()
            elif self.fault == "scales":
                yield name, tensor * 1.5


@dataclass(frozen=True)
class WrongTakerSpec(SamplerSpec):
    def build(self) -> WrongTaker:
        return WrongTaker(load_causal_lm(self.model), self.section.max_batch_size)
